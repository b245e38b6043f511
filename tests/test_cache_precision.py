"""Keys and values in bf16: half the memory, the same text alone and in any batch."""

import pytest
import torch

import armd
from armd.bench.cache import decoded
from armd.checked_pack import pack_checked
from armd.errors import ArmdError
from armd.generation.kv_cache import make_cache
from armd.model.order import strided
from armd.native import library as native
from armd.native.packed import pack, with_cache

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler here")
SHAPE = {"d_model": 32, "n_layers": 2, "n_heads": 2, "vocab_size": 50, "max_length": 160}


def build(query: str) -> armd.ArmdLM:
    torch.manual_seed(3)
    model = armd.ArmdLM(armd.ArmdConfig(**SHAPE, query=query)).eval()
    with torch.no_grad():
        for weight in model.parameters():  # far from uniform: attention matters
            weight.add_(0.2 * torch.randn_like(weight))
    return model


def written(model: armd.ArmdLM, prompts: torch.Tensor, length: int) -> tuple[list, list]:
    """Tokens, and the log p of those drawn."""
    steps = list(
        armd.stream(
            model,
            length=length,
            prompt=prompts,
            streams=2,
            generator=[torch.Generator().manual_seed(seed) for seed in prompts[:, 0].tolist()],
        )
    )
    tokens = torch.cat([step.token for step in steps], 1)
    return tokens.tolist(), torch.cat([step.logp for step in steps], 1).tolist()


@pytest.mark.parametrize("weights", ["fp32", "q8"])
@pytest.mark.parametrize("query", ["prefix", "neighbor"])
def test_alone_as_in_a_batch_to_the_bit(query: str, weights: str) -> None:
    packed = pack_checked(build(query), weights, "bf16")
    prompts = torch.arange(12).view(4, 3)
    together = written(packed, prompts, 40)
    for row in range(4):
        alone = written(packed, prompts[row : row + 1], 40)
        assert [side[0] for side in alone] == [side[row] for side in together]


@pytest.mark.parametrize("given", [5, 140])
def test_it_is_the_cache_that_is_rounded(given: int) -> None:
    """Prompts that C takes, and long ones that torch does: log p moves, by little."""
    model = build("neighbor")
    exact = pack(model)
    half = with_cache(pack(model), "bf16")
    caches = [make_cache(one, batch=1, length=8) for one in (exact, half)]
    assert [cache.keys[0].dtype for cache in caches] == [torch.float32, torch.bfloat16]
    back = make_cache(with_cache(with_cache(pack(model), "bf16"), "fp32"), batch=1, length=8)
    assert back.keys[0].dtype == torch.float32
    prompt = (torch.arange(given) * 7 % 50)[None]
    (wide,), (narrow,) = (written(one, prompt, given + 4)[1] for one in (exact, half))
    off = (torch.tensor(wide[:2]) - torch.tensor(narrow[:2])).abs()  # one step: the same tokens
    assert 0 < float(off.max()) < 0.05


@pytest.mark.parametrize("streams", [1, 3])
def test_a_text_decoded_step_by_step_is_the_text_of_a_full_pass(streams: int) -> None:
    """What bench cache compares: every token but the first is given, none passes at once."""
    model, order = build("neighbor"), strided(40, streams)
    tokens = torch.arange(80).view(2, 40) * 7 % 50
    first = model(tokens, order=order).logits[:, 0].argmax(-1)  # drawn greedily, after BOS alone
    full = model(torch.cat([first[:, None], tokens[:, 1:]], 1), order=order).logits.log_softmax(-1)
    logp = full.gather(2, tokens[:, order.position][..., None])[..., 0]
    stepped = decoded(pack(model), tokens, streams)
    assert torch.allclose(stepped.sum(), logp[:, 1:].double().sum(), atol=1e-3)
    assert len(stepped) == tokens.numel() - 2


def test_what_has_no_such_cache_says_so() -> None:
    model = build("neighbor")
    with pytest.raises(ArmdError, match="--cache fp32"):
        with_cache(model, "bf16")
    with pytest.raises(ArmdError, match="no cache"):
        with_cache(pack(model), "q3")
