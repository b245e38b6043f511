"""What was decoded before the decoder was rewritten is decoded today: tokens of 50 settings, from
the library and from the server's engine, on plain and packed weights. `golden/compare.py` compares
bits, too: to be used with a record that golden/record.py made on the same machine."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "golden"
sys.path.insert(0, str(HERE))
from record import ROUTES, WEIGHTS, differences, golden, machine  # noqa: E402


@pytest.mark.usefixtures("unchecked")  # the same calls are checked elsewhere; here they take time
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("route", ROUTES)
def test_the_record_of_before_is_written_again(route: str, weights: str) -> None:
    kept = golden(HERE / "decoding.json")
    here = kept["machine"] == machine()  # other processors sum in another order
    within = 1e-5 if here else 1e-4
    found = differences(kept, route, weights, within=within, bits=False)
    assert not found, "\n".join(found[:10])
