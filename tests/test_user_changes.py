"""What a user does to a loaded model takes part in writing, and writing changes nothing in it."""

import threading
from pathlib import Path

import pytest
import torch
import torch.nn.utils.parametrize
import torch.nn.utils.prune
from small import case_of

import armd
from armd.checked_pack import pack_checked
from armd.data.tokenizer import byte_tokenizer, with_ends
from armd.native.packed import FastLM


@pytest.fixture
def loaded(tmp_path: Path):
    model = case_of("random", 5, 1, query="neighbor", vocab_size=257).model
    with_ends(byte_tokenizer(), rows=False).save(tmp_path / "export")
    model.save_pretrained(tmp_path / "export")
    return armd.load(tmp_path)


def pruned(model: armd.ArmdLM) -> None:
    torch.nn.utils.prune.l1_unstructured(model.layers[0].out, "weight", 0.9)


class Halved(torch.nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight / 2


def parametrized(model: armd.ArmdLM) -> None:
    torch.nn.utils.parametrize.register_parametrization(model.layers[0].out, "weight", Halved())


def hooked(model: armd.ArmdLM) -> None:
    model.layers[0].register_forward_hook(lambda module, given, out: out)
    model.norm.register_forward_hook(lambda module, given, out: -out)


def rolled(model: armd.ArmdLM) -> None:
    with torch.no_grad():
        model.embedding.weight.copy_(model.embedding.weight.roll(1, 0))


def configured(model: armd.ArmdLM) -> None:
    model.config.rope_base = 3.0


class Scaled(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return -self.inner(rows)


def wrapped(model: armd.ArmdLM) -> None:
    model.layers[1].mlp_norm = Scaled(model.layers[1].mlp_norm)


def shared(model: armd.ArmdLM) -> None:
    model.layers[2] = model.layers[1]


def reclassed(model: armd.ArmdLM) -> None:
    layer = model.layers[1]

    class Other(type(layer)):
        def project_and_mlp(self, *given):
            return -super().project_and_mlp(*given)

    layer.__class__ = Other


def replaced(model: armd.ArmdLM) -> None:
    down = model.layers[1].down
    before = down.forward
    down.forward = lambda *given: -before(*given)


def hooked_everywhere(model: armd.ArmdLM) -> None:
    torch.nn.modules.module.register_module_forward_hook(
        lambda module, given, out: -out if module is model.norm else None
    )


def set_otherwise(model: armd.ArmdLM) -> None:
    model.layers[1].attention_norm.eps = 0.5


def compiled(model: armd.ArmdLM) -> None:
    model.layers[1] = torch.compile(model.layers[1], backend="eager")


def enlarged(model: armd.ArmdLM) -> None:
    before, model.embedding = model.embedding, torch.nn.Embedding(4000, model.config.d_model)
    with torch.no_grad():
        model.embedding.weight.zero_()[: before.num_embeddings] = before.weight


def shared_matrix(model: armd.ArmdLM) -> None:
    model.layers[2].down = model.layers[1].down


def biased(model: armd.ArmdLM) -> None:
    model.layers[0].query.bias = torch.nn.Parameter(torch.full((1,), 0.5))


def holding(model: armd.ArmdLM) -> None:
    """A lock, which has no copies, and what a hook kept of a pass."""
    model.layers[0].lock = threading.Lock()
    hook = model.layers[1].down.register_forward_hook(
        lambda module, given, out: setattr(module, "seen", out)
    )
    armd.loss(model, torch.tensor([[1, 2, 3]]), armd.order.left_to_right(3)).mean().backward()
    hook.remove()
    rolled(model)


CHANGES = [pruned, parametrized, hooked, rolled, configured]
CHANGES += [wrapped, shared, reclassed, replaced, set_otherwise, hooked_everywhere]
CHANGES += [compiled, enlarged, shared_matrix, biased, holding]


@pytest.fixture
def no_hooks_stay():
    yield
    torch.nn.modules.module._global_forward_hooks.clear()


@pytest.mark.filterwarnings("ignore:the C decode step differs")
@pytest.mark.usefixtures("no_hooks_stay")
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_user_puts_into_a_model_takes_part_in_writing(loaded, change) -> None:
    greedy = {"length": 24, "temperature": 0.0}
    loaded.write("Once", **greedy)
    change(loaded.model)
    text = armd.generate(loaded.model, prompt=[list(b"Once")], eos=loaded.tokenizer.eos, **greedy)
    ids = text[0].tolist()
    shown = ids[: ids.index(256)] if 256 in ids else ids
    assert loaded.write("Once", **greedy) == loaded.decode(shown)


@pytest.mark.parametrize("how", ["hooked", "plain"])
def test_writing_leaves_the_weights_where_they_are(loaded, how: str) -> None:
    """They may be views of a vector, in memory that processes share, or being trained on."""
    model = loaded.model if how == "hooked" else armd.load(loaded.folder, weights="plain").model
    before = [weight.data_ptr() for weight in model.parameters()]
    if how == "hooked":
        hooked(model)
        loaded.write("Once", length=12)
    assert [weight.data_ptr() for weight in pack_checked(model, "plain").parameters()] == before
    assert [weight.data_ptr() for weight in model.parameters()] == before


def test_a_model_is_packed_whatever_it_holds(loaded) -> None:
    shared_matrix(loaded.model)
    holding(loaded.model)
    assert isinstance(pack_checked(loaded.model, "q8"), FastLM)


def test_what_c_would_read_beyond_its_end_is_left_to_torch(loaded) -> None:
    loaded.model.layers[0].right_bias = torch.nn.Parameter(torch.ones(1))
    assert pack_checked(loaded.model) is loaded.model
