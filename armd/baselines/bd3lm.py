"""BD3-LM (Arriola et al. 2025): left to right between blocks of tokens, diffusion inside each.

One pass trains all blocks: rows are [BOS, clean text, noisy text]. A clean row sees the clean rows
of its own and earlier blocks, a noisy row its own noisy block and the clean rows of earlier ones.
The bound is the sum of the blocks' any-order bounds. Inside a block the number of masked tokens is
drawn, as RADD does, and not a time: the same bound in expectation, with so little variance that
the paper's clipped schedules are not needed. Blocks of one token are an autoregressive model.
"""

import torch
from torch.nn import functional as F

from ..errors import ArmdError
from ..model.layers import rope_cos_sin
from ..model.shapes import Bool, Float, Int, Tensor
from .base import Drawn, SampleJob
from .configuration import BaselineConfig
from .denoiser import AttentionInputs, Kept, not_padding, uniforms
from .masked_diffusion import Absorbing, Noise, dense_rank
from .radd import mask_any_number


class Bd3lm(Absorbing):
    def __init__(self, config: BaselineConfig) -> None:
        if config.block_size < 1:
            raise ArmdError(f"block_size {config.block_size} must be at least 1")
        super().__init__(config)

    def noise(self, scored: Bool[Tensor, "b n"], generator: torch.Generator | None) -> Noise:
        batch, n = scored.shape
        size = self.config.block_size
        blocks = F.pad(scored, (0, -n % size)).view(-1, size)
        drawn = (t.reshape(batch, -1)[:, :n] for t in mask_any_number(blocks, generator))
        return Noise(*drawn)

    def denoise(
        self, tokens: Int[Tensor, "b n"], scored: Bool[Tensor, "b n"], noise: Noise
    ) -> Float[Tensor, "b n d"]:
        noisy = tokens.masked_fill(noise.masked, self.mask_id)
        n, size = tokens.shape[1], self.config.block_size
        clean = (n - 1) // size * size  # no block sees the last one's clean rows
        place = torch.arange(n, device=tokens.device)
        clean_block = F.pad(place[:clean] // size, (1, 0), value=-1)
        block, visible = place // size, not_padding(scored)
        own = block[:, None] == block
        sees = torch.cat([block[:, None] > clean_block, own], 1)[None, None]
        if visible is not None:
            sees = sees & F.pad(visible, (1 + clean, 0), value=True)[:, None, None]
        position = torch.cat([F.pad(place[:clean] + 1, (1, 0)), place + 1])[None]
        among = (clean_block[:, None] >= clean_block)[None, None]
        inputs = AttentionInputs(1 + clean, self._rope(position), among_clean=among, noisy=sees)
        rows = torch.cat([self._rows(tokens[:, :clean], bos=True), self._rows(noisy)], 1)
        return self.through(self.dropout(rows), inputs)

    def _rows(self, tokens: Int[Tensor, "b m"], *, bos: bool = False) -> Float[Tensor, "b m2 d"]:
        rows = self.embedding(tokens)
        return torch.cat([self.bos.expand(len(tokens), 1, -1), rows], 1) if bos else rows

    def _rope(self, position: Int[Tensor, "1 r"]) -> Float[Tensor, "1 r half 2"]:
        return rope_cos_sin(position, self.config).to(self.bos.dtype)

    def draw_texts(self, job: SampleJob) -> Drawn:
        """Block by block, `steps` shared out evenly over the blocks, at least one each. Keys and
        values of finished blocks are kept; a block's clean rows enter with the next one's first
        pass. `skip` leaves out steps that write nothing, as for the other masked diffusions."""
        batch, length, steps = job.batch, job.length, job.steps
        size = self.config.block_size
        each = max(1, steps // -(-length // size))
        when = (uniforms(batch, length, like=self.bos, generator=job.generator) * each).long()
        uniform = uniforms(batch, length, like=self.bos, generator=job.generator)
        tokens = torch.full_like(when, self.mask_id)
        kept, calls = self.nothing_kept(batch), 0
        for start in range(0, length, size):
            part = slice(start, start + size)
            turn = dense_rank(when[:, part]) if job.skip else when[:, part]
            passes = int(turn.max()) + 1 if job.skip else each
            for call in range(passes):
                rows = self.step(tokens[:, : start + size], start, call == 0, kept)
                chosen = turn == call
                drawn = self.choose(rows[chosen], uniform[:, part][chosen], job.temperature)
                tokens[:, part] = tokens[:, part].masked_scatter(chosen, drawn)
            calls += passes
        return Drawn(tokens, calls)

    def nothing_kept(self, batch: int) -> list[Kept]:
        empty = self.bos.new_empty(batch, 0, self.config.n_heads, self.config.d_head)
        return [Kept(empty, empty) for _ in self.layers]

    def step(
        self, tokens: Int[Tensor, "b m"], start: int, first: bool, kept: list[Kept]
    ) -> Float[Tensor, "b k d"]:
        """The final rows of the block at `start`. Everything kept is of earlier blocks, and what
        enters now is seen by all rows but the clean ones' own noisy block: no mask."""
        position = torch.arange(tokens.shape[1] + 1, device=tokens.device)[None]
        if not first:
            inputs = AttentionInputs(0, self._rope(position[:, 1 + start :]))
            return self.through(self._rows(tokens[:, start:]), inputs, kept)
        before = max(0, start - self.config.block_size)
        rows = self._rows(tokens[:, before:], bos=start == 0)
        begin = 1 + before if start else 0
        clean = start - before + (start == 0)
        return self.through(rows, AttentionInputs(clean, self._rope(position[:, begin:])), kept)
