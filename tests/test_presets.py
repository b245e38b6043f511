"""Laws of recipes: presets are the paper's, options change them, mistakes get one clear line."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from armd.errors import ArmdError
from armd.train.command import parse
from armd.train.presets import PRESETS, preset
from armd.train.recipe import Recipe
from armd.train.recipe_files import as_json, differences, from_dict, read

GIVEN = ["--data", "d", "--out", "o"]


def test_the_papers_optimizer() -> None:
    for name in ("owt-small", "owt-medium", "owt-small-rho64", "owt-small-l12", "lm1b"):
        o = preset(name).optimizer
        assert (o.learning_rate, o.beta1, o.beta2, o.eps) == (3e-4, 0.9, 0.999, 1e-8)
        assert (o.weight_decay, o.warmup, o.clip, o.batch_size) == (0.03, 2000, 1.0, 512)
        assert preset(name).network.dropout == 0.02


def test_the_papers_sizes() -> None:
    torch = pytest.importorskip("torch")
    from armd import ArmdLM

    for name, millions in (("owt-small", 124), ("owt-medium", 355)):
        with torch.device("meta"):
            model = ArmdLM(preset(name).network.config(50257))
        assert round(sum(p.numel() for p in model.parameters()) / 1e6) == millions
    assert preset("owt-small-l12").network.n_two_stream == 12
    assert preset("owt-medium-l6").network.n_two_stream == 6


def test_only_presets_that_are_not_the_papers_have_our_own_query() -> None:
    ours = {name for name in PRESETS if preset(name).network.query == "neighbor"}
    assert ours == {"mini", "demo"}
    assert {preset(name).network.query for name in PRESETS.keys() - ours} == {"prefix"}
    parse(["mini", "--query", "prefix", *GIVEN]).check()


def test_matrices_decay_and_nothing_else() -> None:
    pytest.importorskip("torch")
    from armd import ArmdConfig, ArmdLM
    from armd.train.trainer import build_optimizer

    model = ArmdLM(ArmdConfig(vocab_size=11, d_model=16, n_layers=2, n_heads=2, max_length=8))
    decayed, free = build_optimizer(model, preset("mini").optimizer, fused=False).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert decayed["weight_decay"] == 0.03 and free["weight_decay"] == 0.0
    assert {names[id(p)].split(".")[-2:][0] for p in free["params"]} <= {
        "attention_norm",
        "mlp_norm",
        "query_norm",
        "norm",
        "bos",
    }
    assert "embedding.weight" in {names[id(p)] for p in decayed["params"]}
    assert len(decayed["params"]) + len(free["params"]) == len(names)


def test_options_win_over_the_file_and_the_file_over_the_preset(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("seed = 3\n[curriculum]\nrho = 7\nsteps = 50\n")
    recipe = parse(["mini", "--config", str(config), "--rho", "9", *GIVEN])
    assert (recipe.seed, recipe.curriculum.rho, recipe.curriculum.steps) == (3, 9, 50)
    assert recipe.curriculum.i_ar == preset("mini").curriculum.i_ar


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_written_config_reads_back(tmp_path: Path, name: str) -> None:
    path = tmp_path / "config.json"
    changed = replace(preset(name), seed=5)
    path.write_text(as_json(changed))
    assert from_dict(read(path), Recipe(), str(path)) == changed
    assert not list(differences(from_dict(read(path), Recipe(), str(path)), changed))


@pytest.mark.parametrize(
    "words, fix",
    [
        (["owt-smal", *GIVEN], "did you mean 'owt-small'"),
        ([], "name a preset"),
        (["mini", "--out", "o"], "--data is missing"),
        (["mini", "--config", "/none.json", *GIVEN], "cannot read the config"),
        (["mini", "--config"], "needs a file"),
    ],
)
def test_a_mistake_is_told_in_one_line(words: list[str], fix: str) -> None:
    with pytest.raises(ArmdError, match=fix) as error:
        parse(words)
    assert "\n" not in str(error.value)


def test_unknown_and_wrong_fields_in_a_file_are_told(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    other = {"optimizer": {"schedule": "linear"}}
    wrong = (({"sede": 1}, "no field"), ({"seed": "1"}, "must be a int"), (other, "cosine"))
    for values, fix in wrong:
        path.write_text(json.dumps(values))
        with pytest.raises(ArmdError, match=fix):
            from_dict(read(path), Recipe(), str(path))
    for text in ("{", '{"seed": ' + "9" * 5000 + "}", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(ArmdError, match="neither JSON nor TOML"):
            from_dict(read(path), Recipe(), str(path))


@pytest.mark.parametrize(
    "changes, fix",
    [
        ({"rho": 200}, "--rho 200"),
        ({"i_perm": 1}, "--i-perm"),
        ({"p_random": 0.7, "p_infill": 0.7}, "shares"),
        ({"steps": 0, "sbp_steps": 0}, "at least one step"),
        ({"streams": ()}, "--streams"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused(changes: dict, fix: str) -> None:
    recipe = preset("mini")
    with pytest.raises(ArmdError, match=fix):
        replace(recipe, curriculum=replace(recipe.curriculum, **changes)).check()


def test_an_autoregressive_model_learns_left_to_right_only() -> None:
    mini = preset("mini")
    with pytest.raises(ArmdError, match="--rho 0"):
        replace(mini, network=replace(mini.network, query="shift")).check()
