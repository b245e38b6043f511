"""Laws: a model that was saved in 16 bits, as most are, is on a CPU the same model in 32: packed,
the same text whatever the batch, and it can be rounded and adapted. A quantised one is not."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from convert_help import source_model  # noqa: E402
from test_adapt import job, samples  # noqa: E402, F401

import armd  # noqa: E402
from armd import cli  # noqa: E402
from armd.checked_pack import pack_checked  # noqa: E402
from armd.convert.to_armd import convert  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.native.library import library  # noqa: E402
from armd.native.packed import FastLM  # noqa: E402
from armd.pretrained import load_model  # noqa: E402
from armd.runtime.seeds import seeded  # noqa: E402
from armd.train.adapt import adapt  # noqa: E402
from armd.train.adapt_command import recipe_of  # noqa: E402

KINDS = (torch.bfloat16, torch.float16)


@pytest.fixture(params=KINDS, ids=str)
def halved(request: Any, tmp_path: Path) -> Path:
    source_model("llama", tmp_path / "source").to(request.param).save_pretrained(
        tmp_path / "source"
    )
    convert(str(tmp_path / "source"), tmp_path / "ours")
    return tmp_path / "ours"


@pytest.mark.skipif(library() is None, reason="no C compiler: nothing is packed")
def test_it_is_packed_and_texts_do_not_depend_on_the_batch(halved: Path) -> None:
    model = load_model(halved)
    assert model.dtype == torch.float32
    fast = pack_checked(model)
    assert isinstance(fast, FastLM)

    def drawn(first: int, count: int) -> Any:
        generators = [seeded(0, number) for number in range(first, first + count)]
        return armd.generate(fast, prompt=[[5]] * count, length=48, streams=2, generator=generators)

    together = drawn(0, 8)
    assert torch.equal(together, torch.cat([drawn(number, 1) for number in range(8)]))


@pytest.mark.parametrize("exact", [True, False])
def test_it_can_be_adapted(halved: Path, samples: Path, tmp_path: Path, exact: bool) -> None:  # noqa: F811
    out = adapt(recipe_of(job(halved, samples, tmp_path / "run", steps=2, exact=exact)))
    assert load_model(out).dtype == torch.float32


@pytest.mark.skipif(library() is None, reason="no C compiler: nothing is rounded")
def test_it_can_be_rounded_and_what_is_rounded_is_not_adapted(
    halved: Path,
    samples: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    cli.run(["quantize", str(halved), str(tmp_path / "q8"), "--windows", "0"])
    with pytest.raises(ArmdError, match="is quantized; adapt"):
        recipe_of(job(tmp_path / "q8", samples, tmp_path / "run"))
