"""Laws of what the source reads in an adaptation, and how often."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from convert_help import WORDS, source_model  # noqa: E402

from armd import order as orders  # noqa: E402
from armd.bench.adapt import Row, bench_adapt, default_mix  # noqa: E402
from armd.convert.to_armd import convert  # noqa: E402
from armd.model.neighbor_rows import count_in_order  # noqa: E402
from armd.runtime.processes import ProcessGroup  # noqa: E402
from armd.train.adapt import AdaptTrainer  # noqa: E402
from armd.train.adapt_command import Adapting, recipe_of  # noqa: E402
from armd.train.curriculum import Stage  # noqa: E402
from armd.train.trainer import ROUND, MicroBatch, window_step  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("source")
    source_model("llama", made / "source")
    convert(str(made / "source"), made / "ours")
    (made / "own.jsonl").write_text(2 * (json.dumps({"ids": [1] * 64}) + "\n"))
    return made


def trainer_of(folder: Path, **changes: Any) -> AdaptTrainer:
    facts = {"length": 32, "rank": 2, "device": "cpu", **changes}
    data, out = str(folder / "own.jsonl"), folder / "run"
    recipe = recipe_of(Adapting(str(folder / "ours"), data, out, **facts))
    return AdaptTrainer(recipe, ProcessGroup(), WORDS)


def test_the_source_knows_the_right_side_where_it_reads_it_first(folder: Path) -> None:
    """Before the cut its rows follow from all of the text but what lies between; after it, and
    without a cut, from the left alone."""
    trainer = trainer_of(folder)
    tokens = torch.randint(1, WORDS, (1, 32), generator=torch.Generator().manual_seed(7))
    changed = tokens.clone()
    changed[0, 20] = changed[0, 20] % (WORDS - 1) + 1
    position = torch.arange(32)[None]

    def moved(cut: int) -> list[int]:
        one, two = (trainer._source_rows(t, position, cut) for t in (tokens, changed))
        assert one is not None and two is not None
        return (one != two).any(-1).nonzero().flatten().tolist()

    assert moved(0) == list(range(21, 32))
    assert moved(16) == [*range(8, 16), *range(21, 32)]
    assert moved(24) == list(range(21, 32))


def test_a_window_that_comes_again_is_read_once(folder: Path) -> None:
    """And its rows are those of a run that reads it each time, whatever was made of them before;
    windows that will not come again are forgotten."""
    first, *others = torch.randint(1, WORDS, (ROUND + 1, 1, 32)).unbind()
    position, found, reads = torch.arange(32)[None], [], []
    for repeats in (1, 2):
        trainer = trainer_of(folder, repeats=repeats)
        with patch.object(trainer.source, "hidden", wraps=trainer.source.hidden) as hidden:
            rows = [trainer._source_rows(first, position, cut) for cut in (0, 16, 0)]
            rows += [trainer._source_rows(t, position, 0) for t in (*others, first)]
        found.append(torch.stack(rows))  # type: ignore[arg-type]
        reads.append(hidden.call_count)
    assert torch.equal(*found)
    assert reads == [4 + ROUND + 1, 2 + ROUND + 1]


@pytest.mark.parametrize("repeats", [1, 3])
def test_each_window_is_taken_so_many_times(repeats: int) -> None:
    steps = [window_step(step, repeats) for step in range(2 * ROUND * repeats)]
    assert sorted(steps) == sorted([*range(2 * ROUND)] * repeats)
    assert all(len(set(steps[k : k + ROUND])) == ROUND for k in range(0, len(steps), ROUND))


@pytest.mark.parametrize("teacher", [0.0, 1.0])
@pytest.mark.parametrize("texts", [1, 2])
def test_rows_in_order_are_read_once_and_nothing_changes(
    folder: Path, texts: int, teacher: float
) -> None:
    """The loss and all gradients are those of rows that go through the layers together; of a
    prompt, and in blanks, whose first rows are in order, too."""
    trainer = trainer_of(folder, distill=teacher, batch_size=texts, micro_batch=texts)
    with torch.no_grad():
        for weight in trainer.weights.values():
            weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    tokens = torch.randint(1, WORDS, (texts, 32), generator=torch.Generator().manual_seed(7))
    prompt = orders.infill(torch.arange(32) < 13, 4)
    blank = torch.isin(torch.arange(32), torch.tensor([9, 10, 11, 20, 21]))
    for order, kind, count in ((prompt, "strided", 15), (orders.infill(~blank), "infill", 10)):
        assert count_in_order(order.rows(1)) == count
        part, found = MicroBatch(tokens, tokens, order, 32 * texts), []
        for many in (2, 99):
            with patch("armd.train.adapt.MANY", many):
                loss = trainer.loss(part, Stage(kind, 4, prompt=13 / 32), tokens, tokens)
            learning = list(trainer.weights.values())
            found.append([loss, *torch.autograd.grad(loss, learning, allow_unused=True)])
        for one, two in zip(*found, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
        assert any(g is not None and bool(g.abs().max() > 1e-3) for g in found[0][1:])


def test_bench_adapt_compares_every_step_with_the_same_teacher(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "adapt.json"
    bench_adapt(str(folder / "ours"), length=32, repeats=1, json_file=file)
    rows = {(row["step"], row["teacher"]): row for row in json.loads(file.read_text())["rows"]}
    for teacher in ("text", "source"):
        base = rows["left to right", teacher]
        assert base["ratio"] == base["median_ratio"] == 1
        four = rows["S = 4", teacher]
        assert four["ratio"] == pytest.approx(four["seconds"] / base["seconds"])
    assert ("blanks", "text") in rows and ("blanks", "source") not in rows
    assert capsys.readouterr().out.count("all steps as by default") == 2


def test_a_mean_step_has_the_shares_of_the_default() -> None:
    seconds = {"left to right": 2.0, "S = 2": 3.0, "S = 4": 4.0, "S = 4 after a prompt": 3.0}
    seconds |= {"S = 8": 6.0, "blanks": 5.0}
    rows = [Row(name, "text", took, took, 0, 0) for name, took in seconds.items()]
    streams = (3 * (3 + 4) + 6) / 7 * (1 - 0.5 * 0.25)
    found = default_mix(rows, "text", (2, 2, 2, 4, 4, 4, 8))
    assert found == pytest.approx((0.7 * streams + 0.3 * 5) / 2)
