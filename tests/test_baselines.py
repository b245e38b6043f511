"""Each rival's bound is a bound of its own sampler's process, by enumeration of all texts; and its
sampler follows that process."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from armd.baselines.absorbing import Absorbing, dense_rank
from armd.baselines.baseline import BaselineConfig
from armd.baselines.d3pm import D3pm
from armd.baselines.mdlm import Mdlm
from armd.baselines.radd import Radd, expected_calls
from armd.baselines.trunk import Trunk
from armd.errors import ArmdError

V, N, T = 3, 3, 4
TEXTS = torch.tensor(list(itertools.product(range(V), repeat=N)))
MASKED = [Mdlm, Radd, D3pm]


def made(kind: type[Trunk], seed: int = 0, *, blind: bool = False, **changes) -> Trunk:
    """A small model whose weights are large enough to have opinions; a blind one sees no context,
    so that its tokens are independent and no order is better than another."""
    options = {"vocab_size": V, "d_model": 16, "n_layers": 2, "n_heads": 2, "max_length": 16}
    options |= {"dropout": 0.0, "diffusion_steps": T, **changes}
    model = kind(BaselineConfig(**options)).eval().double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.2 if "embedding" in name else 0.5
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype) * spread
            weight.copy_(1 + noise if "norm" in name else noise)
            if blind and (".out." in name or "time_code" in name):
                weight.zero_()
    return model.requires_grad_(False)


def log_probs(model: Trunk, noisy: Tensor, time: float) -> Tensor:
    """(rows, n, vocabulary) of a text with masks."""
    times = torch.full((len(noisy),), time, dtype=torch.float64)
    return (model.hidden(noisy, time=times) @ model.head_matrix().mT).log_softmax(-1)


def log_p_given_steps(model: Trunk, texts: Tensor, when: tuple[int, ...], steps: int) -> Tensor:
    """log p of each text if token i appears in step when[i] of `steps`."""
    step, total = torch.tensor(when), torch.zeros(len(texts), dtype=torch.float64)
    for now in sorted(set(when)):
        noisy = texts.masked_fill(step >= now, model.mask_id)
        each = log_probs(model, noisy, 1 - now / steps).gather(-1, texts[..., None])[..., 0]
        total += each[:, step == now].sum(1)
    return total


def over_steps(model: Trunk, texts: Tensor, steps: int) -> Tensor:
    """log p of each text given when its tokens appear, for every possibility: all are as likely."""
    every = itertools.product(range(steps), repeat=texts.shape[1])
    return torch.stack([log_p_given_steps(model, texts, when, steps) for when in every])


def over_orders(model: Trunk, texts: Tensor) -> Tensor:
    """The same in continuous time, where no two tokens appear at once: every order."""
    n = texts.shape[1]
    return torch.stack(
        [log_p_given_steps(model, texts, when, n) for when in itertools.permutations(range(n))]
    )


def mean_exp(log_p: Tensor) -> Tensor:
    return log_p.logsumexp(0) - math.log(len(log_p))


def d3pm_bound(model: Trunk, texts: Tensor) -> Tensor:
    """The ELBO written out: every step, every mask."""
    total = torch.zeros(len(texts), dtype=torch.float64)
    for t, mask in itertools.product(range(1, T + 1), itertools.product((False, True), repeat=N)):
        masked = torch.tensor(mask)
        chance = math.prod(t / T if m else 1 - t / T for m in mask)
        noisy = texts.masked_fill(masked, model.mask_id)
        each = log_probs(model, noisy, t / T).gather(-1, texts[..., None])[..., 0]
        total -= chance / t * (each * masked).sum(1)
    return total


def bound_and_exact(model: Trunk, texts: Tensor) -> tuple[Tensor, Tensor]:
    if isinstance(model, D3pm):
        return d3pm_bound(model, texts), -mean_exp(over_steps(model, texts, T))
    log_p = over_orders(model, texts)
    return -log_p.mean(0), -mean_exp(log_p)


def drawn_bounds(model: Trunk, texts: Tensor, rows: int = 600, seed: int = 1) -> Tensor:
    """(texts, rows) draws of the model's own bound."""
    generator = torch.Generator().manual_seed(seed)
    tokens = texts.repeat_interleave(rows, 0)
    return model.nll(tokens, torch.ones_like(tokens, dtype=torch.bool), generator).view(-1, rows)


def assert_mean(draws: Tensor, expected: Tensor, sigmas: float = 5.0) -> None:
    error = draws.std(1) / draws.shape[1] ** 0.5
    assert ((draws.mean(1) - expected).abs() <= sigmas * error + 1e-9).all()


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


def assert_follows(tokens: Tensor, log_p: Tensor) -> None:
    """Chi-square of draws against the probabilities of all texts."""
    index = (tokens * V ** torch.arange(N - 1, -1, -1)).sum(1)
    seen, expected = torch.bincount(index, minlength=len(TEXTS)), log_p.exp() * len(tokens)
    enough = expected > 5
    chi = ((seen - expected)[enough] ** 2 / expected[enough]).sum()
    freedom = int(enough.sum())
    assert freedom > 8 and chi < freedom + 5 * (2 * freedom) ** 0.5


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
    if not isinstance(model, D3pm):  # which adds its auxiliary loss
        assert torch.allclose(loss, expected)
        ours = torch.autograd.grad(loss, model.embedding.weight)[0]
        assert torch.allclose(ours, torch.autograd.grad(expected, model.embedding.weight)[0])
    else:
        assert expected < loss


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
