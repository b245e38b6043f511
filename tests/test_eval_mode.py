"""Laws: who reads a model in training sees it without dropout, and leaves it as it was."""

import linecache
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch
from patience import PATIENCE

import armd
from armd.model import eval_mode
from armd.model.eval_mode import without_dropout


@pytest.fixture
def model() -> armd.ArmdLM:
    sizes = {"vocab_size": 17, "d_model": 16, "n_layers": 2, "n_heads": 2, "max_length": 16}
    made = armd.ArmdLM(armd.ArmdConfig(**sizes, dropout=0.5)).train()
    made.layers[1].eval()  # such as one that is frozen
    return made


def modes(model: armd.ArmdLM) -> list[bool]:
    return [module.training for module in model.modules()]


def test_threads_see_no_dropout_and_the_last_puts_back_what_was_training(model) -> None:
    tokens, order, before = torch.arange(8)[None], armd.order.random(8), modes(model)

    def score(_: int) -> float:
        with torch.no_grad(), without_dropout(model):
            return float(armd.log_likelihood(model, tokens, order).sum())

    exact = score(0)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(score, range(200))) == {exact}
    assert modes(model) == before and any(before) and not all(before)


def test_an_open_stream_leaves_the_model_in_training_and_is_not_changed_by_it(model) -> None:
    def logps(touched: bool) -> list[float]:
        found = []
        steps = armd.stream(model, length=8, generator=torch.Generator().manual_seed(0))
        for step in steps:
            found.append(float(step.logp.sum()))
            assert model.training
            if touched:
                model.train()
        return found

    assert logps(touched=False) == logps(touched=True)


def test_what_is_raised_meanwhile_leaves_the_model_as_it_was(model) -> None:
    before = modes(model)
    with pytest.raises(ZeroDivisionError), without_dropout(model):
        assert not any(modes(model))
        raise ZeroDivisionError
    assert modes(model) == before


def test_a_stream_that_is_not_read_to_its_end_ends_without_a_word() -> None:
    script = (
        "import armd; sizes = dict(vocab_size=17, d_model=16, n_layers=2, n_heads=2);"
        "steps = armd.stream(armd.ArmdLM(armd.ArmdConfig(**sizes)), length=9); next(steps)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_interrupt_at_any_line_leaves_the_model_as_it_was(model) -> None:
    """As Ctrl-C in a notebook."""
    before, number, interrupted = modes(model), 0, True

    while interrupted:
        left, interrupted = number, False

        def trace(frame, event, _):
            nonlocal left, interrupted
            if frame.f_code.co_filename != eval_mode.__file__:
                return None
            # CPython takes signals at calls and in loops: not on these lines
            line = linecache.getline(eval_mode.__file__, frame.f_lineno).strip()
            if event == "line" and not line.startswith(("with _lock", "try:", "reader =")):
                left -= 1
                if left == -1:
                    interrupted = True
                    raise KeyboardInterrupt
            return trace

        with suppress(KeyboardInterrupt):
            sys.settrace(trace)
            try:
                with without_dropout(model):
                    assert not any(modes(model))
            finally:
                sys.settrace(None)
        assert modes(model) == before and model not in eval_mode._read
        number += 1
    assert number > 40
