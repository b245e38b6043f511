"""Elementwise parts of a layer in few passes over memory, with their gradients written out.

On a CPU these passes, not the products between them, decide how close a step comes to the peak.
Elsewhere the plain forms are left to the device's own kernels and to torch.compile.
"""

from math import sqrt
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .shapes import Float, Int, Tensor


class _SwiGlu(torch.autograd.Function):
    """Keeps its input alone, and writes both halves of its gradient in place."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # type: ignore[override]
        (gate_up,), (grad,) = ctx.saved_tensors, grads
        gate, up = gate_up.chunk(2, -1)
        out = torch.empty_like(gate_up)
        d_gate, d_up = out.chunk(2, -1)
        torch.mul(grad, F.silu(gate), out=d_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=d_gate)
        return out


def swiglu(gate_up: Float[Tensor, "*b f2"]) -> Float[Tensor, "*b f"]:
    """silu(gate) * up, the two halves side by side."""
    if gate_up.device.type == "cpu" and torch.is_grad_enabled():
        return _SwiGlu.apply(gate_up)
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        scale = square.div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return torch.mul(x, scale).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (x, weight, scale), (grad,) = ctx.saved_tensors, grads
        inner = grad * weight
        along = torch.linalg.vecdot(inner, x)[..., None].mul_(scale**3).div_(-x.shape[-1])
        d_weight = torch.mul(x, scale).mul_(grad).flatten(0, -2).sum(0)
        return inner.mul_(scale).addcmul_(x, along), d_weight, None


class RmsNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * weight."""

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        if x.device.type == "cpu" and x.dtype == self.weight.dtype and torch.is_grad_enabled():
            return _RmsNorm.apply(x, self.weight, self.eps)
        return super().forward(x)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(places)
        ctx.scale = scale
        return without(x, places, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (places,), (grad,) = ctx.saved_tensors, grads
        return without(grad, places, ctx.scale), None, None


def without(x: Tensor, places: Tensor, scale: float) -> Tensor:
    """x times scale, but 0 at these places of it."""
    out = torch.mul(x, scale).contiguous()
    out.view(-1).index_fill_(0, places, 0)
    return out


def dropped_places(count: int, p: float) -> Int[Tensor, "n"]:
    """Where, among `count` numbers that are each dropped with probability p, the dropped ones are:
    the gaps between them are geometric, so few draws find all."""
    last, found = -1, []
    while last < count:
        expected = (count - last) * p
        gaps = torch.empty(int(expected + 6 * sqrt(expected)) + 8, dtype=torch.int64)
        found.append(gaps.geometric_(p).cumsum(0).add_(last))
        last = int(found[-1][-1])
    places = torch.cat(found)
    return places[: int(torch.searchsorted(places, count))]


class Dropout(nn.Dropout):
    """As torch's, which on a CPU draws a number for each place, one after the other."""

    def forward(self, input: Tensor) -> Tensor:
        here = input.device.type == "cpu" and not torch.compiler.is_compiling()
        if here and self.training and 0 < self.p < 1:
            return _Dropout.apply(input, dropped_places(input.numel(), self.p), 1 / (1 - self.p))
        return super().forward(input)


def apply_rope(
    x: Float[Tensor, "b n h e"], rope: Float[Tensor, "#b #n half 2"]
) -> Float[Tensor, "b n h e"]:
    """Rotate each pair of channels; scores then depend on the distance of true positions alone."""
    pairs = x.unflatten(-1, (-1, 2))
    whole = x.dtype in (torch.float32, torch.float64)
    if x.device.type == "cpu" and whole and x.dtype == rope.dtype:
        # a rotation is one complex product
        rotated = torch.view_as_complex(pairs) * torch.view_as_complex(rope)[:, :, None]
        return torch.view_as_real(rotated).flatten(-2)
    cos, sin = rope.to(x.dtype)[:, :, None].unbind(-1)
    a, b = pairs.unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
