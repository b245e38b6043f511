"""The head: plain cross-entropy, and never more than a chunk of the logits at once."""

import pytest
import torch
from small import case_of
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import armd
from armd.errors import ArmdError
from armd.model import head


class Shapes(TorchDispatchMode):
    """Notes the shape of every tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.seen |= {tuple(t.shape) for t in tree_iter(out) if isinstance(t, torch.Tensor)}
        return out

    def largest(self) -> int:
        return max(torch.Size(shape).numel() for shape in self.seen)


def rows_and_matrix(m: int, v: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(m)
    rows, matrix = (torch.randn(k, 8, generator=generator, dtype=dtype) for k in (m, v))
    target = torch.randint(v, (m,), generator=generator)
    weight = torch.rand(m, generator=generator, dtype=dtype)
    return rows.requires_grad_(), matrix.requires_grad_(), target, weight


@pytest.mark.parametrize("m", [1, 255, 256, 257, 600])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weighted_loss_is_cross_entropy(m: int, dtype: torch.dtype) -> None:
    rows, matrix, target, weight = rows_and_matrix(m, 31, dtype)
    target[::5] = -100
    losses = F.cross_entropy(rows @ matrix.T, target, reduction="none")
    plain = (weight * losses).sum() * 3
    ours = head.weighted_loss(rows, matrix, target, weight) * 3
    tolerance = {"rtol": 1e-5, "atol": 1e-4} if dtype == torch.float32 else {}
    torch.testing.assert_close(ours, plain, **tolerance)
    wanted = torch.autograd.grad(plain, (rows, matrix))
    for mine, other in zip(torch.autograd.grad(ours, (rows, matrix)), wanted, strict=True):
        torch.testing.assert_close(mine, other, **tolerance)
    with torch.no_grad():
        silent = head.weighted_loss(rows, matrix, target, weight) * 3
    torch.testing.assert_close(silent, plain.detach(), **tolerance)


@pytest.mark.parametrize("m", [1, 256, 600])
def test_target_log_probs_is_log_softmax(m: int) -> None:
    rows, matrix, target, weight = rows_and_matrix(m, 31, torch.float64)
    plain = (rows @ matrix.T).log_softmax(1)[torch.arange(m), target]
    ours = head.target_log_probs(rows, matrix, target)
    torch.testing.assert_close(ours, plain)
    wanted = torch.autograd.grad(plain @ weight, (rows, matrix))
    for mine, other in zip(torch.autograd.grad(ours @ weight, (rows, matrix)), wanted, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("name", ["weighted_loss", "target_log_probs"])
@pytest.mark.parametrize("grad", [True, False])
def test_no_more_than_a_chunk_of_the_logits_is_held(name: str, grad: bool) -> None:
    m, v = 4 * head.ROWS + 5, 3000
    rows, matrix, target, weight = rows_and_matrix(m, v, torch.float32)
    arguments = (rows, matrix, target) + ((weight,) if name == "weighted_loss" else ())
    with Shapes() as shapes, torch.set_grad_enabled(grad):
        out = getattr(head, name)(*arguments).sum()
        if grad:
            out.backward()
    assert shapes.largest() <= head.ROWS * v
    with Shapes() as shapes:
        F.cross_entropy(rows @ matrix.T, target)
    assert shapes.largest() == m * v


def test_a_training_step_holds_no_more_than_a_chunk_of_the_logits() -> None:
    n = 600
    config = armd.ArmdConfig(vocab_size=2000, d_model=8, n_layers=2, n_heads=1, max_length=n)
    model, tokens = armd.ArmdLM(config).train(), torch.randint(2000, (1, n))
    with Shapes() as shapes:
        armd.loss(model, tokens, armd.order.random(n)).backward()
    assert shapes.largest() <= head.ROWS * 2000


def pairwise(shapes: Shapes, n: int) -> list[tuple[int, ...]]:
    """Shapes with two dimensions of n or more: masks, scores or weights of all pairs."""
    return [shape for shape in shapes.seen if sum(size >= n for size in shape) > 1]


@pytest.mark.parametrize("query", ["prefix", "mean", "shift"])
def test_blocks_of_one_token_make_no_n_by_n_tensor(query: str) -> None:
    n = 300
    config = armd.ArmdConfig(
        vocab_size=7, d_model=16, n_layers=3, n_heads=2, max_length=n, query=query
    )
    model, tokens = armd.ArmdLM(config).train(), torch.randint(7, (2, n))
    order = armd.order.left_to_right(n) if query == "shift" else armd.order.random(n)
    with Shapes() as shapes:
        armd.loss(model, tokens, order).backward()
    assert not pairwise(shapes, n)
    with Shapes() as shapes:  # and the watcher does see a mask of all pairs where one is made
        torch.ones(n, n).tril() @ torch.ones(n, 1)
    assert pairwise(shapes, n)


def test_labels_of_minus_100_are_not_scored() -> None:
    case = case_of("strided", 9, 1, double=True)
    model, tokens, order = case.model, case.tokens, case.order
    labels = tokens.clone()
    labels[0, 2:5] = labels[1, 8] = -100
    logp = armd.log_likelihood(model, tokens, order)
    scored = labels[:, order.position] != -100
    loss = model(tokens, order=order, labels=labels).loss
    torch.testing.assert_close(loss, -logp[scored].mean())


@pytest.mark.parametrize("label", [-5, -1, 10**6])
def test_a_label_that_is_no_token_is_named(label: int, unchecked: None) -> None:
    case = case_of("strided", 9, 1)
    labels = case.tokens.clone()
    labels[0, 3] = label
    with pytest.raises(ArmdError, match=f"label {label} .*-100"):
        case.model(case.tokens, order=case.order, labels=labels)
