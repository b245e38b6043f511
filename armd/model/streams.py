"""The layers: two streams, the query stream alone, one causal stream, and one with extra rows."""

import torch

from .attention_inputs import AttentionInputs
from .layers import Layer, attention
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


class CausalLayer(Layer):
    """An ordinary block-causal layer on one stream."""

    def forward(
        self, rows: Float[Tensor, "b n d"], inputs: AttentionInputs
    ) -> Float[Tensor, "b n d"]:
        normed = self.attention_norm(rows)
        key, value = self.keys_values(normed, inputs.query_rope)
        query = self.queries(normed, inputs.query_rope)
        return self.project_and_mlp(
            rows, attention(query, key, value, inputs.query, self.right_bias)
        )


class NeighborLayer(CausalLayer):
    """One stream of context rows, and the query rows that are none of them."""

    def forward(
        self, rows: Float[Tensor, "b n d"], inputs: AttentionInputs
    ) -> Float[Tensor, "b n d"]:
        """Without extra rows an ordinary causal layer. With them all rows come in one sequence, the
        context rows of all texts first."""
        if inputs.limit is None:
            return super().forward(rows, inputs)
        own = inputs.context_rope.shape[1]
        normed = self.attention_norm(rows)
        query = self.queries(normed, inputs.query_rope)
        key, value = self.keys_values(normed[:, :own], inputs.context_rope)
        n, bias = own // inputs.batch, self.right_bias
        key, value = (t.view(-1, n, *t.shape[2:]) for t in (key, value))
        parts = query.split([own, query.shape[1] - own], 1)
        context, extra = (t.view(inputs.batch, -1, *t.shape[2:]) for t in parts)
        seen = [
            attention(context, key, value, inputs.context, bias),
            attention(extra, key, value, inputs.strict, bias),
        ]
        return self.project_and_mlp(rows, torch.cat([t.flatten(0, 1) for t in seen])[None])
