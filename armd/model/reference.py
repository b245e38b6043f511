"""The paper's equations, slow and literal: what the tests hold the fast code against.

One text at a time, every mask built pair by pair, every matrix written out, and every context row
kept: BOS and all N tokens. Nothing here is shared with layers.py, prefix.py or modeling_armd.py but
the parameters, passed by name, so that gradients flow into the very weights of a model:

    logits(dict(model.named_parameters()), model.config, tokens, order)
"""

from collections.abc import Callable, Mapping
from math import cos, inf, pi, sin, sqrt

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
    Architecture"), then the head."""
    embedding = weights["embedding.weight"]
    X = torch.stack([weights["bos"], *(embedding[token] for token in text[order.position])])
    x_block = [-1, *order.block.tolist()]  # BOS is in a block before all others
    x_position = [0, *(order.position + 1).tolist()]
    g_block, g_position = x_block[1:], x_position[1:]
    G = first_query(weights, config, X, x_block, x_position)
    if config.query == "shift":
        g_position = x_position[:-1]  # the shifted query stands where its token stands
    if config.query == "neighbor":
        g_position = [p - 1 for p in g_position]  # and so does the neighbor

    x_out = out_of_order(x_block, x_position, x_block, x_position, lambda i, n: i <= n)
    g_out = out_of_order(g_block, g_position, x_block, x_position, lambda i, n: i < n)
    strict = mask(g_block, x_block, lambda i, n: i < n)
    causal = mask(x_block, x_block, lambda i, n: i <= n)
    above = mask(g_block, g_block, lambda i, n: i <= n)
    for number in range(config.n_two_stream):
        of_x, of_g = (Equations(weights, config, number, out) for out in (x_out, g_out))
        K, V = of_x.keys_values(X, x_position)
        X, G = (
            of_x.update(X, of_x.scores(X, x_position, K, x_position), V, causal),
            of_g.update(G, of_g.scores(G, g_position, K, x_position), V, strict),
        )
    for number in range(config.n_two_stream, config.n_layers):
        layer = Equations(weights, config, number, g_out)
        K, V = layer.keys_values(G, g_position)
        G = layer.update(G, layer.scores(G, g_position, K, g_position), V, above)
    head = embedding if config.tie_word_embeddings else weights["head.weight"]
    return rms_norm(G, weights["norm.weight"], config.norm_eps) @ head.T


def mask(
    of_rows: list[int], of_keys: list[int], sees: Callable[[int, int], bool]
) -> Float[Tensor, "n m"]:
    """M^c and M^sc of the notation table, pair by pair: 0 where B(i) <= B(n), for M^sc
    B(i) < B(n), and -infinity elsewhere."""
    return torch.tensor([[0.0 if sees(i, n) else -inf for i in of_keys] for n in of_rows])


def out_of_order(
    of_rows: list[int],
    rows_at: list[int],
    of_keys: list[int],
    keys_at: list[int],
    sees: Callable[[int, int], bool],
) -> list[bool]:
    """Which rows do not see exactly the positions up to their own: those take adapters."""
    out = []
    for n, at in zip(of_rows, rows_at, strict=True):
        seen = sorted(p for i, p in zip(of_keys, keys_at, strict=True) if sees(i, n))
        out.append(seen != list(range(at + 1)))
    return out


def first_query(
    weights: Weights, config: ArmdConfig, X: Tensor, block: list[int], position: list[int]
) -> Float[Tensor, "n d"]:
    """G^0 from f_q^sc: prefix aggregation, the mean of the past, or the token before: the last one
    drawn, or the one at the position before, if that is known."""
    if config.query == "shift":
        return X[:-1]
    M = torch.tensor([[float(i < n) for i in block] for n in block[1:]]).to(X)
    if config.query == "mean":
        G = torch.stack([X[row.bool()].mean(0) for row in M])
    else:
        PE = torch.stack([position_code(weights, config, p) for p in position])
        G = ((PE[1:] @ PE.T) * M) @ X  # eq. PA_matrix, with M^sc in {0, 1}
    G = rms_norm(G, weights["query_norm.weight"], config.norm_eps)
    if config.query != "neighbor":
        return G
    G = weights["unknown"] + config.init_std * weights["gate"] * G
    rows = []
    for n, g in enumerate(G, 1):
        near = position.index(position[n] - 1)
        rows.append(X[near] if block[near] < block[n] else g)
    return torch.stack(rows)


def position_code(weights: Weights, config: ArmdConfig, position: int) -> Float[Tensor, "p"]:
    """PE_j: the sinusoid of position j, then a two-layer MLP."""
    half = (config.d_model + 1) // 2
    angle = position * 10000.0 ** -(torch.arange(half, dtype=torch.float64) / half)
    wave = torch.cat([torch.sin(angle), torch.cos(angle)])[: config.d_model]
    inner, outer = weights["position_code.inner.weight"], weights["position_code.outer.weight"]
    return outer @ silu(inner @ wave.to(inner.dtype))


class Equations:
    """One layer: pre-norm attention with rotary positions, then SwiGLU, each with a residual, for
    rows of which `out` says which are out of order."""

    def __init__(self, weights: Weights, config: ArmdConfig, number: int, out: list[bool]) -> None:
        self.config, self.out = config, out
        self.w = {
            name.removeprefix(f"layers.{number}.").removesuffix(".weight"): value
            for name, value in weights.items()
            if name.startswith(f"layers.{number}.")
        }

    def normed(self, rows: Tensor) -> Tensor:
        return rms_norm(rows, self.w["attention_norm"], self.config.norm_eps)

    def times(self, rows: Tensor, name: str, out: list[bool] | None = None) -> Tensor:
        """X W^T + b; for rows out of order, W + B^T A where the layer has such an adapter."""
        W, made = self.w[name], []
        for row, is_out in zip(rows, out or self.out, strict=True):
            adapted = is_out and f"{name}.lora_a" in self.w
            change = self.w[f"{name}.lora_b"].T @ self.w[f"{name}.lora_a"] if adapted else 0
            made.append((W + change) @ row)
        return torch.stack(made) + self.bias(name)

    def queries(
        self, rows: Tensor, position: list[int], out: list[bool] | None = None
    ) -> Float[Tensor, "h n e"]:
        """Q = X W^q, or Q-hat = G W^q, turned by true position."""
        return self.turned(self.times(self.normed(rows), "query", out), position)

    def keys_values(
        self, X: Tensor, position: list[int]
    ) -> tuple[Float[Tensor, "h n e"], Float[Tensor, "h n e"]]:
        """K = X W^k and V = X W^v, which both streams share."""
        keys, values = self.times(self.normed(X), "key_value").chunk(2, -1)
        group = self.config.n_heads // self.config.n_kv_heads
        K, V = self.turned(keys, position), self.heads(values)
        # each head of keys and values serves a group of query heads
        heads = [h // group for h in range(self.config.n_heads)]
        return torch.stack([K[h] for h in heads]), torch.stack([V[h] for h in heads])

    def bias(self, name: str) -> Tensor:
        return self.w.get(f"{name}.bias", torch.zeros(len(self.w[name])).to(self.w[name]))

    def scores(
        self, rows: Tensor, of_rows: list[int], K: Tensor, of_keys: list[int]
    ) -> Float[Tensor, "h n m"]:
        """Q K^T / sqrt(e). Keys to the right of a row get the bias of each head, and are read as if
        the row stood to the right of them: by the offset, or as many of it as that takes."""
        Q, config = self.queries(rows, of_rows), self.config
        scores = Q @ K.transpose(1, 2) / sqrt(config.d_head)
        if not config.right_offset and "right_bias" not in self.w:
            return scores
        for n, at in enumerate(of_rows):
            for i, key_at in enumerate(of_keys):
                if key_at <= at:
                    continue
                if config.right_offset:
                    further = at
                    while further < key_at:
                        further += config.right_offset
                    q = self.queries(rows[n : n + 1], [further], self.out[n : n + 1])[:, 0]
                    scores[:, n, i] = (q * K[:, i]).sum(-1) / sqrt(config.d_head)
                if "right_bias" in self.w:
                    scores[:, n, i] = scores[:, n, i] + self.w["right_bias"]
        return scores

    def update(self, rows: Tensor, scores: Tensor, V: Tensor, M: Tensor) -> Float[Tensor, "n d"]:
        """Attn(Q, K, V; M) = Softmax(Q K^T / sqrt(e) + M) V (eqs. attn_c and attn_sc)."""
        scores = scores + M.to(scores)
        seen = torch.softmax(scores, -1) @ V
        rows = rows + self.times(torch.cat(list(seen), -1), "out")
        hidden = rms_norm(rows, self.w["mlp_norm"], self.config.norm_eps)
        gate, up = self.times(hidden, "gate_up").chunk(2, -1)
        return rows + self.times(silu(gate) * up, "down")

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
        angle = position * frequency(config.rope_base ** (-2 * j / config.d_head), config)
        turn = [[cos(angle), -sin(angle)], [sin(angle), cos(angle)]]
        pairs.append(torch.tensor(turn, dtype=torch.float64))
    return torch.block_diag(*pairs)


def frequency(plain: float, config: ArmdConfig) -> float:
    """Of a pair of channels: with Llama 3's scaling, that of long waves is divided by a factor."""
    scaling = config.rope_llama3
    if scaling is None:
        return plain
    longest = scaling["original_max_position_embeddings"]
    wave, low, high = 2 * pi / plain, scaling["low_freq_factor"], scaling["high_freq_factor"]
    if wave < longest / high:
        return plain
    if wave > longest / low:
        return plain / scaling["factor"]
    smooth = (longest / wave - low) / (high - low)
    return (1 - smooth) * plain / scaling["factor"] + smooth * plain


def rms_norm(rows: Tensor, gain: Tensor, eps: float) -> Tensor:
    return rows / (rows.square().mean(-1, keepdim=True) + eps).sqrt() * gain


def silu(rows: Tensor) -> Tensor:
    return rows * torch.sigmoid(rows)
