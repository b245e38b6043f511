"""Which values may the fields of a recipe have? One table, checked before any work is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ArmdError

if TYPE_CHECKING:
    from .recipe import Recipe

STEPS = 10**9
# part -> field -> lowest and highest value; both are allowed
LIMITS: dict[str, dict[str, tuple[float, float]]] = {
    "network": {
        "d_model": (2, 2**16),
        "n_layers": (1, 2**10),
        "n_two_stream": (0, 2**10),
        "n_heads": (1, 2**10),
        "length": (1, 2**20),
        "dropout": (0, 0.99),
        "pe_std": (0, 1e3),
        "d_pe": (0, 2**16),
    },
    "curriculum": {
        "steps": (0, STEPS),
        "i_ar": (0, STEPS),
        "i_perm": (0, STEPS),
        "rho": (0, 2**20),
        "sbp_steps": (0, STEPS),
        "streams": (1, 2**20),
        "p_prompt": (0, 1),
        "p_random": (0, 1),
        "p_masking": (0, 1),
        "masking_steps": (1, 10**6),
        "p_infill": (0, 1),
        "infill_span": (0, 2**20),
        "infill_known": (0.01, 0.99),
    },
    "optimizer": {
        "batch_size": (1, 2**24),
        "learning_rate": (0, 10),
        "beta1": (0, 0.999999999),
        "beta2": (0, 0.999999999),
        "eps": (1e-30, 1),
        "weight_decay": (0, 10),
        "warmup": (0, STEPS),
        "final_rate": (0, 1),
        "clip": (0, 1e6),
        "ema": (0, 0.999999999),
    },
    "report": {
        "log_every": (0, STEPS),
        "validate_every": (0, STEPS),
        "validate_rows": (1, 2**24),
        "sample_every": (0, STEPS),
        "checkpoint_every": (0, STEPS),
        "keep": (1, 10**6),
        "keep_at": (1, STEPS),
    },
    "machine": {"micro_batch": (1, 2**24)},
}


def check_limits(recipe: Recipe) -> None:
    """Raise for the first field that is not a number between its limits."""
    for part, fields in LIMITS.items():
        for name, (low, high) in fields.items():
            found = getattr(getattr(recipe, part), name)
            for value in found if isinstance(found, tuple) else (found,):
                check_between(f"--{name.replace('_', '-')}", value, low, high)
    check_between("--seed", recipe.seed, -(2**63), 2**63 - 1)
    check_between("--start-step", recipe.start_step, 0, STEPS)


def check_between(name: str, value: Any, low: float, high: float) -> None:
    if not low <= value <= high:  # NaN is not, either
        limits = f"{_plain(low)} and {_plain(high)}"
        raise ArmdError(f"{name} {_plain(value)} must be a number between {limits}")


def _plain(number: float) -> str:
    """Whole numbers in full, others as short as they can be."""
    return f"{number:.9g}" if isinstance(number, float) else str(number)
