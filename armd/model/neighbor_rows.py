"""The rows of query="neighbor": context rows, and the query rows that are none of them.

While only adapters of rows out of order learn, the rows at the start of an order that are in order,
such as those of a prompt, depend on nothing that learns. They can be read once, without gradients,
and the others go on from their keys and values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .adapted_linear import out_of_order
from .attention_inputs import AttentionInputs, block_limits, context_position
from .configuration_armd import ArmdConfig
from .layers import KeyValue, attention, rope_cos_sin
from .neighbor import ExtraRows, NeighborInputs, extra_rows, neighbor_inputs
from .order import Order
from .shapes import Float, Int, Tensor


@dataclass(frozen=True)
class InOrderRows:
    """The first context rows of an order, all in order, as the layers have made them."""

    final: Float[Tensor, "b k d"]
    key_values: Sequence[KeyValue]
    """Of each layer."""


def count_in_order(order: Order) -> int:
    """How many context rows at the start of an order are in order, in all texts of a batch: what
    they hold and see are the first tokens, from left to right."""
    at = context_position(order)
    in_order = 1 - out_of_order(at, at, block_limits(order)[1])[..., 0]
    own = (at == torch.arange(at.shape[1], device=at.device)).to(in_order.dtype)
    return int((in_order * own).cumprod(1).sum(1).min())


class NeighborRows:
    """The part of ArmdLM that makes these rows."""

    config: ArmdConfig
    gradient_checkpointing: bool
    training: bool
    layers: Any
    norm: Any
    unknown: nn.Parameter
    gate: nn.Parameter
    query_norm: nn.Module
    position_code: nn.Module
    context_rows: Any
    position_codes: Any
    first_query_from_sums: Any

    @torch.no_grad()
    def read_in_order(self, tokens: Int[Tensor, "b n"], count: int) -> InOrderRows:
        """The first `count` context rows, BOS and the tokens that follow it, from left to right."""
        rows = self.context_rows(tokens[:, : count - 1])
        at = torch.arange(count, device=tokens.device)[None]
        rope, kept = rope_cos_sin(at, self.config).to(rows.dtype), []
        for layer in self.layers:
            normed = layer.attention_norm(rows)
            kept.append(layer.keys_values(normed, rope))
            rows = layer.project_and_mlp(rows, attention(layer.queries(normed, rope), *kept[-1]))
        return InOrderRows(self.norm(rows), kept)

    def through_layers(
        self,
        rows: Tensor,
        inputs: AttentionInputs | NeighborInputs,
        read: InOrderRows | None = None,
    ) -> Tensor:
        for k, layer in enumerate(self.layers):
            if read is not None:
                inputs = replace(inputs, before=read.key_values[k])
            if self.gradient_checkpointing and self.training:
                rows = checkpoint(layer, rows, inputs, use_reentrant=False)
            else:
                rows = layer(rows, inputs)
        return rows

    def hidden_of_neighbors(
        self, context: Tensor, order: Order, read: InOrderRows | None = None
    ) -> Float[Tensor, "b n d"]:
        """The final rows where most query rows are context rows; `read`: the first of these."""
        (batch, n, d), extra = context.shape, extra_rows(order)
        count = 0 if read is None else read.final.shape[1]
        inputs = neighbor_inputs(order, extra, self.config, batch, context.dtype, read=count)
        rest = context[:, count:]
        if extra is None:
            rows = self.norm(self.through_layers(self._with_all_weights(rest), inputs, read))
            return rows if read is None else torch.cat([read.final, rows], 1)
        first = self._first_extra(context, order, extra)
        rows = torch.cat([rest.flatten(0, 1), first.flatten(0, 1)])[None]
        rows = self.norm(self.through_layers(rows, inputs, read))
        if read is not None:
            own, more = rows[0].split([batch * (n - count), batch * extra.count])
            own = torch.cat([read.final, own.view(batch, n - count, d)], 1)
            rows = torch.cat([own.flatten(0, 1), more])[None]
        return rows[0, extra.source_in_batch(batch)].view(batch, n, d)

    def _first_extra(self, context: Tensor, order: Order, extra: ExtraRows) -> Tensor:
        """The first rows of the extra queries: the token before, or what stands for it."""
        batch, n, d = context.shape
        index = extra.neighbor.expand(batch, -1)[..., None].expand(-1, -1, d)
        near = context.gather(1, index)
        if bool(extra.known.all()):
            return self._with_all_weights(near)
        code = self.position_codes(n + 1).to(context.dtype)
        weight = code[extra.position + 1] @ code[context_position(order)].mT
        seen = torch.arange(n, device=context.device) < extra.limit[..., None]
        unknown = self.first_query_from_sums((weight * seen) @ context, extra.limit)
        return torch.where(extra.known[..., None], near, unknown)

    def _with_all_weights(self, rows: Tensor) -> Tensor:
        """The same rows. In training those weights that an order has no use for get a gradient of
        zero: processes that train together must have gradients of the same weights."""
        if not (self.training and torch.is_grad_enabled()):
            return rows
        parts = [self.unknown, self.gate, *self.query_norm.parameters()]
        parts += self.position_code.parameters()
        return rows + 0 * torch.stack([part.sum() for part in parts]).sum().to(rows.dtype)
