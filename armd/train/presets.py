"""Presets: the paper's runs, and small ones for two cores. Each is a function that returns a
recipe; change any field with `dataclasses.replace` or on the command line."""

from collections.abc import Callable
from dataclasses import replace

from ..baselines import check_name
from ..errors import no_such
from .recipe import Curriculum, Machine, Network, Optimizer, Recipe, Report

CURVE = tuple(thousands * 1_000 for thousands in (60, 120, 180, 240, 300, 350, 400))
"""Steps at which the paper's curves and tables have figures: their checkpoints are kept."""


def owt_small() -> Recipe:
    """The paper's small model on OpenWebText, then its strided phase (its longest: 80K steps)."""
    curriculum = Curriculum(sbp_steps=80_000)
    return Recipe(preset="owt-small", curriculum=curriculum, report=Report(keep_at=CURVE))


def owt_medium() -> Recipe:
    """The paper's medium model on OpenWebText; the paper has no strided phase for it."""
    return Recipe(
        preset="owt-medium",
        network=Network(d_model=1024, n_layers=24, n_two_stream=12, n_heads=16),
        report=Report(keep_at=CURVE),
        machine=Machine(micro_batch=32),
    )


def owt_small_rho64() -> Recipe:
    """Ablation: 64 places shuffled in the end (the paper prints 32, but names it 64)."""
    curriculum = Curriculum(i_ar=40_000, i_perm=120_000, rho=64)
    return Recipe(preset="owt-small-rho64", curriculum=curriculum, report=Report(keep_at=CURVE))


def owt_small_l12() -> Recipe:
    """Ablation: both streams through all 12 layers."""
    network = Network(n_two_stream=12)
    return Recipe(preset="owt-small-l12", network=network, report=Report(keep_at=CURVE))


def owt_medium_l6() -> Recipe:
    """Ablation: both streams through a quarter of the medium model."""
    medium, steps = owt_medium(), (*CURVE[:5], 320_000, *CURVE[5:])
    network = replace(medium.network, n_two_stream=6)
    return replace(medium, preset="owt-medium-l6", network=network, report=Report(keep_at=steps))


def lm1b() -> Recipe:
    """One Billion Words, padded: one sentence a row of 128 tokens, pads not scored, 1M steps.

    The paper's own form (`armd prepare ... --rows 128`): its ARMD rows of Table 3."""
    return Recipe(
        preset="lm1b",
        network=Network(length=128),
        curriculum=Curriculum(steps=1_000_000, i_ar=100_000, i_perm=300_000, rho=8),
        report=Report(keep_at=(300_000, 1_000_000)),
        machine=Machine(micro_batch=512),
    )


def lm1b_packed() -> Recipe:
    """One Billion Words, packed: windows of CLS, 126 tokens, SEP (`armd prepare ... --wrap 128`).

    BD3-LM's form: the Transformer, SEDD, MDLM and BD3-LM rows of the paper's Table 3."""
    return replace(lm1b(), preset="lm1b-packed")


def mini() -> Recipe:
    """The small recipe at 1/100, for `sotu` with bpe:4096 on two cores.

    1.4M weights, and every count of steps a hundredth; the paper's middle strided phase (50K). Its
    query is ours, which learns sooner (docs/results.md); `--query prefix` is the paper's."""
    return Recipe(
        preset="mini",
        network=Network(
            d_model=128, n_layers=4, n_two_stream=2, n_heads=4, length=128, query="neighbor"
        ),
        curriculum=Curriculum(
            steps=4_000, i_ar=90, i_perm=480, rho=4, shuffle="among", rho_of="tokens", sbp_steps=500
        ),
        optimizer=Optimizer(batch_size=8, learning_rate=1.5e-3, warmup=50, schedule="cosine"),
        report=Report(
            log_every=20,
            validate_every=500,
            validate_rows=128,
            sample_every=1_500,
            checkpoint_every=500,
        ),
        machine=Machine(micro_batch=16),
    )


def demo() -> Recipe:
    """Minutes on two cores: enough to see the curriculum work and words come out."""
    base = mini()
    return replace(
        base,
        preset="demo",
        curriculum=Curriculum(
            steps=900, i_ar=100, i_perm=300, rho=4, shuffle="among", rho_of="tokens", sbp_steps=300
        ),
        optimizer=replace(base.optimizer, batch_size=10),
        report=replace(
            base.report,
            log_every=10,
            validate_every=300,
            validate_rows=64,
            sample_every=0,
            checkpoint_every=300,
        ),
    )


PRESETS: dict[str, Callable[[], Recipe]] = {
    "owt-small": owt_small,
    "owt-medium": owt_medium,
    "owt-small-rho64": owt_small_rho64,
    "owt-small-l12": owt_small_l12,
    "owt-medium-l6": owt_medium_l6,
    "lm1b": lm1b,
    "lm1b-packed": lm1b_packed,
    "mini": mini,
    "demo": demo,
}


def preset(name: str) -> Recipe:
    """The recipe called `name`."""
    if name not in PRESETS:
        raise no_such("preset", name, PRESETS)
    return PRESETS[name]()


def with_model(recipe: Recipe, name: str) -> Recipe:
    """The recipe for another model: the same sizes, data and steps of the progressive phase, in the
    orders that the model can learn. The nearest relatives learn random orders all the time."""
    if check_name(name) == "armd":
        return replace(recipe, model=name)
    network = replace(recipe.network, query="mean" if name == "xlnet" else "shift")
    if name == "xlnet":
        network = replace(network, n_two_stream=network.n_layers)
    any_order = name in ("xlnet", "sigma-gpt")
    curriculum = replace(
        recipe.curriculum,
        rho=0,
        sbp_steps=0,
        p_random=float(any_order),
        p_masking=0.0,
        p_infill=0.0,
    )
    return replace(recipe, model=name, network=network, curriculum=curriculum)
