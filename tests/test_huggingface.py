"""A saved model is the same model: here, through the auto classes, and where armd is missing."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import case_of
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

import armd
from armd.errors import ArmdError
from armd.train.export import export

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(params=["prefix", "shift", "neighbor"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[armd.ArmdLM, Path]:
    model = case_of("random", 5, 1, query=request.param, n_two_stream=2).model
    model.save_pretrained(tmp_path / "model")
    return model, tmp_path / "model"


def test_round_trip_is_exact(saved: tuple[armd.ArmdLM, Path]) -> None:
    model, folder = saved
    again = armd.ArmdLM.from_pretrained(folder)
    assert again.config.to_dict() | {"_name_or_path": ""} == model.config.to_dict()
    mine, other = model.state_dict(), again.state_dict()
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[name], other[name]) for name in mine)
    tokens = torch.arange(6)[None]
    assert torch.equal(model(tokens).logits, again(tokens).logits)


def test_the_folder_holds_weights_config_and_code_and_no_pickle(
    saved: tuple[armd.ArmdLM, Path],
) -> None:
    files = {path.name for path in saved[1].iterdir()}
    code = ["adapted_linear", "attention_inputs", "attention_parts", "causal_armd"]
    code += ["configuration_armd", "cpu_ops", "errors", "eval_mode", "folder_check", "head"]
    code += ["initial_weights", "layers", "limited_attention", "modeling_armd"]
    code += ["neighbor", "neighbor_rows", "order", "padding", "plain_generation", "prefix"]
    code += ["sampling", "shapes", "streams", "strict_model"]
    assert files == {"config.json", "model.safetensors", *(f"{name}.py" for name in code)}


def run_alone(script: str, tmp_path: Path, *, path: str = "") -> str:
    """A fresh process: no site configuration, its own Hugging Face folder, no network."""
    environment = os.environ | {
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "1",
        "JAXTYPING_DISABLE": "1",
    }
    start = f"import sys\nif {path!r}: sys.path.insert(0, {path!r})\n"
    done = subprocess.run(
        [sys.executable, "-I", "-c", start + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "imports",
    [
        "import armd\nimport transformers",
        "import transformers\nimport armd",
        "import armd.model.causal_armd\nimport transformers",
    ],
    ids=["armd first", "transformers first", "the causal class first"],
)
def test_auto_classes_know_armd_in_both_import_orders(imports: str, tmp_path: Path) -> None:
    model = case_of("random", 5, 1).model
    model.save_pretrained(tmp_path / "model")
    script = f"""
        {imports.splitlines()[0]}
        {imports.splitlines()[1]}
        config = transformers.AutoConfig.from_pretrained("model")
        assert type(config) is armd.ArmdConfig, type(config)
        model = transformers.AutoModelForMaskedLM.from_pretrained("model")
        assert type(model) is armd.ArmdLM, type(model)
        fresh = transformers.AutoModelForMaskedLM.from_config(config)
        assert type(fresh) is armd.ArmdLM
        causal = transformers.AutoModelForCausalLM.from_pretrained("model")
        assert type(causal).__module__ == "armd.model.causal_armd", type(causal)
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
        assert CONFIG_MAPPING["armd-baseline"].__name__ == "BaselineConfig"
        print("known")
    """
    assert "known" in run_alone(script, tmp_path, path=str(ROOT))


class Held:
    """A checkpoint that holds a model's weights."""

    step, facts = 1, {}

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def weights(self, prefix: str) -> dict[str, torch.Tensor]:
        assert prefix == "model/"
        return {name: p.detach() for name, p in self.model.named_parameters()}


@pytest.mark.parametrize("way", ["save_pretrained", "a run's export"])
def test_what_is_saved_loads_where_armd_and_jaxtyping_are_missing(
    way: str, tmp_path: Path, unchecked: None
) -> None:
    model = case_of("random", 5, 1, n_two_stream=2).model
    if way == "save_pretrained":
        model.save_pretrained(tmp_path / "model")
    else:
        export(cast(Any, Held(model)), model.config, {}, tmp_path / "model")
    tokens = torch.tensor([[3, 1, 4, 1, 5, 2]])
    with torch.no_grad():
        save_file({"logits": model(tokens).logits}, tmp_path / "wanted.safetensors")
    script = f"""
        class Missing:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("armd", "jaxtyping", "beartype"):
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        sys.path = [p for p in sys.path if p not in ("", {str(ROOT)!r})]
        sys.meta_path.insert(0, Missing())
        import torch, transformers
        from safetensors.torch import load_file
        model = transformers.AutoModelForMaskedLM.from_pretrained("model", trust_remote_code=True)
        assert "armd" not in sys.modules and "jaxtyping" not in sys.modules
        assert type(model).__module__.startswith("transformers_modules")
        with torch.no_grad():
            logits = model.eval()(torch.tensor({tokens.tolist()})).logits
        wanted = load_file("wanted.safetensors")["logits"]
        torch.testing.assert_close(logits, wanted, rtol=1e-6, atol=1e-6)
        model.save_pretrained("again")
        print("loaded")
    """
    assert "loaded" in run_alone(script, tmp_path)
    again = armd.ArmdLM.from_pretrained(tmp_path / "again")
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )


def assert_refused(folder: Path, message: str) -> None:
    with pytest.raises(ArmdError, match=message) as caught:
        armd.ArmdLM.from_pretrained(folder)
    assert "\n" not in str(caught.value)


def test_a_truncated_checkpoint_is_refused(saved: tuple[armd.ArmdLM, Path]) -> None:
    weights = saved[1] / "model.safetensors"
    whole = weights.read_bytes()
    for size in (len(whole) - 8, len(whole) // 2, 20, 4, 0):
        weights.write_bytes(whole[:size])
        assert_refused(saved[1], "damaged")


def test_a_checkpoint_saved_in_part_is_refused(saved: tuple[armd.ArmdLM, Path]) -> None:
    weights = saved[1] / "model.safetensors"
    tensors = load_file(weights)
    del tensors["layers.1.query.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    assert_refused(saved[1], r"layers\.1\.query\.weight")


def test_weights_of_another_size_are_refused(saved: tuple[armd.ArmdLM, Path]) -> None:
    config = armd.ArmdConfig(**saved[0].config.to_diff_dict() | {"vocab_size": 9})
    config.save_pretrained(saved[1])
    assert_refused(saved[1], "does not fit|holds other weights")


def test_a_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    GPT2LMHeadModel(GPT2Config(vocab_size=11, n_embd=8, n_layer=1, n_head=1)).save_pretrained(
        tmp_path
    )
    assert_refused(tmp_path, "gpt2")


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


def test_pickles_are_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: tuple[armd.ArmdLM, Path]
) -> None:
    monkeypatch.chdir(tmp_path)
    (saved[1] / "model.safetensors").unlink()
    torch.save({"bos": Bomb()}, saved[1] / "pytorch_model.bin")
    assert_refused(saved[1], "safetensors")
    assert not Path("exploded").exists()


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path / "nowhere", "nowhere")
    (tmp_path / "empty").mkdir()
    assert_refused(tmp_path / "empty", "empty")


def test_weights_of_other_queries_are_refused_or_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = torch.arange(6)[None]
    for query in ("shift", "neighbor", "prefix", "mean"):
        case_of("random", 5, 1, query=query).model.save_pretrained(tmp_path / query)
    shift = armd.ArmdLM.from_pretrained(tmp_path / "shift")
    for given, wanted in (("shift", "neighbor"), ("neighbor", "shift")):
        caplog.clear()
        logging.get_logger("transformers").addHandler(caplog.handler)
        model = armd.ArmdLM.from_pretrained(tmp_path / given, query=wanted)
        logging.get_logger("transformers").removeHandler(caplog.handler)
        assert f"as query '{wanted}'" in caplog.text
        assert model.config.query == wanted
        if given == "shift":
            assert torch.equal(model(tokens).logits, shift(tokens).logits)
    for given, wanted in (("prefix", "neighbor"), ("mean", "neighbor"), ("neighbor", "prefix")):
        with pytest.raises(ArmdError, match="another query than"):
            armd.ArmdLM.from_pretrained(tmp_path / given, query=wanted)
