"""Laws: adapting teaches other orders, is safe against kills, and its adapter is what it says."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from convert_help import WORDS, source_model  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from test_links import Started, holds  # noqa: E402

from armd import order as orders  # noqa: E402
from armd.convert.adapter import FACTS, Merging, apply_adapter, right_offset_of  # noqa: E402
from armd.convert.to_armd import convert  # noqa: E402
from armd.convert.to_llama import to_llama  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.model.configuration_armd import ArmdConfig  # noqa: E402
from armd.pretrained import load_model  # noqa: E402
from armd.runtime.atomic_files import damaged_files, write_sums  # noqa: E402
from armd.train.adapt import adapt  # noqa: E402
from armd.train.adapt_command import Adapting, recipe_of  # noqa: E402
from armd.train.run_folder import read_metrics  # noqa: E402


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    source_model("llama", folder / "source")
    convert(str(folder / "source"), folder / "ours")
    return folder / "ours"


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token ids, as armd generate --out writes them."""
    file = tmp_path_factory.mktemp("samples") / "own.jsonl"
    generator = torch.Generator().manual_seed(5)
    rows = torch.randint(1, WORDS, (40, 32), generator=generator).tolist()
    file.write_text("".join(json.dumps({"text": "", "ids": row}) + "\n" for row in rows))
    return file


def job(base: Path, data: Path, out: Path, **changes: Any) -> Adapting:
    small = {"steps": 6, "length": 32, "rank": 2, "alpha": 4, "warmup": 2, "learning_rate": 1e-2}
    often = {
        "ahead": True,
        "log_every": 1,
        "validate_every": 3,
        "checkpoint_every": 2,
        "device": "cpu",
    }
    return Adapting(str(base), str(data), out, **{**small, **often, "half": False, **changes})


@pytest.fixture(scope="module")
def run(base: Path, samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    return adapt(recipe_of(job(base, samples, tmp_path_factory.mktemp("whole") / "run")))


@pytest.fixture(scope="module")
def merged_run(base: Path, samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with an adapter that all rows take."""
    out = tmp_path_factory.mktemp("merged") / "run"
    return adapt(recipe_of(job(base, samples, out, exact=False)))


def logits(model: Any, order: Any) -> Any:
    tokens = torch.randint(0, WORDS, (2, 32), generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        return model(tokens, order=order).logits


@pytest.mark.parametrize("exact", [True, False])
def test_zero_steps_change_nothing(base: Path, samples: Path, tmp_path: Path, exact: bool) -> None:
    (tmp_path / "link").symlink_to(base)  # a base may be one
    out = adapt(recipe_of(job(tmp_path / "link", samples, tmp_path / "run", steps=0, exact=exact)))
    before, after = (load_file(f / "model.safetensors") for f in (base, out / "export"))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert exact or before.keys() == after.keys()
    order = orders.strided(32, 4)
    ours, theirs = (logits(load_model(f), order) for f in (out / "export", base))
    assert torch.equal(ours, theirs)


def test_adapter_applied_equals_merged(base: Path, merged_run: Path) -> None:
    applied = apply_adapter(load_model(base), merged_run / "adapter").eval()
    models = (applied, load_model(merged_run / "export"), load_model(base))
    for order in (orders.left_to_right(32), orders.strided(32, 4)):
        one, two, three = (logits(model, order) for model in models)
        assert torch.allclose(one, two, atol=1e-4)
        assert not torch.allclose(one, three, atol=1e-2)


def test_an_exact_adapter_leaves_the_source_as_it_was_left_to_right(
    base: Path, run: Path, tmp_path: Path
) -> None:
    """To the last bit, and so does the way back; where rows are out of order, it is the adapter
    that peft would apply."""
    ours, source = load_model(run / "export"), load_model(base)
    forward, streams = orders.left_to_right(32), orders.strided(32, 4)
    assert torch.equal(logits(ours, forward), logits(source, forward))
    assert not torch.allclose(logits(ours, streams), logits(source, streams), atol=1e-2)
    for folder in (run / "export", base):
        to_llama(str(folder), tmp_path / folder.name)
    one, two = (load_file(f / "model.safetensors") for f in sorted(tmp_path.iterdir()))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    applied = apply_adapter(source, run / "adapter").eval()
    both = (m.layers[0] for m in (applied, ours))
    rows = torch.randn(2, 3, ours.config.d_model, generator=torch.Generator().manual_seed(1))
    theirs, own = (layer.gate_up for layer in both)
    assert torch.allclose(theirs(rows), own(rows, torch.ones(1, 3, 1)), atol=1e-5)


def test_the_adapter_is_a_standard_one(base: Path, run: Path) -> None:
    from peft import PeftConfig

    config = PeftConfig.from_pretrained(str(run / "adapter"))
    assert config.peft_type == "LORA" and config.r == 2  # type: ignore[attr-defined]
    names = load_file(run / "adapter" / "adapter_model.safetensors")
    assert "base_model.model.layers.0.query.lora_A.weight" in names
    new = load_file(run / "adapter" / "new_weights.safetensors")
    assert {"unknown", "gate", "layers.1.right_bias"} <= new.keys() and "bos" not in new


def test_another_base_is_refused_by_its_checksum(base: Path, run: Path, tmp_path: Path) -> None:
    source_model("llama", tmp_path / "source", rms_norm_eps=1e-5)
    file = tmp_path / "source" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ArmdError, match="checksum"):
        convert(str(tmp_path / "source"), tmp_path / "ours", adapter=run / "adapter")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    convert(str(base.parent / "source"), tmp_path / "ours", adapter=run / "adapter")
    one, two = (load_file(f / "model.safetensors") for f in (tmp_path / "ours", run / "export"))
    assert all(torch.equal(one[name], two[name]) for name in two)


def test_an_adapter_brings_the_offset_that_it_was_made_with(
    base: Path, samples: Path, run: Path, tmp_path: Path
) -> None:
    """Keys to the right stand elsewhere for it."""
    own = ArmdConfig.from_pretrained(base).right_offset
    assert own > 0 and right_offset_of(run / "adapter") == own
    other = tmp_path / "adapter"
    shutil.copytree(run / "adapter", other)
    facts = json.loads((other / FACTS).read_text("utf-8"))
    (other / FACTS).write_text(json.dumps(facts | {"right_offset": own - 1}), "utf-8")
    write_sums(other)
    made = convert(str(base.parent / "source"), tmp_path / "ours", adapter=other)
    assert made.config.right_offset == own - 1
    with pytest.raises(ArmdError, match="right_offset"):
        recipe_of(job(base, samples, tmp_path / "run", start=other))


def test_base_adapter_and_merged_model_have_checksums(
    base: Path, run: Path, tmp_path: Path
) -> None:
    for folder in (base, run / "adapter", run / "export"):
        assert damaged_files(folder) == []
    for file in sorted((run / "adapter").iterdir()):
        copy = tmp_path / file.name
        shutil.copytree(run / "adapter", copy)
        data = bytearray(file.read_bytes())
        data[-2] ^= 1
        (copy / file.name).write_bytes(data)
        with pytest.raises(ArmdError, match=r"damaged|cannot read"):
            Merging(copy)


def test_the_curve_tells_each_number_of_streams(run: Path) -> None:
    rows = [row["heldout"] for row in read_metrics(run) if "heldout" in row]
    assert len(rows) == 2 and list(rows[0]) == ["left to right", "S=2", "S=4", "S=8"]


def test_the_merged_model_has_a_card_of_its_own(base: Path, run: Path) -> None:
    """It says what it was adapted from, on what, and how well it reads; its base's says nothing of
    that. The rest of the config is the base's."""
    ours, theirs = ((f / "README.md").read_text() for f in (run / "export", base))
    assert "| adapted from | ours |" in ours and "| S=4 |" in ours and "| step | 6 |" in ours
    assert "adapted" not in theirs
    made, before = (load_model(f).config.to_diff_dict() for f in (run / "export", base))
    assert made == before | {"adapter_rank": 2}


def test_all_weights_learn_with_full(base: Path, samples: Path, tmp_path: Path) -> None:
    changes = {"full": True, "steps": 2, "learning_rate": 1e-4, "activation_checkpointing": True}
    out = adapt(recipe_of(job(base, samples, tmp_path / "run", **changes)))
    before, after = (load_file(f / "model.safetensors") for f in (base, out / "export"))
    assert before.keys() == after.keys()
    assert not torch.equal(before["layers.0.down.weight"], after["layers.0.down.weight"])
    assert not (out / "adapter").exists()


def test_text_is_data_too(base: Path, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join(f"the order {n} of the other then there " * 4 for n in range(99)))
    changes = {"steps": 1, "validate_every": 0}
    out = adapt(recipe_of(job(base, file, tmp_path / "run", **changes)))
    assert (out / "adapter" / "adapter_model.safetensors").is_file()


def test_bad_data_and_bases(base: Path, samples: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    for ids in ([1, 2, 100_000], [1.5, 2.7], [True, 2]):
        other.write_text(json.dumps({"ids": ids}) + "\n")
        with pytest.raises(ArmdError, match="outside the vocabulary"):
            recipe_of(job(base, other, tmp_path / "run"))
    other.write_bytes(json.dumps({"ids": [1, 2]}).encode() + b'\n{"ids": "\xe9"}\n')
    with pytest.raises(ArmdError, match="line 2 is no sample"):
        recipe_of(job(base, other, tmp_path / "run"))
    (tmp_path / "one.txt").write_text("one document, none to hold out")
    with pytest.raises(ArmdError, match="options of armd prepare"):
        recipe_of(job(base, tmp_path / "one.txt", tmp_path / "run"))
    with pytest.raises(ArmdError, match=r"^--steps 0"):
        recipe_of(job(base, samples, tmp_path / "run", steps=0, full=True))
    with pytest.raises(ArmdError, match="no data"):
        recipe_of(job(base, tmp_path / "none", tmp_path / "run"))
    with pytest.raises(ArmdError, match="convert it first"):
        recipe_of(job(base.parent / "source", samples, tmp_path / "run"))
    with pytest.raises(ArmdError, match="passes the model's"):
        recipe_of(job(base, samples, tmp_path / "run", length=4096))
    for name, value in (("steps", 10**400), ("infill_span", 0), ("distill", float("nan"))):
        with pytest.raises(ArmdError, match=f"^--{name.replace('_', '-')} .* must be a number"):
            recipe_of(job(base, samples, tmp_path / "run", **{name: value}))


def test_a_run_goes_on_from_an_adapter(
    base: Path, samples: Path, run: Path, tmp_path: Path
) -> None:
    """Of no steps, it writes the adapter that it was given; another model's is refused."""
    start = run / "adapter"
    out = adapt(recipe_of(job(base, samples, tmp_path / "run", steps=0, start=start)))
    for name in ("adapter_model.safetensors", "new_weights.safetensors"):
        assert (out / "adapter" / name).read_bytes() == (start / name).read_bytes()
    with pytest.raises(ArmdError, match="--rank 2"):
        recipe_of(job(base, samples, tmp_path / "run", start=start, rank=3))
    other = adapt(
        recipe_of(job(base, samples, tmp_path / "not", steps=0, start=start, exact=False))
    )
    for name in ("adapter_model.safetensors", "new_weights.safetensors"):
        assert (other / "adapter" / name).read_bytes() == (start / name).read_bytes()
    with pytest.raises(ArmdError, match="nothing to learn"):
        recipe_of(job(base, samples, tmp_path / "run", streams=(1,)))
    recipe = recipe_of(job(base, samples, tmp_path / "two", streams=(1, 2)))
    assert recipe.curriculum.streams == (2,)
    with pytest.raises(ArmdError, match="has an adapter already"):
        recipe_of(job(run / "export", samples, tmp_path / "run"))
    facts = json.loads((start / "armd_adapter.json").read_text())
    other = tmp_path / "other"
    shutil.copytree(start, other)
    (other / "armd_adapter.json").write_text(json.dumps({**facts, "base": "0" * 64}))
    write_sums(other)
    with pytest.raises(ArmdError, match="another model"):
        recipe_of(job(base, samples, tmp_path / "run", start=other))


def test_the_adapter_that_a_run_began_with_is_known_by_its_weights(
    base: Path, samples: Path, run: Path, tmp_path: Path
) -> None:
    """It may lie elsewhere by now; another one in its place is refused."""
    start, moved, out = tmp_path / "start", tmp_path / "moved", tmp_path / "run"
    shutil.copytree(run / "adapter", start)
    adapt(recipe_of(job(base, samples, out, start=start, steps=2)))
    start.rename(moved)
    adapt(recipe_of(job(base, samples, out, start=moved, steps=2)))
    other = adapt(recipe_of(job(base, samples, tmp_path / "other", start=moved, steps=1)))
    with pytest.raises(ArmdError, match="began with another adapter"):
        recipe_of(job(base, samples, out, start=other / "adapter", steps=2))


def test_a_run_may_lie_in_the_working_folder(
    base: Path, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its dataset lies beside it, under its name."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    recipe = recipe_of(job(base, samples, Path("."), steps=1))
    assert recipe.data == str(tmp_path / "here-data")
    adapt(recipe)
    assert (tmp_path / "here" / "export" / "config.json").is_file()


def test_no_link_in_a_run_is_followed(base: Path, samples: Path, run: Path, tmp_path: Path) -> None:
    def go(copy: Path) -> None:
        adapt(recipe_of(job(base, samples, copy)))

    begun = tmp_path / "begun"
    shutil.copytree(run, begun)
    shutil.rmtree(begun / "checkpoints" / "step-00000006")
    least = {"adapter", "base", "export", ".adapter.tmp", ".base.tmp", ".export.tmp"}
    holds(Started(begun, go), tmp_path, least=least)
