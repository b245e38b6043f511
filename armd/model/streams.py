"""The layers: two streams, the query stream alone, one causal stream, and one with extra rows."""

from collections.abc import Iterable

import torch

from .adapted_linear import taken
from .attention_inputs import AttentionInputs
from .layers import KeyValue, Layer, attention
from .neighbor import NeighborInputs
from .shapes import Float, Tensor


class TwoStreamLayer(Layer):
    """X^l and G^l from X^(l-1) and G^(l-1), with the same weights, keys and values."""

    def forward(
        self, both: Float[Tensor, "2 b n d"], inputs: AttentionInputs
    ) -> Float[Tensor, "2 b n d"]:
        _, batch, n, d = both.shape
        rows = both.view(2 * batch, n, d)
        normed = self.attention_norm(rows)
        rope = torch.stack([inputs.context_rope, inputs.query_rope])
        rope = rope.expand(2, batch, -1, -1, -1).flatten(0, 1)
        query = self.queries(normed, rope)
        key, value = self.keys_values(normed[:batch], inputs.context_rope)
        seen = [
            attention(query[:batch], key, value, inputs.context),
            attention(query[batch:], key, value, inputs.strict),
        ]
        return self.project_and_mlp(rows, torch.cat(seen)).view(2, batch, n, d)


class LastTwoStreamLayer(Layer):
    """G^l alone: nothing above reads X^l."""

    def forward(
        self, both: Float[Tensor, "2 b n d"], inputs: AttentionInputs
    ) -> Float[Tensor, "b n d"]:
        context, rows = self.attention_norm(both)
        key, value = self.keys_values(context, inputs.context_rope)
        query = self.queries(rows, inputs.query_rope)
        return self.project_and_mlp(both[1], attention(query, key, value, inputs.strict))


def after(before: KeyValue | None, own: Iterable[Tensor]) -> Iterable[Tensor]:
    """Keys and values of rows read before, then those of these rows."""
    if before is None:
        return own
    return [torch.cat(both, 1) for both in zip(before, own, strict=True)]


class CausalLayer(Layer):
    """An ordinary block-causal layer on one stream."""

    def forward(
        self, rows: Float[Tensor, "b n d"], inputs: AttentionInputs
    ) -> Float[Tensor, "b n d"]:
        normed = self.attention_norm(rows)
        key, value = after(inputs.before, self.keys_values(normed, inputs.query_rope))
        query = self.queries(normed, inputs.query_rope)
        return self.project_and_mlp(
            rows, attention(query, key, value, inputs.query, self.right_bias)
        )


class NeighborLayer(CausalLayer):
    """One stream of context rows, and the query rows that are none of them."""

    def forward(
        self, rows: Float[Tensor, "b n d"], inputs: AttentionInputs | NeighborInputs
    ) -> Float[Tensor, "b n d"]:
        """Without extra rows an ordinary causal layer."""
        if isinstance(inputs, AttentionInputs):
            return super().forward(rows, inputs)
        batch, context = inputs.batch, inputs.context_rope.shape[1]
        normed = self.attention_norm(rows)
        some, every = taken(inputs.adapted, slice(context)), taken(inputs.adapted)
        key_value = self.keys_values(normed[:, :context], inputs.context_rope, *some)
        own = [t.view(batch, -1, *t.shape[2:]) for t in key_value]
        key, value = after(inputs.before, own)
        query = self.queries(normed, inputs.rope, *every)
        parts = query.split([context, query.shape[1] - context], 1)
        seen = [
            attention(q.view(batch, -1, *q.shape[2:]), key, value, mask, self.right_bias)
            for q, mask in zip(parts, (inputs.context, inputs.extra), strict=True)
        ]
        together = torch.cat([t.flatten(0, 1) for t in seen])[None]
        return self.project_and_mlp(rows, together, *every)
