"""Errors of the study: a claim is decided only by two standard errors, and ranks that the errors do
not support are ranges."""

import math

import pytest

from armd.reproduce.claims import claims_table
from armd.reproduce.uncertainty import paired_difference, rank, seed_spread, standard_error, verdict


def entries(**losses):
    """name=[loss of each seed], and for a bound a tuple of loss and the error of its draws."""
    found = {}
    for name, values in losses.items():
        if isinstance(values, tuple):
            figures = {"bound": values[0], "standard_error": values[1]}
            found[name.replace("_", "-")] = {"figures": figures}
            continue
        for seed, value in enumerate(values):
            key = name.replace("_", "-") + (f"-seed{seed}" if seed else "")
            found[key] = {"figures": {"left to right": value}}
    return found


def test_a_claim_is_decided_by_two_standard_errors():
    assert verdict(-0.1, 0.04) == "holds"
    assert verdict(-0.1, 0.06) == verdict(0.1, 0.06) == "not decided"
    assert verdict(0.1, 0.04) == "**does not hold**"
    assert verdict(-9.0, None) == "not decided"  # one run, no error: nothing is claimed


def test_runs_of_the_same_seeds_are_compared_seed_by_seed():
    """What a seed adds to both runs is no error of their difference."""
    found = entries(ar=[1.0, 1.2, 0.9], armd_neighbor=[1.01, 1.23, 0.92])
    gap, error = paired_difference(found, "armd-neighbor", "ar")
    assert gap == pytest.approx(0.02) and error == pytest.approx(0.01 / math.sqrt(3))
    assert paired_difference(entries(ar=[1.0], armd=[2.0]), "armd", "ar") == (1.0, None)
    assert "the neighbor query" in claims_table({"perplexity": found})
    many = entries(ar=[0.1 * seed for seed in range(12)], armd=[0.1 * seed for seed in range(12)])
    del many["armd-seed3"]
    assert paired_difference(many, "armd", "ar") == (0.0, 0.0)


def test_errors_are_of_seeds_and_of_draws():
    found = entries(ar=[1.0, 1.2], armd=[2.0, 2.1, 2.2], mdlm=(3.0, 0.3))
    pooled = math.sqrt((0.02 + 2 * 0.01) / 3)
    assert seed_spread(found) == pytest.approx(pooled)
    assert standard_error(found, "armd") == pytest.approx(0.1 / math.sqrt(3))
    assert standard_error(found, "mdlm") == pytest.approx(math.hypot(pooled, 0.3))
    assert standard_error(entries(ar=[1.0]), "ar") is None


def test_ranks_are_ranges_where_errors_overlap():
    found = entries(ar=[1.0, 1.01], armd=[1.01, 1.02], mdlm=(3.0, 0.5), radd=(3.2, 0.5))
    names = ["ar", "armd", "mdlm", "radd"]
    assert [rank(found, name, names) for name in names] == ["1 to 2", "1 to 2", "3 to 4", "3 to 4"]


def test_claims_say_which_are_not_decided():
    found = entries(ar=[1.0, 1.1], armd=[1.05, 1.09], armd_third=[1.5, 1.52], mdlm=(3.0, 0.1))
    rows = claims_table({"perplexity": found}).splitlines()[2:]
    assert "not decided" in rows[0] and rows[1].endswith("| holds |")
