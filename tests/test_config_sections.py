"""Laws: a config file that sets a field in the wrong place is told the right one."""

import re

import pytest

from armd.errors import ArmdError
from armd.train.recipe import Recipe
from armd.train.recipe_files import from_dict


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"steps": 20}, """'curriculum': {"curriculum": {"steps": ...}}"""),
        ({"batch_size": 2}, """'optimizer': {"optimizer": {"batch_size": ...}}"""),
        ({"network": {"steps": 2}}, """'curriculum': {"curriculum": {"steps": ...}}"""),
        ({"network": {"seed": 2}}, "'seed' belongs outside of all sections"),
        ({"stepz": 20}, "is no field; armd train --help lists them"),
        ({"total": 20}, "is no field; armd train --help lists them"),
    ],
)
def test_a_field_in_the_wrong_place_is_told_the_right_one(values: dict, said: str) -> None:
    with pytest.raises(ArmdError, match=re.escape(said)):
        from_dict(values, Recipe(), "config.json")


def test_what_is_told_works() -> None:
    assert from_dict({"curriculum": {"steps": 20}}, Recipe(), "c").curriculum.steps == 20
