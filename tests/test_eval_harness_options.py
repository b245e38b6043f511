"""Options of lm-eval's tasks: taken, or told in one line."""

import pytest

from armd.errors import ArmdError
from armd.eval.harness_options import asked


def test_options_of_sampling_are_taken_and_others_told():
    sampled = {"do_sample": True, "temperature": 0.8, "top_p": 0.1, "top_k": 1, "min_p": 0.0}
    found = asked({"until": ".", "max_gen_toks": 7, **sampled, "repetition_penalty": 1.2})
    chosen = {"temperature": 0.8, "top_p": 0.1, "top_k": 1, "min_p": None}
    assert found == (["."], 7, chosen | {"repetition_penalty": 1.2})
    assert asked(sampled | {"do_sample": False, "num_beams": 1}) == ([], 256, {"temperature": 0.0})
    for wrong in ({"temperature": "abc"}, {"top_k": "abc"}, {"repetition_penalty": [1]}):
        with pytest.raises(ArmdError, match=r"of gen_kwargs must be a number"):
            asked(wrong)
    for wrong in ({"until": 5}, {"until": [1]}, {"temperature": "nan"}, {"temperature": -1}):
        with pytest.raises(ArmdError, match=f"{min(wrong)} .* of gen_kwargs"):
            asked(wrong)
    assert asked(sampled | {"top_k": -1})[2] == {"temperature": 0.8, "top_p": 0.1, "min_p": None}
    with pytest.raises(ArmdError, match="'typical_p' of gen_kwargs"):
        asked({"typical_p": 0.5})
