"""Laws: a figure is labelled with the step, the precision and the ends of texts that it is of."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eval_models import saved, tiny_armd, tiny_gpt2  # noqa: E402
from training_help import heldout, prepare_corpus, tiny  # noqa: E402

from armd import cli  # noqa: E402
from armd.eval.load_model import load  # noqa: E402
from armd.eval.ppl import eval_ppl  # noqa: E402
from armd.eval.samples import eval_samples  # noqa: E402
from armd.eval.streams import eval_streams  # noqa: E402
from armd.native import library as native  # noqa: E402
from armd.train.loop import train  # noqa: E402
from armd.train.trainer import Trainer  # noqa: E402

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 16 steps that ended in its eleventh: validated at 6, exported at 9."""
    folder, step = tmp_path_factory.mktemp("stopped"), Trainer.train_step

    def dies(self: Any, batch: Any, **rest: Any) -> Any:
        if batch.step == 10:
            raise RuntimeError("killed")
        return step(self, batch, **rest)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(Trainer, "train_step", dies)
        train(tiny(prepare_corpus(folder), folder / "run"))
    return folder / "run"


def test_a_model_is_of_the_step_of_its_export(stopped: Path) -> None:
    planned = "preset mini, 12 steps up to rho 4, 4 strided"
    assert planned in load(str(stopped)).config
    assert load(str(stopped)).config.endswith(", at step 9 of 16")
    assert "step" not in load(str(stopped / "export")).config  # which no plan lies beside


def test_a_card_says_of_which_step_its_losses_are(stopped: Path) -> None:
    (step, losses), card = heldout(stopped)[-1], (stopped / "export" / "README.md").read_text()
    assert step == 6 and "| step | 9 |" in card
    table = card.split("## Held-out text at step 6, by order")[1]
    assert f"| left to right | {losses['left to right']:.3f} |" in table


@pytest.mark.skipif(native.library() is None, reason="no C compiler here")
@pytest.mark.parametrize("weights", ["q8", "q4"])
def test_the_precision_is_that_of_the_weights(tmp_path: Path, weights: str) -> None:
    plain, small = saved(tiny_armd(), tmp_path / "plain"), str(tmp_path / "small")
    cli.run(["quantize", plain, small, "--weights", weights, "--windows", "0"])
    (tmp_path / "text.txt").write_text("some words of text\n" * 9)
    data, where = str(tmp_path / "text.txt"), {"device": "cpu"}
    (found,) = eval_ppl(small, data=data, window=32, **where)
    assert found["settings"]["precision"] == weights
    (found,) = eval_streams(small, data=data, window=32, windows=2, streams=(2,), **where)
    assert found["precision"] == weights
    judge = saved(tiny_gpt2(), tmp_path / "judge")
    found = eval_samples(small, judge=judge, count=2, length=8, **where)
    assert (found["precision"], found["model_precision"]) == ("float32", weights)


@pytest.mark.skipif(native.library() is None, reason="no C compiler here")
def test_matrices_that_are_kept_at_8_bits_are_named(tmp_path: Path) -> None:
    from armd.native.packed import pack
    from armd.native.packed_file import save_quantized

    saved(model := tiny_armd(), folder := tmp_path / "model")
    packed: Any = pack(model, "q4", kept=("down",))
    save_quantized(packed, folder, {})
    assert load(str(folder), device="cpu").precision == "q4, down q8"


def test_an_eos_is_said_to_stand_where_it_stands(tmp_path: Path, capsys: Any) -> None:
    model = saved(tiny_armd(), tmp_path / "model")
    (file := tmp_path / "text.txt").write_text("some words of text\n" * 9)
    words = {"text": f"{file}", "lm1b": f"lm1b={file}"}

    def said(*names: str, protocol: Any = "exact") -> str:
        data = ",".join(words[name] for name in names)
        found = eval_ppl(model, data=data, protocol=protocol, window=32, device="cpu")
        if protocol == "exact":  # which scores every token; line ends are running text's own
            more = 9 if names[0] == "lm1b" else 9 + 1
            assert found[0]["tokens_scored"] == 9 * len("some words of text") + more
        return capsys.readouterr().out

    assert "; EOS after every document; " in said("text")
    assert "; EOS after every row; " in said("lm1b")
    assert "; no EOS between rows; " in said("lm1b", protocol="bd3lm")
    both = said("lm1b", "text")
    assert "; EOS after every row (lm1b); EOS after every document (text); " in both
