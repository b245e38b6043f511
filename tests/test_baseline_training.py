"""Laws of baselines in the same trainer: every one trains, goes on, is exported, loads, is scored
and writes through the commands that our own model has."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from patience import PATIENCE  # noqa: E402
from training_help import (  # noqa: E402
    final_state,
    heldout,
    losses,
    prepare_corpus,
    tiny,
    weights,
)

from armd import cli  # noqa: E402
from armd.baselines import MODELS, figure_of, knows_orders, model_class  # noqa: E402
from armd.errors import ArmdError  # noqa: E402
from armd.eval.corpora import Corpus  # noqa: E402
from armd.eval.load_model import load  # noqa: E402
from armd.eval.perplexity import Scoring, perplexity  # noqa: E402
from armd.eval.windows import PROTOCOLS  # noqa: E402
from armd.plots.curves import read_curves  # noqa: E402
from armd.pretrained import load_model  # noqa: E402
from armd.train.checkpoint import (  # noqa: E402
    Checkpoint,
    open_checkpoint,
    steps_in,
)
from armd.train.command import parse  # noqa: E402
from armd.train.export import exported_step  # noqa: E402
from armd.train.loop import train  # noqa: E402
from armd.train.presets import preset, with_model  # noqa: E402
from armd.train.recipe import Recipe  # noqa: E402
from armd.train.trainer import Batch, StepMetrics, Trainer, build_model  # noqa: E402

CPU = torch.device("cpu")
GIVEN = ["--data", "d", "--out", "o"]
DIFFUSION = [name for name in MODELS if not knows_orders(name)]
TEXTS = ["The order of a text is cut into blocks, drawn at once.", "A text is cut."] * 3


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small(name: str, data: Path, out: Path) -> Recipe:
    """12 steps, a checkpoint every 3, held-out losses at 6 and 12."""
    return with_model(tiny(data, out, sbp_steps=0), name)


def smaller(name: str, data: Path, out: Path) -> Recipe:
    """4 steps, held-out losses and checkpoints at 2 and 4."""
    return with_model(
        tiny(data, out, steps=4, sbp_steps=0, validate_every=2, checkpoint_every=2), name
    )


@pytest.fixture(scope="module", params=MODELS)
def trained(
    request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    out = tmp_path_factory.mktemp(request.param) / "run"
    train(smaller(request.param, data, out))
    return request.param, out


def scored(folder: Path, **scoring) -> dict:
    corpus = Corpus("text", "test", "memory", "", lambda: iter(TEXTS), lambda text: text)
    return perplexity(load(str(folder)), corpus, PROTOCOLS["exact"], Scoring(**scoring), window=16)


def test_it_learns_and_is_validated_in_what_it_knows(trained: tuple[str, Path]) -> None:
    name, out = trained
    kinds = {"armd": 4, "xlnet": 4, "sigma-gpt": 2}.get(name, 1)
    first, last = (found for _, found in heldout(out))
    assert len(last) == kinds
    figure = figure_of(name)
    assert next(iter(last)) == ("left to right" if figure == "exact" else figure)
    # Diffusion-LM does not train on its bound, which is very large at first
    assert all(0 < value < (1e5 if name == "diffusion-lm" else 12) for value in last.values())
    assert list(read_curves(out, smooth=1)) == ["loss", *last]
    assert best_checkpoint(out).facts["heldout"] == min(
        next(iter(x.values())) for x in (first, last)
    )


def best_checkpoint(run: Path) -> Checkpoint:
    found = [open_checkpoint(run / "checkpoints", step) for step in steps_in(run / "checkpoints")]
    return min(found, key=lambda checkpoint: checkpoint.facts["heldout"])


def test_its_export_loads_by_its_config_alone(trained: tuple[str, Path]) -> None:
    name, out = trained
    model = load_model(out)
    assert type(model) is model_class(name)
    assert getattr(model, "figure", "exact") == figure_of(name)
    config = json.loads((out / "export" / "config.json").read_text())
    assert config["architectures"] == [type(model).__name__]
    block = int(name.removeprefix("bd3lm-")) if name.startswith("bd3lm-") else 1
    assert config.get("block_size", 1) == block
    kept = best_checkpoint(out).shapes("model/")
    assert {f"model/{key}" for key, _ in model.named_parameters()} == set(kept)


def test_it_is_scored_by_the_same_evaluation(trained: tuple[str, Path]) -> None:
    name, out = trained
    found = scored(out, draws=3)
    assert found["bound"] == (figure_of(name) == "bound")
    assert found["pseudo_likelihood"] == (figure_of(name) == "pseudo-likelihood")
    assert ("nats_standard_error" in found) == (figure_of(name) != "exact")
    assert "perplexity_log_mean_exp" not in found
    assert found == scored(out, draws=3) | {"seconds": found["seconds"]}
    if figure_of(name) == "exact":
        return
    assert found["nats_standard_error"] > 0
    with pytest.raises(ArmdError, match="leave out --order"):
        scored(out, order="random")


def test_it_writes(trained: tuple[str, Path], tmp_path: Path, monkeypatch) -> None:
    from transformers import configuration_utils

    # of a config that it does not know
    monkeypatch.setattr(configuration_utils.logger, "warning", lambda said: pytest.fail(said))
    name, out = trained
    words = ["generate", str(out), "--length", "12", "--count", "3", "--no-stop"]
    words += ["--out", str(tmp_path / "out.jsonl"), "--json", str(tmp_path / "figures.json")]
    steps = [] if knows_orders(name) else ["--steps", "4"]
    cli.run([*words, *steps])
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [len(record["ids"]) for record in records] == [12, 12, 12]
    assert figures["tokens"] == 36 and figures["seconds"] > 0
    if knows_orders(name):
        with pytest.raises(ArmdError, match="--steps is for diffusion"):
            cli.run([*words, "--steps", "4"])
        return
    assert 1 <= figures["model_calls"] == records[0]["calls"] <= 12
    for option in (["--prompt", "a"], ["--template", "a __ b"], ["--cache", "bf16"], ["--chat"]):
        with pytest.raises(ArmdError, match=f"leave out {option[0]}"):
            cli.run([*words[:2], *option])


class Cut(Exception):
    """Nothing more happens, as after a kill."""


NEW = ("transformer-xl", "plaid", "diffusion-lm", "diffusion-bert", "bert-mouth")


@pytest.mark.parametrize("name", ["mdlm", *NEW])
def test_cut_off_and_resumed_equals_uninterrupted(
    name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a baseline draws follows from seed and step alone, too."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    recipe, last, kept = (small, 12, 6) if name == "mdlm" else (smaller, 4, 2)
    train(recipe(name, data, whole))
    train_step = Trainer.train_step

    def cut_off(self: Trainer, batch: Batch, **options: Any) -> StepMetrics:
        if batch.step == kept + 1:
            end = time.monotonic() + PATIENCE  # checkpoint and export are written beside the steps
            while exported_step(cut / "export") != kept and time.monotonic() < end:
                time.sleep(0.01)
            raise Cut
        return train_step(self, batch, **options)

    monkeypatch.setattr(Trainer, "train_step", cut_off)
    with pytest.raises(Cut):
        train(recipe(name, data, cut))
    monkeypatch.undo()
    assert len(losses(cut)) == kept + 1 and steps_in(cut / "checkpoints")[-1] == kept
    train(recipe(name, data, cut))
    assert losses(cut) == losses(whole)
    assert heldout(cut) == heldout(whole)
    assert final_state(cut, last) == final_state(whole, last)
    assert weights(cut) == weights(whole)


def test_block_diffusion_goes_on_from_mdlm(data: Path, tmp_path: Path) -> None:
    """BD3-LM's published recipe: the weights that MDLM learnt are its first ones."""
    train(smaller("mdlm", data, tmp_path / "mdlm"))
    recipe = replace(smaller("bd3lm-4", data, tmp_path / "bd3lm"), start=str(tmp_path / "mdlm"))
    first = build_model(recipe, load_model(tmp_path / "mdlm").config.vocab_size, CPU)
    given = load_model(tmp_path / "mdlm").state_dict()
    assert type(first) is model_class("bd3lm-4") and first.config.block_size == 4
    assert all(torch.equal(w, given[name]) for name, w in first.state_dict().items())
    train(recipe)
    assert load_model(tmp_path / "bd3lm").config.model == "bd3lm-4"


def test_ar_is_the_shifted_query(data: Path, tmp_path: Path) -> None:
    ar, plain = (smaller(name, data, tmp_path / name) for name in ("ar", "armd"))
    network = replace(plain.network, query="shift")
    curriculum = replace(plain.curriculum, rho=0)
    train(ar)
    train(replace(plain, network=network, curriculum=curriculum))
    assert weights(tmp_path / "ar") == weights(tmp_path / "armd")
    assert losses(tmp_path / "ar") == losses(tmp_path / "armd")


@pytest.mark.parametrize("name", MODELS)
def test_every_model_takes_every_preset(name: str) -> None:
    for base in ("mini", "owt-small", "lm1b"):
        recipe = parse([base, "--model", name, *GIVEN])
        recipe.check()
        assert recipe.model == name
        assert recipe.curriculum.steps == preset(base).curriculum.steps
        assert recipe.optimizer == preset(base).optimizer
        if name != "armd":
            assert recipe.curriculum.rho == recipe.curriculum.sbp_steps == 0


def test_options_win_where_the_model_can_learn_them() -> None:
    recipe = parse(["mini", "--model=xlnet", "--p-random", "0.5", "--sbp-steps", "9", *GIVEN])
    recipe.check()
    assert (recipe.curriculum.p_random, recipe.curriculum.sbp_steps) == (0.5, 9)


@pytest.mark.parametrize(
    "words, fix",
    [
        (["--model", "mdml"], "did you mean 'mdlm'"),
        (["--model", "sigmagpt"], "did you mean 'sigma-gpt'"),
        (["--model"], "--model needs"),
        (["--model", "mdlm", "--rho", "4"], "learns no orders"),
        (["--model", "sigma-gpt", "--sbp-steps", "4"], "one token at a time"),
        (["--model", "xlnet", "--n-layers", "6"], "--n-two-stream 6"),
        (["--model", "ar", "--query", "mean"], "query shift"),
        (["--model", "ar", "--p-random", "0.5"], "left to right alone"),
    ],
)
def test_a_mistake_is_told_in_one_line(words: list[str], fix: str) -> None:
    with pytest.raises(ArmdError, match=fix) as error:
        parse(["mini", *words, *GIVEN] if words[-1] != "--model" else ["mini", *words]).check()
    assert "\n" not in str(error.value)


def test_a_file_may_name_the_model(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('model = "mdlm"\nseed = 4\n')
    recipe = parse(["mini", "--config", str(file), *GIVEN])
    recipe.check()
    assert (recipe.model, recipe.seed, recipe.curriculum.rho) == ("mdlm", 4, 0)


def test_going_on_with_another_model_is_refused(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(smaller("mdlm", data, out))
    with pytest.raises(ArmdError, match="model is mdlm there and radd here"):
        train(smaller("radd", data, out))
