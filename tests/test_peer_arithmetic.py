"""The peers' losses of a given batch, noise draw and logits, written anew in numpy from their
papers and code: sigma and its rate, scores, orders. Ours must give the same numbers."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from armd.baselines import bd3lm, masked_diffusion, mdlm, radd, sedd
from armd.baselines.configuration import BaselineConfig
from armd.baselines.denoiser import Trunk

V, ROWS, N, BLOCK = 7, 3, 8, 4
SOURCE = np.random.default_rng(5)
TOKENS = SOURCE.integers(V, size=(ROWS, N))
LOGITS = SOURCE.normal(size=(ROWS, N, V)) * 2
LEVEL = np.array([0.62, 0.11, 0.87])
LOT = SOURCE.random((ROWS, N))
OTHER = SOURCE.random((ROWS, N))
CLOSE = {"rel": 1e-6, "abs": 0}


def given(kind: type[Trunk], monkeypatch: pytest.MonkeyPatch, level=LEVEL, lots=(LOT,), **config):
    """Our model with these draws for its noise, and these logits for its network's."""
    draws: Iterator[np.ndarray] = iter(lots)
    for module in (mdlm, masked_diffusion, radd, sedd):
        for name in ("uniforms", "stratified"):
            if hasattr(module, name):
                take = (lambda *_, **__: torch.tensor(level)) if name == "stratified" else None
                take = take or (lambda *_, **__: torch.tensor(next(draws)))
                monkeypatch.setattr(module, name, take)
    sizes = {"vocab_size": V, "d_model": V + 1, "n_heads": 1, "n_layers": 1, "max_length": N}
    model = kind(BaselineConfig(**sizes, **config)).double().eval()
    said = torch.tensor(LOGITS)
    monkeypatch.setattr(model, "hidden", lambda *_, **__: said)
    if isinstance(model, bd3lm.Bd3lm):
        monkeypatch.setattr(model, "denoise", lambda *_, **__: said)
    monkeypatch.setattr(model, "head_matrix", lambda: torch.eye(V, dtype=torch.float64))
    return model


def ours(model: Trunk) -> list[float]:
    tokens = torch.tensor(TOKENS)
    found: Tensor = model.nll(tokens, torch.ones_like(tokens, dtype=torch.bool))
    return found.tolist()


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def cross_entropy() -> np.ndarray:
    return -np.take_along_axis(log_softmax(LOGITS), TOKENS[..., None], -1)[..., 0]


def log_linear(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The noise so far, sigma, and its rate; a share 1 - exp(-sigma) of the tokens is moved."""
    return -np.log1p(-t), 1 / (1 - t)


def test_mdlm(monkeypatch: pytest.MonkeyPatch) -> None:
    """-log p of masked tokens times sigma' / (exp(sigma) - 1)."""
    t = 1 - LEVEL
    sigma, rate = log_linear(t)
    moved = (1 - np.exp(-sigma))[:, None] > LOT
    expected = (moved * cross_entropy() * (rate / np.expm1(sigma))[:, None]).sum(1)
    assert ours(given(mdlm.Mdlm, monkeypatch)) == pytest.approx(expected.tolist(), **CLOSE)


def test_sedd_absorb(monkeypatch: pytest.MonkeyPatch) -> None:
    """The score entropy of masked tokens: sum of scores, less the true ratio times the log of the
    score at the true token, and the constant that makes it 0 at the truth. The network's output is
    scaled by the noise and the size of the vocabulary."""
    t = 1 - LEVEL
    sigma, rate = log_linear(t)
    grown = np.expm1(sigma)[:, None]
    log_score = LOGITS - np.log(grown)[..., None] - np.log(V)
    ratio = 1 / grown
    positive = np.exp(log_score).sum(-1)
    negative = ratio * np.take_along_axis(log_score, TOKENS[..., None], -1)[..., 0]
    constant = ratio * (np.log(ratio) - 1)
    moved = (1 - np.exp(-sigma))[:, None] > LOT
    expected = rate * (moved * (positive - negative + constant)).sum(1)
    assert ours(given(sedd.SeddAbsorb, monkeypatch)) == pytest.approx(expected.tolist(), **CLOSE)


def test_sedd_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with noise that writes any token, every y but the token itself counted by 1 / V."""
    model = given(sedd.SeddUniform, monkeypatch, lots=(LOT, OTHER))
    end = model.first_time
    t = end * (1 - LEVEL)
    sigma, rate = log_linear(t)
    noisy = np.where((1 - np.exp(-sigma))[:, None] > LOT, np.floor(OTHER * V).astype(int), TOKENS)
    expected = np.zeros(ROWS)
    for row, place in np.ndindex(ROWS, N):
        now, clean, grown = noisy[row, place], TOKENS[row, place], np.exp(-sigma[row])
        p = np.full(V, (1 - grown) / V)  # of each token at this time, given the true one
        p[clean] += grown
        for y in range(V):
            if y != now:
                s, r = np.exp(LOGITS[row, place, y]), p[y] / p[now]
                expected[row] += rate[row] / V * (s - r * np.log(s) + r * (np.log(r) - 1))
    last = np.full(V, end / V)
    last[0] += 1 - end
    start = N * (last * np.log(last * V)).sum()  # from uniform noise
    assert ours(model) == pytest.approx((end * expected + start).tolist(), **CLOSE)


def test_radd(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an any-order model: an order, a place in it, the mean over what comes from there on, times
    n. Orders go from the largest lot down, so that what is left there has the smallest."""
    expected = []
    for row in range(ROWS):
        order = np.argsort(-LOT[row])
        first = N - int(LEVEL[row] * N) - 1  # uniform in 0..n-1
        left = order[first:]
        expected.append(N * cross_entropy()[row, left].mean())
    assert ours(given(radd.Radd, monkeypatch)) == pytest.approx(expected, **CLOSE)


def test_bd3lm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum over blocks of each block's own bound, with its own draw."""
    blocks = ROWS * N // BLOCK
    level = np.linspace(0.05, 0.97, blocks)
    model = given(bd3lm.Bd3lm, monkeypatch, level, (LOT.reshape(blocks, BLOCK),), block_size=BLOCK)
    expected = np.zeros(ROWS)
    for row, block in np.ndindex(ROWS, N // BLOCK):
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        masked = int(level[row * N // BLOCK + block] * BLOCK) + 1
        chosen = np.argsort(LOT[row, part])[:masked]
        expected[row] += BLOCK * cross_entropy()[row, part][chosen].mean()
    assert ours(model) == pytest.approx(expected.tolist(), **CLOSE)


def test_bd3lm_draws_are_the_peers_integral(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a block has a time t, its tokens are masked with probability t and weigh 1 / t. For any
    set of masked tokens the integral over t is the weight that ours has in all of its draws."""
    subsets = [np.array([k >> i & 1 for i in range(BLOCK)], bool) for k in range(1, 1 << BLOCK)]
    nodes, share = np.polynomial.legendre.leggauss(20)
    time, share = (nodes + 1) / 2, share / 2
    theirs = [(share * time ** (m.sum() - 1) * (1 - time) ** (~m).sum()).sum() for m in subsets]
    found = dict.fromkeys((tuple(m.tolist()) for m in subsets), 0.0)
    orders = torch.tensor(list(np.ndindex(*[BLOCK] * BLOCK))).double()
    orders = orders[(orders.sort(1).values.diff() != 0).all(1)]  # every order of the lots
    for level in (0.1, 0.3, 0.6, 0.9):  # every number of masked tokens
        monkeypatch.setattr(radd, "stratified", lambda n, level=level, **_: torch.full((n,), level))
        monkeypatch.setattr(masked_diffusion, "uniforms", lambda *_, **__: orders / BLOCK)
        every = torch.ones(len(orders), BLOCK, dtype=torch.bool)
        masked, weight = radd.mask_any_number(every, None)
        for row, w in zip(masked.tolist(), weight[:, 0].tolist(), strict=True):
            found[tuple(row)] += w / (BLOCK * len(orders))
    assert list(found.values()) == pytest.approx(theirs, **CLOSE)
