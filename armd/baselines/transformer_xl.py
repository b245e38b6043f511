"""Transformer-XL (Dai et al. 2019), in our layers: left to right, in segments.

A row sees the rows of its own segment up to itself, and the last rows of earlier segments, which
are remembered as they were: no gradient goes back into them. Positions are distances: the score of
a key is (q + u) k + (q + v) r, r from a sinusoid of how far back the key is, u and v learnt.

Its likelihood is exact. Each training text is a window of its own, so memory is empty at its start
and the recurrence runs inside it; the paper carries memory on from batch to batch of a corpus that
is read in order. Not taken over: the adaptive softmax and adaptive embeddings of its LM1B runs.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..errors import ArmdError
from ..model.head import target_log_probs, weighted_loss
from ..model.layers import Layer
from ..model.sampling import Sampling
from ..model.shapes import Bool, Float, Int, Tensor
from ..native.sample import draw
from .base import Drawn, SampleJob
from .configuration import BaselineConfig
from .denoiser import Trunk, uniforms


class RelativeLayer(Layer):
    """Rows of a segment, and the rows of memory before them."""

    def __init__(self, config: BaselineConfig) -> None:
        super().__init__(config)
        heads = (config.n_heads, config.d_head)
        self.distance = nn.Linear(config.d_model, config.n_heads * config.d_head, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads))
        self.distance_bias = nn.Parameter(torch.zeros(heads))

    def forward(
        self,
        rows: Float[Tensor, "b n d"],
        memory: Float[Tensor, "b m d"],
        code: Float[Tensor, "far d"],
    ) -> Float[Tensor, "b n d"]:
        normed = self.attention_norm(torch.cat([memory, rows], 1))
        known, count = memory.shape[1], normed.shape[1]
        key, value = self.key_value(normed).unflatten(-1, (2, self.heads, -1)).unbind(-3)
        query = self.query(normed[:, known:]).unflatten(-1, (self.heads, -1))
        place = torch.arange(count, device=rows.device)
        back = place[known:, None] - place  # how far back each key is
        far = self.distance(code[:count]).unflatten(-1, (self.heads, -1))
        by_distance = torch.einsum("bnhe,jhe->bhnj", query + self.distance_bias, far)
        score = by_distance.gather(3, back.clamp(min=0).expand(*by_distance.shape[:2], -1, -1))
        score = (score * query.shape[-1] ** -0.5).masked_fill(back < 0, -torch.inf)
        seen = F.scaled_dot_product_attention(
            *((query + self.content_bias).transpose(1, 2), key.transpose(1, 2)),
            value.transpose(1, 2),
            attn_mask=score.to(query.dtype),
        )
        return self.project_and_mlp(rows, seen.transpose(1, 2))


class TransformerXl(Trunk):
    figure = "exact"
    _no_split_modules = ["RelativeLayer"]  # noqa: RUF012

    def __init__(self, config: BaselineConfig) -> None:
        if config.segment < 1 or config.memory < 0:
            raise ArmdError(
                f"segment {config.segment} must be at least 1, memory {config.memory} at least 0"
            )
        super().__init__(config)

    def add_embedding(self, config: BaselineConfig) -> None:
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)

    def layer_kinds(self, config: BaselineConfig) -> list[type[Layer]]:
        return [RelativeLayer] * config.n_layers

    def _init_linears(self, part: nn.Module) -> None:
        super()._init_linears(part)
        if isinstance(part, RelativeLayer):
            nn.init.normal_(part.distance.weight, std=part.distance.in_features**-0.5)
            nn.init.zeros_(part.content_bias)
            nn.init.zeros_(part.distance_bias)

    def head_matrix(self) -> Float[Tensor, "v d"]:
        return self.embedding.weight

    def nothing_remembered(self, batch: int) -> list[Float[Tensor, "b m d"]]:
        return [self.bos.new_empty(batch, 0, self.config.d_model) for _ in self.layers]

    def segment(
        self, rows: Float[Tensor, "b n d"], memory: list[Float[Tensor, "b m d"]]
    ) -> tuple[Float[Tensor, "b n d"], list[Float[Tensor, "b m2 d"]]]:
        """The final rows of one segment, and what each layer remembers after it."""
        code = sinusoids(memory[0].shape[1] + rows.shape[1], self.config.d_model, like=rows)
        remembered = []
        for layer, before in zip(self.layers, memory, strict=True):
            whole = torch.cat([before.to(rows.dtype), rows.detach()], 1)
            remembered.append(whole[:, max(0, whole.shape[1] - self.config.memory) :])
            if self.gradient_checkpointing and self.training:
                rows = checkpoint(layer, rows, before.to(rows.dtype), code, use_reentrant=False)
            else:
                rows = layer(rows, before.to(rows.dtype), code)
        return self.norm(rows), remembered

    def hidden_rows(self, tokens: Int[Tensor, "b n"]) -> Float[Tensor, "b n d"]:
        """Final rows, segment by segment; row k predicts token k."""
        self.check_tokens(tokens)
        bos = self.bos.expand(len(tokens), 1, -1)
        rows = self.dropout(torch.cat([bos, self.embedding(tokens[:, :-1])], 1))
        memory, done = self.nothing_remembered(len(tokens)), []
        for part in rows.split(self.config.segment, 1):
            final, memory = self.segment(part, memory)
            done.append(final)
        return torch.cat(done, 1)

    def log_probs(self, tokens: Int[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """log p of each token given those before it."""
        rows = self.hidden_rows(tokens).flatten(0, 1)
        return target_log_probs(rows, self.head_matrix(), tokens.flatten()).view(tokens.shape)

    def nll(
        self,
        tokens: Int[Tensor, "b n"],
        scored: Bool[Tensor, "b n"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b"]:
        """-log p itself: nothing is drawn."""
        return -(self.log_probs(tokens) * scored).sum(1)

    def objective(
        self, tokens: Int[Tensor, "b n"], scored: Bool[Tensor, "b n"]
    ) -> Float[Tensor, ""]:
        """The same, with no logits kept for the gradient."""
        rows = self.hidden_rows(tokens).flatten(0, 1)
        weight = (scored / scored.sum().clamp(min=1)).flatten()
        return weighted_loss(rows, self.head_matrix(), tokens.flatten(), weight)

    def draw_texts(self, job: SampleJob) -> Drawn:
        """One token a pass, whatever `steps` says. A pass reads its segment so far, and memory."""
        batch, length = job.batch, job.length
        sampling, size = Sampling(temperature=job.temperature), self.config.segment
        uniform = uniforms(batch, length, like=self.bos, generator=job.generator)
        tokens = torch.zeros(batch, length, dtype=torch.long, device=self.device)
        memory = self.nothing_remembered(batch)
        rows = self.bos.expand(batch, 1, -1)
        for place in range(length):
            final, after = self.segment(rows, memory)
            logits = final[:, -1:] @ self.head_matrix().mT
            tokens[:, place] = draw(logits, uniform[:, place, None], sampling)[0][:, 0]
            row = self.embedding(tokens[:, place, None])
            full = (place + 1) % size == 0
            memory, rows = (after, row) if full else (memory, torch.cat([rows, row], 1))
        return Drawn(tokens, length)


def sinusoids(count: int, width: int, *, like: Tensor) -> Float[Tensor, "c d"]:
    """Of distances 0, 1 ... count - 1."""
    half = width // 2
    exponent = torch.arange(half, device=like.device, dtype=torch.float64) / half
    angle = torch.arange(count, device=like.device)[:, None] * 10000.0**-exponent
    return torch.cat([angle.sin(), angle.cos()], 1).to(like.dtype)
