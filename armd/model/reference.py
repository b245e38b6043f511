"""The paper's equations, slow and literal: what the tests hold the fast code against.

One text at a time, every mask built pair by pair, every matrix written out, and every context row
kept: BOS and all N tokens. Nothing here is shared with layers.py, prefix.py or modeling_armd.py but
the parameters, passed by name, so that gradients flow into the very weights of a model:

    logits(dict(model.named_parameters()), model.config, tokens, order)
"""

from collections.abc import Callable, Mapping
from math import cos, inf, sin, sqrt

import torch

from .configuration_armd import ArmdConfig
from .order import Order
from .shapes import Float, Int, Tensor

Weights = Mapping[str, Tensor]


def logits(
    weights: Weights, config: ArmdConfig, tokens: Int[Tensor, "b n"], order: Order
) -> Float[Tensor, "b n v"]:
    """Plain logits of every text, in generation order."""
    out = []
    for b, text in enumerate(tokens):
        row = order if order.batch is None else order[b if order.batch > 1 else 0]
        out.append(logits_of_one(weights, config, text, row))
    return torch.stack(out)


def logits_of_one(
    weights: Weights, config: ArmdConfig, text: Int[Tensor, "n"], order: Order
) -> Float[Tensor, "n v"]:
    """Two streams through L2s layers, the query stream alone through the other L - L2s ("Model
    Architecture"), then the tied head."""
    embedding = weights["embedding.weight"]
    X = torch.stack([weights["bos"], *(embedding[token] for token in text[order.position])])
    x_block = [-1, *order.block.tolist()]  # BOS is in a block before all others
    x_position = [0, *(order.position + 1).tolist()]
    g_block, g_position = x_block[1:], x_position[1:]
    G = first_query(weights, config, X, x_block, x_position)
    if config.query == "shift":
        g_position = x_position[:-1]  # the shifted query stands where its token stands

    strict = mask(g_block, x_block, lambda i, n: i < n)
    causal = mask(x_block, x_block, lambda i, n: i <= n)
    above = mask(g_block, g_block, lambda i, n: i <= n)
    for number in range(config.n_two_stream):
        layer = Equations(weights, config, number)
        K, V = layer.keys_values(X, x_position)
        X, G = (
            layer.update(X, layer.queries(X, x_position), K, V, causal),
            layer.update(G, layer.queries(G, g_position), K, V, strict),
        )
    for number in range(config.n_two_stream, config.n_layers):
        layer = Equations(weights, config, number)
        K, V = layer.keys_values(G, g_position)
        G = layer.update(G, layer.queries(G, g_position), K, V, above)
    return rms_norm(G, weights["norm.weight"], config.norm_eps) @ embedding.T


def mask(
    of_rows: list[int], of_keys: list[int], sees: Callable[[int, int], bool]
) -> Float[Tensor, "n m"]:
    """M^c and M^sc of the notation table, pair by pair: 0 where B(i) <= B(n), for M^sc
    B(i) < B(n), and -infinity elsewhere."""
    return torch.tensor([[0.0 if sees(i, n) else -inf for i in of_keys] for n in of_rows])


def first_query(
    weights: Weights, config: ArmdConfig, X: Tensor, block: list[int], position: list[int]
) -> Float[Tensor, "n d"]:
    """G^0 from f_q^sc: prefix aggregation, the mean of the past, or the token before."""
    if config.query == "shift":
        return X[:-1]
    M = torch.tensor([[float(i < n) for i in block] for n in block[1:]]).to(X)
    if config.query == "mean":
        G = torch.stack([X[row.bool()].mean(0) for row in M])
    else:
        PE = torch.stack([position_code(weights, config, p) for p in position])
        G = ((PE[1:] @ PE.T) * M) @ X  # eq. PA_matrix, with M^sc in {0, 1}
    return rms_norm(G, weights["query_norm.weight"], config.norm_eps)


def position_code(weights: Weights, config: ArmdConfig, position: int) -> Float[Tensor, "p"]:
    """PE_j: the sinusoid of position j, then a two-layer MLP."""
    half = (config.d_model + 1) // 2
    angle = position * 10000.0 ** -(torch.arange(half, dtype=torch.float64) / half)
    wave = torch.cat([torch.sin(angle), torch.cos(angle)])[: config.d_model]
    inner, outer = weights["position_code.inner.weight"], weights["position_code.outer.weight"]
    return outer @ silu(inner @ wave.to(inner.dtype))


class Equations:
    """One layer: pre-norm attention with rotary positions, then SwiGLU, each with a residual."""

    def __init__(self, weights: Weights, config: ArmdConfig, number: int) -> None:
        self.config = config
        self.w = {
            name.removeprefix(f"layers.{number}.").removesuffix(".weight"): value
            for name, value in weights.items()
            if name.startswith(f"layers.{number}.")
        }

    def normed(self, rows: Tensor) -> Tensor:
        return rms_norm(rows, self.w["attention_norm"], self.config.norm_eps)

    def queries(self, rows: Tensor, position: list[int]) -> Float[Tensor, "h n e"]:
        """Q = X W^q, or Q-hat = G W^q, turned by true position."""
        return self.turned(self.normed(rows) @ self.w["query"].T, position)

    def keys_values(
        self, X: Tensor, position: list[int]
    ) -> tuple[Float[Tensor, "h n e"], Float[Tensor, "h n e"]]:
        """K = X W^k and V = X W^v, which both streams share."""
        W_k, W_v = self.w["key_value"].chunk(2)
        rows = self.normed(X)
        return self.turned(rows @ W_k.T, position), self.heads(rows @ W_v.T)

    def update(
        self, rows: Tensor, Q: Tensor, K: Tensor, V: Tensor, M: Tensor
    ) -> Float[Tensor, "n d"]:
        """Attn(Q, K, V; M) = Softmax(Q K^T / sqrt(e) + M) V (eqs. attn_c and attn_sc)."""
        scores = Q @ K.transpose(1, 2) / sqrt(self.config.d_head) + M.to(Q)
        seen = torch.softmax(scores, -1) @ V
        rows = rows + torch.cat(list(seen), -1) @ self.w["out"].T
        hidden = rms_norm(rows, self.w["mlp_norm"], self.config.norm_eps)
        gate, up = self.w["gate_up"].chunk(2)
        return rows + (silu(hidden @ gate.T) * (hidden @ up.T)) @ self.w["down"].T

    def heads(self, rows: Tensor) -> Float[Tensor, "h n e"]:
        return torch.stack(rows.split(self.config.d_head, dim=-1))

    def turned(self, rows: Tensor, position: list[int]) -> Float[Tensor, "h n e"]:
        """Rotary: head row n times the matrix R(position of n)."""
        turn = torch.stack([rotation(p, self.config) for p in position]).to(rows)
        return torch.einsum("nij,hnj->hni", turn, self.heads(rows))


def rotation(position: int, config: ArmdConfig) -> Float[Tensor, "e e"]:
    """R(p): channels 2j and 2j + 1 turn together by p * base^(-2j / e)."""
    pairs = []
    for j in range(config.d_head // 2):
        angle = position * config.rope_base ** (-2 * j / config.d_head)
        turn = [[cos(angle), -sin(angle)], [sin(angle), cos(angle)]]
        pairs.append(torch.tensor(turn, dtype=torch.float64))
    return torch.block_diag(*pairs)


def rms_norm(rows: Tensor, gain: Tensor, eps: float) -> Tensor:
    return rows / (rows.square().mean(-1, keepdim=True) + eps).sqrt() * gain


def silu(rows: Tensor) -> Tensor:
    return rows * torch.sigmoid(rows)
