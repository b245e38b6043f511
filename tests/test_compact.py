"""float32 weights in 28 bits are the weights, and their products have the bits of plain panels."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import armd
from armd.native import compact
from armd.native import library as native
from armd.native import packed as fast
from armd.native.linear import SkinnyLinear

pytestmark = pytest.mark.skipif(
    native.library() is None or not native.library().has_compact(),
    reason="no C compiler here, or a processor for which they are not",
)

ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 40, 96, 97)
SPECIAL = torch.tensor(
    [0.0, -0.0, 1e-42, -1e-45, 1.0, -2.0, 3e38, torch.inf, -torch.inf, torch.nan]
)


def drawn(kind: str, outputs: int, depth: int, g: torch.Generator) -> torch.Tensor:
    weight = torch.randn(outputs, depth, generator=g) * 0.02
    if kind == "spread":  # most are exceptions
        weight *= 10.0 ** (torch.randn(outputs, depth, generator=g) * 4)
    elif kind == "any bits":
        high = torch.randint(-(1 << 31), 1 << 31, (outputs, depth), generator=g)
        weight = high.int().view(torch.float32)
    elif kind == "special":
        where = torch.rand(outputs, depth, generator=g) < 0.2
        chosen = torch.randint(len(SPECIAL), (outputs, depth), generator=g)
        weight = torch.where(where, SPECIAL[chosen], weight)
    elif kind == "zero":
        weight *= 0
    return weight


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.int32)


@pytest.fixture
def any_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "MOST", 1.0)


KINDS = ("usual", "spread", "any bits", "special", "zero")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 70),
    st.integers(1, 40) | st.integers(120, 140) | st.integers(250, 390),
    st.integers(0, 99),
)
def test_packing_and_back_gives_every_bit(kind: str, outputs: int, depth: int, seed: int) -> None:
    weight = drawn(kind, outputs, depth, torch.Generator().manual_seed(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compact, "MOST", 1.0)
        linear = SkinnyLinear(weight, compacted=True)
    assert linear.exceptions is not None
    assert torch.equal(bits(linear.matrix()), bits(weight))


@pytest.mark.parametrize("kind", KINDS[:2] + KINDS[4:])
@pytest.mark.parametrize("shape", [(50, 33), (16, 1), (7, 2), (33, 129), (64, 256), (100, 771)])
def test_products_have_the_bits_of_plain_panels(
    kind: str, shape: tuple[int, int], any_weights: None
) -> None:
    g = torch.Generator().manual_seed(sum(shape))
    weight = drawn(kind, *shape, g)
    plain, packed = SkinnyLinear(weight), SkinnyLinear(weight, compacted=True)
    assert plain.exceptions is None and packed.exceptions is not None
    for rows in ROWS:
        x = torch.randn(rows, shape[1], generator=g)
        assert torch.equal(bits(packed(x)), bits(plain(x)))


@pytest.mark.parametrize("kind", KINDS[2:4])
def test_so_have_products_with_numbers_that_are_not_finite(kind: str, any_weights: None) -> None:
    g = torch.Generator().manual_seed(3)
    weight = drawn(kind, 40, 131, g)
    plain, packed = SkinnyLinear(weight), SkinnyLinear(weight, compacted=True)
    for rows in ROWS:
        x = torch.randn(rows, 131, generator=g)
        expected, out = plain(x), packed(x)
        assert torch.equal(out.isnan(), expected.isnan())
        assert torch.equal(bits(out)[~out.isnan()], bits(expected)[~out.isnan()])


def test_exceptions_of_usual_weights_are_few_and_weights_with_many_stay_plain() -> None:
    g = torch.Generator().manual_seed(0)
    linear = SkinnyLinear(drawn("usual", 640, 640, g), compacted=True)
    assert linear.exceptions is not None and len(linear.exceptions) - 41 < 2e-4 * 640 * 640
    assert linear.panels.nbytes < 0.88 * 4 * 640 * 640
    assert SkinnyLinear(drawn("spread", 640, 640, g), compacted=True).exceptions is None


@pytest.mark.parametrize("query", ["prefix", "neighbor"])
def test_a_model_writes_the_same_bits(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "d_model": 72,
        "n_heads": 3,
        "d_head": 24,
        "n_layers": 3,
        "max_length": 64,
    }
    model = armd.ArmdLM(armd.ArmdConfig(vocab_size=61, query=query, **shape)).eval()
    monkeypatch.setattr(compact, "MOST", 1.0)
    plain = fast.pack(model)
    monkeypatch.setattr(fast, "COMPACT_FROM", 0)
    packed = fast.pack(model)
    assert packed.head.exceptions is not None and plain.head.exceptions is None  # type: ignore[union-attr]
    assert packed.weights == "fp32" and torch.equal(packed.head_matrix(), plain.head_matrix())
    for streams in (1, 3, 8):
        g = torch.Generator()
        steps = [
            list(armd.stream(m, length=40, streams=streams, generator=g.manual_seed(1)))
            for m in (plain, packed)
        ]
        for one, other in zip(*steps, strict=True):
            assert torch.equal(one.token, other.token) and torch.equal(one.logp, other.logp)
