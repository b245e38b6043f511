"""Which runs does each stage of the study need? Every one is the base run with a few changes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..train.presets import with_model
from ..train.recipe import Curriculum, Recipe
from ..train.run_folder import KEPT
from ..train.saved_checkpoint import name_of
from .scale import Scale

BASELINES = (
    "mdlm",
    "sedd-absorb",
    "sedd-uniform",
    "radd",
    "d3pm",
    "bd3lm-4",
    "bd3lm-16",
    "sigma-gpt",
    "xlnet",
)
MORE_BASELINES = ("transformer-xl", "plaid", "diffusion-lm", "diffusion-bert")
"""Those of the paper's tables that are trained only if `--runs` names them."""
SBP_SHARES = (10, 20, 40)
"""Lengths of the strided phase, in percent of the base run's steps."""


@dataclass(frozen=True)
class Trained:
    """A run of the study: its folder is named after it."""

    name: str
    recipe: Recipe
    after: str = ""
    """The run whose weights it starts from."""
    after_step: int = 0
    """A kept step of that run; 0 for its last."""
    with_state: bool = False
    """It goes on from that step as if it were the same run, with the optimizer's state."""
    data: str = ""
    """Which of the study's datasets, where there are several."""
    optional: bool = False
    """No part of the study unless it is named."""


@dataclass(frozen=True)
class Study:
    """Where everything of one study lies."""

    scale: Any
    """A Scale, or the PaperScale of the paper's own runs."""
    folder: Path
    data: Path
    only: tuple[str, ...] = ()
    """Runs to train and measure, each with all its seeds; none named: all of a stage's."""

    def chosen(self, runs: list[Trained]) -> list[Trained]:
        """Those of a stage's runs that are wanted."""
        if not self.only:
            return [run for run in runs if not run.optional]
        return [run for run in runs if re.sub(r"-seed\d+$", "", run.name) in self.only]

    def run(self, name: str) -> Path:
        return self.folder / "runs" / name

    def export(self, name: str, step: int) -> Path:
        """The weights of a step that the run keeps."""
        return self.run(name) / KEPT / name_of(step)

    def placed(self, trained: Trained) -> Recipe:
        """The recipe with its folders."""
        start = self.run(trained.after) if trained.after else ""
        if start and trained.after_step and not trained.with_state:
            start = self.export(trained.after, trained.after_step)
        return replace(
            trained.recipe,
            data=str(self.data / trained.data),
            out=str(self.run(trained.name)),
            start=str(start),
            start_step=trained.after_step if trained.with_state else 0,
        )


def perplexity_runs(scale: Scale) -> list[Trained]:
    """All models at equal steps, ours and AR at a third of them, too; these with every seed."""
    seeded = []
    for name, recipe in (
        ("armd", scale.base),
        ("armd-neighbor", neighbor(scale.base)),
        ("ar", with_model(scale.base, "ar")),
    ):
        seeded += [Trained(name, recipe), Trained(f"{name}-third", fewer(recipe, 3))]
    baselines = [Trained(name, with_model(scale.base, name)) for name in BASELINES]
    more = [Trained(name, with_model(scale.base, name), optional=True) for name in MORE_BASELINES]
    return [*with_seeds(scale, seeded), *baselines, *more, *published_bd3lm(scale)]


def published_bd3lm(scale: Scale) -> list[Trained]:
    """BD3-LM by its published recipe: 850K steps of MDLM, then 150K of blocks, each here as long a
    share of the base run."""
    runs = []
    for name, model, share, after in (
        ("mdlm-85", "mdlm", 85, ""),
        ("bd3lm-4-published", "bd3lm-4", 15, "mdlm-85"),
    ):
        recipe = with_model(scale.base, model)
        steps = {"steps": percent(scale, share)}
        runs.append(Trained(name, changed(recipe, {"curriculum": steps}), after, optional=True))
    return runs


def neighbor(recipe: Recipe) -> Recipe:
    """The same run with the query that starts from the token before."""
    return changed(recipe, {"network": {"query": "neighbor"}})


def with_seeds(scale: Scale, runs: list[Trained]) -> list[Trained]:
    """The runs, and each again with every other seed of the scale."""
    again = [
        replace(run, name=f"{run.name}-seed{seed}", recipe=replace(run.recipe, seed=seed))
        for seed in scale.seeds[1:]
        for run in runs
    ]
    return [*runs, *again]


def generation_runs(scale: Scale) -> list[Trained]:
    """The strided phase in three lengths, and the judge."""
    runs = [Trained("armd", scale.base)]
    runs += [Trained(f"sbp-{share}", strided(scale, share), after="armd") for share in SBP_SHARES]
    runs += [Trained(name, with_model(scale.base, name)) for name in WRITERS]
    return [*runs, Trained("judge", with_model(scale.judge, "ar"))]


WRITERS = ("ar", "sedd-absorb", "mdlm", "bd3lm-4")
"""The baselines whose samples are judged."""


def price_runs(scale: Scale) -> list[Trained]:
    """What the price of parallelism is read off, and what might lower it: more strided steps, or
    four streams alone."""
    runs = [Trained("armd", scale.base)]
    runs += [Trained(f"sbp-{share}", strided(scale, share), after="armd") for share in SBP_SHARES]
    only = changed(strided(scale, 20), {"curriculum": {"streams": (4,)}})
    runs += [Trained("sbp-20-only-4", only, after="armd")]
    runs += [Trained("armd-neighbor", neighbor(scale.base))]
    return [*runs, Trained("neighbor-sbp-20", neighbor(strided(scale, 20)), after="armd-neighbor")]


def ablation_runs(scale: Scale) -> list[Trained]:
    """Each choice changed alone, at a third of the steps, against armd-third."""
    third, layers = fewer(scale.base, 3), scale.base.network.n_layers
    changes: dict[str, dict[str, Any]] = {
        "third-l2s-quarter": {"network": {"n_two_stream": max(1, layers // 4)}},
        "third-l2s-all": {"network": {"n_two_stream": layers}},
        "third-rho-0": {"curriculum": {"rho": 0}},
        "third-rho-16": {"curriculum": {"rho": 16}},
        "third-no-curriculum": {"curriculum": {"i_ar": 0, "i_perm": 0}},
        "third-random": {"curriculum": {"rho": 0, "p_random": 1.0}},
        "third-pe-0.02": {"network": {"pe_std": 0.02}},
        "third-query-mean": {"network": {"query": "mean"}},
    }
    runs = [Trained("armd-third", third), Trained("ar-third", with_model(third, "ar"))]
    for name, change in changes.items():
        runs.append(Trained(name, changed(third, change)))
    return runs


def changed(recipe: Recipe, parts: dict[str, dict[str, Any]]) -> Recipe:
    """A recipe with fields of its parts replaced."""
    made = {name: replace(getattr(recipe, name), **fields) for name, fields in parts.items()}
    return replace(recipe, **made)


def fewer(recipe: Recipe, part: int) -> Recipe:
    """A run of 1/part of the steps, its curriculum, warm-up and validation with it."""
    c, o, r = recipe.curriculum, recipe.optimizer, recipe.report
    return replace(
        recipe,
        curriculum=replace(
            c,
            steps=c.steps // part,
            i_ar=c.i_ar // part,
            i_perm=c.i_perm // part,
            sbp_steps=c.sbp_steps // part,
        ),
        optimizer=replace(o, warmup=max(1, o.warmup // part)),
        report=replace(r, validate_every=max(1, r.validate_every // part)),
    )


def percent(scale: Scale, share: int) -> int:
    return max(1, scale.base.curriculum.steps * share // 100)


def strided(scale: Scale, share: int) -> Recipe:
    """The strided phase alone, `share` percent as long as the base run, at a lower rate."""
    steps = percent(scale, share)
    o = scale.base.optimizer
    slower = o if o.schedule == "constant" else replace(o, learning_rate=o.learning_rate / 2)
    return replace(
        scale.base,
        curriculum=Curriculum(steps=0, i_ar=0, i_perm=0, rho=0, sbp_steps=steps),
        optimizer=replace(slower, warmup=max(1, min(o.warmup, steps // 10))),
    )
