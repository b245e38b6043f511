"""The C decode step gives what the model itself gives, for every kind of query, shape and order."""

import os
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_help import CSequence, decode, step

import armd
from armd.model.layers import Layer
from armd.model.sampling import Sampling, penalised, weights
from armd.native import library as native
from armd.native import packed as fast

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler here")

ORDERS = ("left to right", "prompt", "strided", "random", "masking", "infill", "blocks")
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"n_heads": 4, "n_kv_heads": 2, "d_head": 8},
    "one key head": {"n_heads": 3, "n_kv_heads": 1, "d_head": 16, "d_model": 24},
    "wide heads": {"n_heads": 1, "d_head": 64},
    "qwen": {"n_heads": 4, "n_kv_heads": 2, "d_head": 32, "qkv_bias": True},
    "own head": {"tie_word_embeddings": False},
    "llama 3": {
        "rope_llama3": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
}


def build(g: torch.Generator, **shape: Any) -> armd.ArmdLM:
    """A small model with weights that are large enough to matter."""
    shape = {"d_model": 32, "n_heads": 2, "n_layers": 3, **shape}
    config = armd.ArmdConfig(vocab_size=23, max_length=96, dropout=0.0, init_std=0.5, **shape)
    model = armd.ArmdLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=g) * 0.2)
    return model


def task(kind: str, n: int, g: torch.Generator) -> tuple[armd.Order, list[int], list[bool]]:
    """An order of n tokens, the tokens, and which of them are known."""
    some, known = int(torch.randint(1, n, (), generator=g)), torch.zeros(n, dtype=torch.bool)
    if kind in ("left to right", "prompt"):
        known[: some if kind == "prompt" else 0] = True
        order = armd.order.left_to_right(n)
    elif kind == "strided":
        order = armd.order.strided(n, min(some, 7))
    elif kind == "random":
        order = armd.order.random(n, generator=g)
    elif kind == "masking":
        order = armd.order.masking(n, some, generator=g)
    elif kind == "infill":
        known = torch.rand(n, generator=g) < 0.5
        known[some] = False
        order = armd.order.infill(known, min(3, int((~known).sum())))
    else:  # known tokens anywhere, in blocks of unlike sizes
        block = torch.randint(0, 6, (n,), generator=g).sort().values
        order = armd.Order(torch.randperm(n, generator=g), block)
        known = torch.rand(n, generator=g) < 0.6
        known[order.position[:some]] = True
        known[order.position[-1]] = False
    tokens = torch.randint(23, (n,), generator=g) * known
    return order, tokens.tolist(), known.tolist()


def check_equals_full(model: armd.ArmdLM, packed: armd.ArmdLM, kind: str, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    order, tokens, known = task(kind, int(torch.randint(2, 70, (), generator=g)), g)
    sequence = CSequence(packed, order, tokens, known)
    (logits,) = decode(packed, [sequence])
    text = torch.tensor([list(sequence.tokens)])
    with torch.no_grad():
        full = model(text, order).logits[0, sequence.ends[0] :]
    limit = 1e-4 * float(full.abs().max())
    torch.testing.assert_close(logits, full, rtol=0, atol=limit)
    drawn = text[0, order.position.flatten()[sequence.ends[0] :]]
    free = ~torch.tensor(known)[order.position.flatten()[sequence.ends[0] :]]
    assert torch.equal(drawn[free], logits.argmax(-1)[free])
    assert all(sequence.tokens[at] == tokens[at] for at in range(len(tokens)) if known[at])
    logp = torch.tensor(list(sequence.logp))[order.position.flatten()[sequence.ends[0] :]]
    expected = logits.double().log_softmax(-1).gather(1, drawn[:, None])[:, 0]
    torch.testing.assert_close(logp.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("query", ["prefix", "mean", "shift", "neighbor"])
@pytest.mark.parametrize("kind", ORDERS)
def test_a_sequence_decoded_in_c_has_the_logits_of_a_full_pass(query: str, kind: str) -> None:
    if query == "shift" and kind not in ("left to right", "prompt"):
        return
    g = torch.Generator().manual_seed(3)
    apart = [{}]
    if query == "neighbor":
        apart = [
            {"right_bias": True},
            {"right_offset": 64, "adapter_rank": 3},
            {"right_bias": True, "right_offset": 9},
        ]
    for more in apart:
        model = build(g, query=query, **more)
        packed = fast.pack(model)
        for seed in range(6 // len(apart)):
            check_equals_full(model, packed, kind, seed)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("query", ["prefix", "shift", "neighbor"])
@pytest.mark.parametrize("weights", ["fp32", "int8", "q8", "q4"])
def test_what_real_models_have_is_the_same_in_c(shape: str, query: str, weights: str) -> None:
    g = torch.Generator().manual_seed(5)
    model = build(g, query=query, **SHAPES[shape])
    packed = fast.pack(model, weights, float_rows=True)
    for seed in range(2):
        for kind in ("prompt",) if query == "shift" else ("strided", "infill"):
            check_equals_full(model if weights == "fp32" else packed, packed, kind, seed)


def test_the_bias_to_the_right_acts_on_keys_to_the_right_alone() -> None:
    g = torch.Generator().manual_seed(7)
    model = build(g, query="neighbor", right_bias=True)
    packed = fast.pack(model)

    def written(kind: str) -> torch.Tensor:
        order, tokens, known = task(kind, 40, torch.Generator().manual_seed(1))
        return decode(packed, [CSequence(packed, order, tokens, known)])[0]

    before = {kind: written(kind) for kind in ("left to right", "strided")}
    with torch.no_grad():
        for layer in packed.layers:
            layer.right_bias.sub_(3)
    assert torch.equal(written("left to right"), before["left to right"])
    assert not torch.allclose(written("strided"), before["strided"], atol=1e-3)


def test_adapters_change_no_bit_left_to_right() -> None:
    g = torch.Generator().manual_seed(7)
    model = build(g, query="neighbor", adapter_rank=4)
    packed = fast.pack(model)

    def written(kind: str) -> torch.Tensor:
        order, tokens, known = task(kind, 40, torch.Generator().manual_seed(1))
        return decode(packed, [CSequence(packed, order, tokens, known)])[0]

    kinds = ("left to right", "prompt", "strided", "infill")
    before = {kind: written(kind) for kind in kinds}
    with torch.no_grad():
        for name, weight in packed.named_parameters():
            if name.endswith(".lora_b"):
                weight.mul_(2)
    for kind in kinds[:2]:
        assert torch.equal(written(kind), before[kind])
    for kind in kinds[2:]:
        assert not torch.allclose(written(kind), before[kind], atol=1e-3)


@pytest.mark.parametrize("weights", ["fp32", "int8", "bf16", "q8", "q4"])
@pytest.mark.parametrize("query", ["prefix", "shift", "neighbor"])
def test_a_sequence_is_the_same_alone_and_in_any_batch_to_the_last_bit(
    weights: str, query: str
) -> None:
    g = torch.Generator().manual_seed(11)
    apart = (
        {"right_bias": True, "right_offset": 16, "adapter_rank": 5} if query == "neighbor" else {}
    )
    model = build(g, query=query, n_heads=4, n_kv_heads=2, d_head=16, **apart)
    packed = fast.pack(model, weights)
    kinds = ("left to right", "prompt") * 4 if query == "shift" else ORDERS
    tasks = [task(kind, 20 + 7 * i, g) for i, kind in enumerate(kinds)]
    sampling = (0.8, 0.9, 0.0, 0, 1.3)
    alone = []
    for i, one in enumerate(tasks):
        sequence = CSequence(packed, *one, sampling, seed=i)
        alone.append((decode(packed, [sequence])[0], list(sequence.tokens)))
    together = [CSequence(packed, *one, sampling, seed=i) for i, one in enumerate(tasks)]
    with torch.no_grad():
        first = step(packed, together[:2])  # which are then further than the others
    logits = decode(packed, together)
    logits[:2] = [torch.cat(pair) for pair in zip(first, logits[:2], strict=True)]
    for (expected, tokens), found, sequence in zip(alone, logits, together, strict=True):
        assert torch.equal(expected, found) and tokens == list(sequence.tokens)


@pytest.mark.parametrize("weights", ["fp32", "q8", "q4"])
@pytest.mark.parametrize("query", ["prefix", "neighbor"])
def test_the_number_of_threads_changes_no_bit(query: str, weights: str) -> None:
    g = torch.Generator().manual_seed(17)
    packed = fast.pack(build(g, query=query, n_heads=4, n_kv_heads=2, d_head=8), weights)
    tasks = [task(kind, 50, g) for kind in ("strided", "infill", "random")]
    library, found = native.library(), []
    assert hasattr(library, "omp_set_num_threads")
    before = library.omp_get_max_threads()
    for threads in (1, 3):
        library.omp_set_num_threads(threads)
        sequences = [CSequence(packed, *one) for one in tasks]
        found.append(decode(packed, sequences))
    library.omp_set_num_threads(before)
    assert len(os.listdir("/proc/self/task")) >= 3, "no thread was started"
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("shape", ["plain", "grouped", "wide heads", "qwen"])
@pytest.mark.parametrize("query", ["prefix", "neighbor"])
def test_a_cache_in_bf16_is_the_cache_rounded(
    shape: str, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit where rows start from the same numbers; later up to the rounding of numbers that
    lie near the middle between two."""
    g = torch.Generator().manual_seed(13)
    model = build(g, query=query, **SHAPES[shape])
    packed = fast.pack(model)
    made = task("infill", 60, g)
    one, half = (CSequence(packed, *made, cache=kind) for kind in (torch.float32, torch.bfloat16))
    (exact,), (logits,) = decode(packed, [one]), decode(packed, [half])
    filled = slice(0, 1 + half.ends[0])
    for side in ("keys", "values"):
        stored, numbers = getattr(half, side)[0][filled], getattr(one, side)[0][filled]
        assert torch.equal(stored, numbers.bfloat16())
    keys_values = Layer.keys_values

    def rounded(self: Layer, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        key, value = keys_values(self, *inputs)
        return key.bfloat16().float(), value.bfloat16().float()

    monkeypatch.setattr(Layer, "keys_values", rounded)
    order, text = made[0], torch.tensor([list(half.tokens)])
    with torch.no_grad():
        full = model(text, order).logits[0, half.ends[0] :]
    near, far = ((logits - other).abs().mean() for other in (full, exact))
    assert float(near) < 5e-4 * float(full.abs().max())
    assert float(far) > 2 * float(near) or list(one.tokens) != list(half.tokens)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.5, 2),
    st.sampled_from([(1.0,), (0.0,), (0.7,), (1.0, 0.9), (1.5, 0.0, 0.1), (0.9, 0.0, 0.0, 4)]),
    st.integers(0, 999),
)
def test_the_penalty_in_c_is_the_penalty_in_torch(penalty: float, how: tuple, seed: int) -> None:
    """Step by step: what torch would draw from the logits that C returns, with the tokens that the
    sequence had then."""
    g = torch.Generator().manual_seed(seed % 10)
    packed = fast.pack(build(g, query="neighbor", n_layers=1))
    order, tokens, known = task("infill", 30, torch.Generator().manual_seed(seed))
    how = (*how, 0.0, 0.0, 0)[:4] if len(how) < 4 else how
    how = (how[0], how[1], how[2], int(how[3]))
    sequence = CSequence(packed, order, tokens, known, (*how, penalty), seed=seed)
    sampling = Sampling(how[0], how[3] or None, how[1] or None, how[2] or None, penalty)
    position = order.position.flatten().tolist()
    while not sequence.done:
        seen = torch.tensor(list(sequence.seen)).bool()[None]
        start, count = sequence.ends[sequence.struct.step], sequence.wanted
        with torch.no_grad():
            (logits,) = step(packed, [sequence])
        scores = penalised(logits.double()[None], sampling, seen)[0]
        for k in range(count):
            token = sequence.tokens[position[start + k]]
            assert sequence.seen[token]
            if how[0] == 0:
                assert token == int(scores[k].argmax())
                continue
            total = weights(scores[k], sampling).cumsum(-1)
            target = sequence.uniform[start + k] * float(total[-1])
            below = float(total[token - 1]) if token else 0.0
            assert below - 1e-12 <= target <= float(total[token]) + 1e-12
