"""The checker of all other tests sees a wrong type, a wrong shape, and sizes that disagree."""

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation

from armd.model import order as orders
from armd.model.layers import attention, bool_mask


def test_a_wrong_type_is_seen() -> None:
    with pytest.raises(BeartypeCallHintViolation):
        orders.left_to_right("8")  # type: ignore[arg-type]


def test_a_wrong_shape_is_seen() -> None:
    with pytest.raises(BeartypeCallHintViolation):
        bool_mask(torch.zeros(3, dtype=torch.long), 3)
    with pytest.raises(BeartypeCallHintViolation):
        bool_mask(torch.zeros(1, 3), 3)


def test_sizes_that_disagree_are_seen() -> None:
    query, key = torch.zeros(1, 2, 2, 4), torch.zeros(1, 3, 2, 4)
    attention(query, key, key, "all")
    with pytest.raises(BeartypeCallHintViolation):
        attention(query, key, torch.zeros(1, 4, 2, 4), "all")  # values of other rows than the keys


def test_it_can_be_left_out(unchecked: None) -> None:
    assert bool_mask(torch.tensor([1.0, 2.0])[None], 2).shape == (1, 1, 2, 2)
