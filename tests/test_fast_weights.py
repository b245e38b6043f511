"""Fast weights say what plain ones say: the same products, the same texts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import armd
from armd.errors import ArmdError
from armd.native import library as native
from armd.native import packed as fast
from armd.native.linear import FORMATS, SkinnyLinear

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler here")


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 70), depth=st.integers(1, 40), outputs=st.integers(1, 50))
def test_the_skinny_product_is_the_product(rows: int, depth: int, outputs: int) -> None:
    g = torch.Generator().manual_seed(rows * 10007 + depth * 101 + outputs)
    weight, x = torch.randn(outputs, depth, generator=g), torch.randn(rows, depth, generator=g)
    exact = x.double() @ weight.double().mT
    out = SkinnyLinear(weight)(x)
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)
    rounded = SkinnyLinear(weight, weights="int8")
    stored = rounded.matrix()
    assert ((stored - weight).abs() <= weight.abs().amax(1, keepdim=True) / 127 * 0.5001).all()
    exact = x.double() @ stored.double().mT
    torch.testing.assert_close(rounded(x).double(), exact, rtol=1e-5, atol=1e-5)


def tiny() -> armd.ArmdLM:
    torch.manual_seed(0)
    return armd.ArmdLM(
        armd.ArmdConfig(vocab_size=61, d_model=32, n_layers=4, n_heads=2, max_length=32)
    ).eval()


@pytest.mark.parametrize("weights", ["fp32", "int8", "bf16"])
@pytest.mark.parametrize("streams", [1, 3])
def test_cached_equals_full_with_fast_weights(weights: str, streams: int) -> None:
    model = fast.pack(tiny(), weights)
    steps = list(armd.stream(model, length=20, streams=streams))
    text = torch.zeros(1, 20, dtype=torch.long)
    logp = torch.zeros(1, 20, dtype=torch.float64)
    for step in steps:
        text.scatter_(1, step.position, step.token)
        logp.scatter_(1, step.position, step.logp)
    order = armd.order.strided(20, streams)
    with torch.no_grad():
        full = armd.log_likelihood(model, text, order).double()
    torch.testing.assert_close(logp.gather(1, order.position[None]), full, rtol=0, atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(depth=st.integers(1, 70), weights=st.sampled_from(FORMATS))
def test_a_row_has_the_same_bits_whatever_rows_are_beside_it(depth: int, weights: str) -> None:
    g = torch.Generator().manual_seed(depth)
    linear = SkinnyLinear(torch.randn(50, depth, generator=g), weights=weights)
    x = torch.randn(150, depth, generator=g)
    together = linear(x)
    for start, count in ((0, 1), (3, 2), (7, 3), (20, 4), (40, 5), (60, 6), (50, 13), (30, 70)):
        assert torch.equal(linear(x[start : start + count]), together[start : start + count])


def test_packing_leaves_the_model_as_it_was() -> None:
    model = tiny()
    before = {name: p.clone() for name, p in model.named_parameters()}
    packed = fast.pack(model)
    g = torch.Generator()
    plain_text = armd.generate(model, length=20, streams=2, generator=g.manual_seed(1))
    assert torch.equal(
        plain_text, armd.generate(packed, length=20, streams=2, generator=g.manual_seed(1))
    )
    assert all(
        torch.equal(p, before[name]) and p.requires_grad for name, p in model.named_parameters()
    )
    assert fast.pack(model, "plain") is model


def test_what_cannot_be_packed_is_said() -> None:
    with pytest.raises(ArmdError, match="plain, fp32, int8"):
        fast.pack(tiny(), "fp4")
    with pytest.raises(ArmdError, match="float32 model"):
        fast.pack(tiny().double(), "int8")
    double = tiny().double()
    assert fast.pack(double, "fp32") is double


@pytest.mark.parametrize("weights", ["fp32", "q8"])
@pytest.mark.parametrize("how", ["half", "bfloat16", "double", "meta"])
@pytest.mark.parametrize("head", [16, 12])  # 12: the layers are left to torch
def test_a_packed_model_that_is_cast_is_refused(weights: str, how: str, head: int) -> None:
    """Before its first text or after."""
    sizes = {"vocab_size": 61, "d_model": 2 * head, "n_layers": 2, "n_heads": 2, "max_length": 32}
    for early in (True, False):
        packed = fast.pack(armd.ArmdLM(armd.ArmdConfig(**sizes)).eval(), weights)
        if not early:
            armd.generate(packed, length=8)
        packed.to("meta") if how == "meta" else getattr(packed, how)()
        kinds = ArmdError if head == 16 else (ArmdError, RuntimeError)  # some are torch's
        with pytest.raises(kinds, match="before it is packed" if head == 16 else None):
            armd.generate(packed, length=8)


def test_compiled_layers_write_the_same_text(unchecked: None) -> None:
    model, g = tiny(), torch.Generator()
    wrapped = fast.compiled(model, backend="eager")
    plain_text = armd.generate(model, length=12, streams=3, generator=g.manual_seed(2))
    text = armd.generate(wrapped, length=12, streams=3, generator=g.manual_seed(2))
    assert torch.equal(text, plain_text)


@pytest.mark.parametrize("weights", ["fp32", "q8"])
@pytest.mark.parametrize("harm", ["half", "zero_", "elsewhere"])
def test_what_becomes_of_the_model_changes_nothing_in_a_packed_one(weights: str, harm: str) -> None:
    model = tiny()
    packed = fast.pack(model, weights)

    def written() -> list[float]:
        steps = armd.stream(packed, length=8, generator=torch.Generator().manual_seed(0))
        return [float(step.logp) for step in steps]

    before = written()
    if harm == "half":
        model.half()
    for weight in model.parameters():
        weight.data = torch.zeros_like(weight) if harm == "elsewhere" else weight.data.mul_(0)
    rubbish = [torch.full((32,), float("nan")) for _ in range(2000)]  # where they were before
    assert written() == before and len(rubbish) == 2000
