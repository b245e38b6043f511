"""Each baseline's bound is a bound of its own sampler's process, by enumeration of all texts; and
its sampler follows that process."""

import pytest
import torch
from small_diffusion import (
    TEXTS,
    N,
    T,
    V,
    assert_follows,
    assert_mean,
    bound_and_exact,
    drawn_bounds,
    log_p_given_steps,
    made,
    mean_exp,
    over_steps,
)

from armd.baselines.d3pm import D3pm
from armd.baselines.denoiser import Trunk
from armd.baselines.masked_diffusion import Absorbing, dense_rank
from armd.baselines.mdlm import Mdlm
from armd.baselines.radd import Radd, expected_calls
from armd.errors import ArmdError

MASKED = [Mdlm, Radd, D3pm]


@pytest.mark.parametrize("kind", MASKED)
def test_bound_is_a_bound(kind: type[Trunk]) -> None:
    model = made(kind)
    bound, exact = bound_and_exact(model, TEXTS)
    assert (bound >= exact - 1e-9).all() and (bound > exact + 1e-3).any()
    assert torch.allclose((-exact).exp().sum(), torch.ones((), dtype=torch.float64))
    assert_mean(drawn_bounds(model, TEXTS), bound)


@pytest.mark.parametrize("kind", MASKED)
def test_bound_is_exact_where_order_does_not_matter(kind: type[Trunk]) -> None:
    model = made(kind, blind=True)
    bound, exact = bound_and_exact(model, TEXTS)
    assert torch.allclose(bound, exact, atol=1e-9)
    assert_mean(drawn_bounds(model, TEXTS), exact)


@pytest.mark.parametrize("kind", [Mdlm, Radd])
def test_bound_of_a_single_token_is_exact(kind: type[Trunk]) -> None:
    model, texts = made(kind), TEXTS[:V, -1:]
    assert_mean(drawn_bounds(model, texts), -log_p_given_steps(model, texts, (0,), 1))


def test_radd_varies_less_than_mdlm() -> None:
    mdlm, radd = (drawn_bounds(made(kind), TEXTS).var(1).mean() for kind in (Mdlm, Radd))
    assert radd < 0.8 * mdlm


@pytest.mark.parametrize("kind", MASKED)
def test_sampler_follows_its_process(kind: type[Trunk]) -> None:
    model, generator = made(kind), torch.Generator().manual_seed(2)
    log_p = mean_exp(over_steps(model, TEXTS, T))
    assert torch.allclose(log_p.exp().sum(), torch.ones((), dtype=torch.float64))
    drawn = model.sample(batch=6000, length=N, steps=T, generator=generator)
    assert_follows(drawn.tokens, log_p)


@pytest.mark.parametrize("kind", MASKED)
def test_skipped_steps_change_nothing(kind: type[Absorbing]) -> None:
    model = made(kind)
    options = {"batch": 3, "length": 8, "steps": 12}
    with_skip = model.sample(**options, generator=torch.Generator().manual_seed(3))
    without = model.sample(**options, generator=torch.Generator().manual_seed(3), skip=False)
    assert torch.equal(with_skip.tokens, without.tokens)
    assert with_skip.calls <= 8 and without.calls == 12


def test_calls_are_as_many_as_expected() -> None:
    step = (torch.rand(4000, 8, generator=torch.Generator().manual_seed(4)) * 6).long()
    calls = dense_rank(step).amax(1) + 1
    assert torch.equal(calls[:50], torch.tensor([len(set(row)) for row in step[:50].tolist()]))
    assert abs(float(calls.double().mean()) - expected_calls(8, 6)) < 0.05


@pytest.mark.parametrize("kind", MASKED)
def test_pads_are_never_noised_and_never_matter(kind: type[Trunk]) -> None:
    model = made(kind)
    tokens, scored = TEXTS[5:9].repeat(1, 3), torch.ones(4, 3 * N, dtype=torch.bool)
    scored[:2, 4:] = False
    scored[3] = False
    other = tokens.clone()
    other[~scored] = (tokens[~scored] + 1) % V
    first, second = (
        model.nll(t, scored, torch.Generator().manual_seed(5)) for t in (tokens, other)
    )
    assert torch.equal(first, second) and first[3] == 0
    short = model.hidden(tokens[:2, :4])
    assert torch.allclose(short, model.hidden(tokens[:2], visible=scored[:2])[:, :4])


@pytest.mark.parametrize("kind", MASKED)
def test_training_lowers_the_bound(kind: type[Trunk]) -> None:
    """The objective has the gradient of the mean bound per scored token."""
    model = made(kind).requires_grad_(True)
    tokens, scored = TEXTS.clone(), torch.ones_like(TEXTS, dtype=torch.bool)
    torch.manual_seed(0)
    loss = model(tokens, labels=tokens).loss
    torch.manual_seed(0)
    expected = model.nll(tokens, scored).sum() / tokens.numel()
    assert torch.allclose(loss, expected)
    ours = torch.autograd.grad(loss, model.embedding.weight)[0]
    assert torch.allclose(ours, torch.autograd.grad(expected, model.embedding.weight)[0])
    torch.manual_seed(0)
    training = model.train()(tokens, labels=tokens).loss
    assert training > loss if kind is D3pm else torch.allclose(training, loss)  # the auxiliary loss


@pytest.mark.parametrize("kind", MASKED)
def test_saved_and_loaded_is_the_same(kind: type[Trunk], tmp_path) -> None:
    model = made(kind).float()
    model.save_pretrained(tmp_path)
    again = kind.from_pretrained(tmp_path)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    assert again.config.diffusion_steps == T


def test_too_long_a_text_names_the_fix() -> None:
    model = made(Mdlm)
    with pytest.raises(ArmdError, match="max_length"):
        model.sample(batch=1, length=17, steps=2)
    with pytest.raises(ArmdError, match="steps 0"):
        model.sample(batch=1, length=4, steps=0)


@pytest.mark.parametrize("kind", MASKED)
def test_what_would_change_nothing_is_refused(kind: type[Trunk]) -> None:
    """Such as an attention_mask: padding is told by labels."""
    model = made(kind)
    with pytest.raises(ArmdError, match="takes no attention_mask"):
        model(TEXTS, attention_mask=torch.ones_like(TEXTS))
