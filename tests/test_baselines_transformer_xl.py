"""Transformer-XL: memory stands for the text before a segment, and positions are distances."""

import pytest
import torch
from small_diffusion import TEXTS, N, V, assert_follows, made
from torch import Tensor

from armd.baselines.transformer_xl import TransformerXl, sinusoids
from armd.errors import ArmdError


def model_of(segment: int, memory: int, **changes) -> TransformerXl:
    return made(TransformerXl, segment=segment, memory=memory, **changes)


def some_tokens(rows: int = 3, n: int = 16) -> Tensor:
    return torch.randint(V, (rows, n), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("segment", [1, 3, 4, 15])
def test_segments_with_enough_memory_are_one_long_pass(segment: int) -> None:
    tokens = some_tokens()
    whole = model_of(16, 0).log_probs(tokens)
    assert torch.allclose(model_of(segment, 16).log_probs(tokens), whole, atol=1e-12)
    assert not torch.allclose(model_of(segment, 1).log_probs(tokens), whole, atol=1e-3)


@pytest.mark.parametrize("segment, memory", [(2, 1), (1, 2), (3, 0)])
def test_all_texts_add_up_to_one(segment: int, memory: int) -> None:
    log_p = model_of(segment, memory).log_probs(TEXTS).sum(1)
    assert torch.allclose(log_p.exp().sum(), torch.ones((), dtype=torch.float64))


def test_the_sampler_follows_its_likelihood() -> None:
    model = model_of(2, 1)
    generator = torch.Generator().manual_seed(2)
    drawn = model.sample(batch=6000, length=N, steps=1, generator=generator)
    assert drawn.calls == N
    assert_follows(drawn.tokens, model.log_probs(TEXTS).sum(1))


def test_only_distances_count() -> None:
    """Without memory two segments with the same tokens, after the same token, are the same."""
    tokens = some_tokens(2, 4).repeat(1, 4)
    found = model_of(4, 0).log_probs(tokens).view(2, 4, 4)
    assert torch.allclose(found[:, 1], found[:, 2]) and torch.allclose(found[:, 1], found[:, 3])
    assert not torch.allclose(found[:, 0], found[:, 1])  # which begins with BOS


def test_no_token_sees_itself_or_later_ones() -> None:
    model, tokens = model_of(3, 4), some_tokens()
    before = model.log_probs(tokens)
    for place in (0, 5, 11):
        later = tokens.clone()
        later[:, place:] = (later[:, place:] + 1) % V
        assert torch.equal(model.log_probs(later)[:, :place], before[:, :place])


def test_how_far_memory_reaches() -> None:
    """Through each layer a row hears of at most `memory` rows before its segment."""
    model, tokens = model_of(2, 2), some_tokens()
    other = tokens.clone()
    other[:, 3] = (other[:, 3] + 1) % V
    changed = (model.log_probs(other) != model.log_probs(tokens)).any(0)
    # token 3 is in row 4, of the segment 4, 5; two layers carry it two segments on, and no further
    assert changed.nonzero()[:, 0].tolist() == [3, 4, 5, 6, 7, 8, 9]


def test_no_gradient_goes_back_into_memory() -> None:
    model = model_of(2, 16).requires_grad_(True)
    rows = torch.randn(1, 6, 16, dtype=torch.float64, requires_grad=True)
    memory, final = model.nothing_remembered(1), []
    for part in rows.split(2, 1):
        out, memory = model.segment(part, memory)
        final.append(out)
    (grad,) = torch.autograd.grad(final[-1].sum(), rows, retain_graph=True)
    assert bool((grad[:, :4] == 0).all()) and bool((grad[:, 4:] != 0).any())


def test_training_minimises_the_likelihood_of_scored_tokens() -> None:
    model = model_of(3, 3).requires_grad_(True).train()
    tokens, scored = some_tokens(), torch.ones(3, 16, dtype=torch.bool)
    scored[1, 5:] = False
    loss = model(tokens, labels=tokens.masked_fill(~scored, -100)).loss
    expected = model.nll(tokens, scored).sum() / scored.sum()
    assert torch.allclose(loss, expected)
    loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
    other = tokens.where(scored, (tokens + 1) % V)
    assert torch.allclose(model.nll(other, scored), model.nll(tokens, scored))


def test_a_segment_of_nothing_names_the_fix() -> None:
    with pytest.raises(ArmdError, match="segment 0 must be at least 1"):
        model_of(0, 4)


def test_scores_are_those_of_the_paper() -> None:
    """One head's attention written out, row by row, in the paper's four terms."""
    model = model_of(2, 2, n_layers=1, n_heads=1)
    layer, generator = model.layers[0], torch.Generator().manual_seed(1)
    memory, rows = (torch.randn(1, 2, 16, generator=generator).double() for _ in range(2))
    code = sinusoids(4, 16, like=rows)
    x = layer.attention_norm(torch.cat([memory, rows], 1))[0]
    keys, values = (x @ layer.key_value.weight.T).chunk(2, -1)
    seen = []
    for i in (2, 3):
        q = layer.query.weight @ x[i]
        score = []
        for j in range(i + 1):
            r = layer.distance.weight @ code[i - j]
            u, v = layer.content_bias[0], layer.distance_bias[0]
            score.append((q @ keys[j] + q @ r + u @ keys[j] + v @ r) / 16**0.5)
        seen.append(torch.stack(score).softmax(0) @ values[: i + 1])
    expected = layer.project_and_mlp(rows, torch.stack(seen)[None, :, None])
    assert torch.allclose(layer(rows, memory, code), expected)
