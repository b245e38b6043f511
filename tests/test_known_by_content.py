"""Law: figures of an earlier call are taken for those of a model, tokenizer or text only while
these hold the same bytes; names, sizes and dates of files say nothing."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from eval_models import saved, tiny_armd, tiny_gpt2  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from armd import cli  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.eval.load_model import fingerprint, load  # noqa: E402
from armd.eval.ppl import eval_ppl  # noqa: E402
from armd.eval.results import beside  # noqa: E402
from armd.runtime.atomic_files import SUMS, write_sums  # noqa: E402

pytestmark = pytest.mark.usefixtures("unchecked")
EPSILON = {"armd": "norm_eps", "gpt2": "layer_norm_epsilon"}


def in_place(file: Path, change: Callable[[Path], Any]) -> None:
    """Change a file and keep its dates."""
    before = file.stat()
    change(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def edited(file: Path, **entries: Any) -> None:
    in_place(file, lambda at: at.write_text(json.dumps(json.loads(at.read_text()) | entries)))


def other_config(model: Path, text: Path) -> None:
    kind = json.loads((model / "config.json").read_text())["model_type"]
    edited(model / "config.json", **{EPSILON[kind]: 0.5})


def other_weights(model: Path, text: Path) -> None:
    file = model / "model.safetensors"
    tensors = {name: tensor * 1.5 for name, tensor in load_file(file).items()}
    in_place(file, lambda at: save_file(tensors, at, {"format": "pt"}))


def other_text(model: Path, text: Path) -> None:
    in_place(text, lambda at: at.write_text(at.read_text().upper()))


def other_eos(model: Path, text: Path) -> None:
    edited(model / "tokenizer_config.json", eos_token="<one>")


def other_bos(model: Path, text: Path) -> None:
    edited(model / "tokenizer_config.json", bos_token="<two>")


def put_model(folder: Path, kind: str) -> Path:
    """Its tokenizer has special tokens without a purpose."""
    saved(tiny_armd() if kind == "armd" else tiny_gpt2(), folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<one>", "<two>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / SUMS).unlink(missing_ok=True)
    return folder


def put(tmp_path: Path, kind: str) -> tuple[Path, Path]:
    """A model without checksums, and a text of two documents."""
    model = put_model(tmp_path / "model", kind)
    text = tmp_path / "text.txt"
    text.write_text("some words of text\n" * 9 + "<|endoftext|>\n" + "more of them\n" * 9)
    return model, text


@pytest.mark.parametrize("kind", ["armd", "gpt2"])
@pytest.mark.parametrize(
    "change",
    [other_config, other_weights, other_text, other_eos, other_bos],
    ids=lambda f: f.__name__,
)
def test_what_changed_in_place_is_measured_again(
    tmp_path: Path, kind: str, change: Callable[[Path, Path], None]
) -> None:
    (model, text), file = put(tmp_path, kind), tmp_path / "figures.json"

    def figures(json: Path | None = file) -> dict[str, Any]:
        return eval_ppl(str(model), data=str(text), protocol="mdlm", window=32, json=json)[0]

    first = figures()
    for path in (text, *model.iterdir()):
        path.touch()
    assert figures() == first  # of the same content: not made again
    change(model, text)
    again = figures()
    assert again["nats_per_token"] == figures(None)["nats_per_token"] != first["nats_per_token"]
    assert json.loads(file.read_text())["results"] == [first, again]


def test_figures_of_an_earlier_version_are_kept_and_made_again(tmp_path: Path) -> None:
    (model, text), file = put(tmp_path, "armd"), tmp_path / "figures.json"
    (first,) = eval_ppl(str(model), data=str(text), json=file)
    facts = [
        f"{f.name} {f.stat().st_size} {f.stat().st_mtime_ns}"
        for f in (model / "model.safetensors", text)
    ]
    first["settings"] |= dict(zip(("weights", "text"), facts, strict=True))
    file.write_text(json.dumps({"kind": "ppl", "results": [first]}))
    (again,) = eval_ppl(str(model), data=str(text), json=file)
    assert again["settings"] != first["settings"]
    assert json.loads(file.read_text())["results"] == [first, again]


def test_checksums_beside_a_model_are_believed_only_where_they_are_compared(tmp_path: Path) -> None:
    for kind in ("armd", "gpt2"):
        model, text = put(tmp_path / kind, kind)
        before = fingerprint(model)
        write_sums(model)
        assert load(str(model)).fingerprint == before  # the same model, checksums or not
        other_weights(model, text)
        if kind == "armd":
            with pytest.raises(ArmdError, match="another checksum"):
                load(str(model))
        else:
            assert load(str(model)).fingerprint != before


def test_a_model_of_the_hub_is_known_by_what_the_cache_holds(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    found, repository = [], tmp_path / "models--some--model"
    for commit in ("a" * 40, "b" * 40, "c" * 40):
        folder = put_model(repository / "snapshots" / commit, "gpt2")
        if commit[0] == "c":
            other_weights(folder, folder)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(commit)
        found.append(load("some/model").fingerprint)
        assert found[-1] == fingerprint(folder)
    assert found[0] == found[1] != found[2]


def test_results_of_another_model_or_text_under_the_same_names_stay() -> None:
    """The same command in another folder, or when the model has trained on; given again as it was,
    it replaces its own."""
    said = {"command": "armd eval streams run", "model": "run", "data": "t", "source": "t.txt"}
    one, other, third = ({**said, "weights": w, "text": t} for w, t in ("aa", "ba", "ab"))
    kept = beside([], [one])
    for new in (other, third, other, one):
        kept = beside(kept, [new])
    assert sorted(map(str, kept)) == sorted(map(str, (one, other, third)))


@pytest.mark.parametrize("verb", ["streams", "infill"])
def test_results_say_what_weights_and_text_they_are_of(verb: str, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("some words of a text, and more of them. " * 20)
    model, figures = saved(tiny_armd(), tmp_path / "m"), tmp_path / "f.json"
    words = ["eval", verb, model, "--data", str(tmp_path / "t.txt"), "--windows", "1"]
    cli.run([*words, "--window", "24", "--json", str(figures)])
    results = json.loads(figures.read_text())["results"]
    assert results and all(one["weights"] and one["text"] for one in results)
