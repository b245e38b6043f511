"""Sequences for the C decode step, made from plain numbers, without any of armd.generation."""

from bisect import bisect_left, bisect_right
from ctypes import addressof, byref, c_bool, c_double, c_long, c_ubyte, c_void_p
from typing import Any

import torch

import armd
from armd.model.layers import rope_cos_sin
from armd.native import packed as fast
from armd.native.library import library
from armd.native.structs import NativeSampling, NativeSequence, PointerTable

GREEDY = (0.0, 0.0, 0.0, 0, 1.0)
"""Temperature, top_p, min_p, top_k, repetition penalty."""


def longs(numbers: list[int]) -> Any:
    return (c_long * len(numbers))(*numbers)


class CSequence:
    """One sequence: its plan, its cache and what was drawn, where C finds them."""

    def __init__(
        self,
        model: armd.ArmdLM,
        order: armd.Order,
        tokens: list[int],
        known: list[bool],
        sampling: tuple = GREEDY,
        seed: int = 0,
        cache: torch.dtype = torch.float32,
    ) -> None:
        config, n = model.config, len(order)
        position, block = order.position.flatten().tolist(), order.block.flatten().tolist()
        given = [known[at] for at in position]
        borders = [k for k in range(1, n) if block[k] != block[k - 1]] + [n]
        leading = given.index(False) if False in given else n
        filled = max((border for border in borders if border <= leading), default=0)
        self.ends = [filled, *(border for border in borders if border > filled)]
        shape = (n + 2, config.n_kv_heads, config.d_head)
        self.keys = [torch.zeros(shape, dtype=cache) for _ in model.layers]
        self.values = [torch.zeros(shape, dtype=cache) for _ in model.layers]
        codes = model.position_codes(2).shape[1]
        self.state = torch.zeros(codes, config.d_model)
        rank = [0] * n
        for index, at in enumerate(position):
            rank[at] = index
        g = torch.Generator().manual_seed(seed)
        self.uniform = (c_double * n)(*torch.rand(n, dtype=torch.float64, generator=g).tolist())
        self.tokens, self.logp = longs(tokens), (c_double * n)()
        self.seen = (c_ubyte * config.vocab_size)()
        for at in range(n):
            if known[at]:
                self.seen[tokens[at]] = 1
        tables = [PointerTable(*(t.data_ptr() for t in side)) for side in (self.keys, self.values)]
        limits = self._limits(block)
        arrays = (longs(position), longs(rank), longs(self.ends), self.uniform)
        arrays += ((c_bool * n)(*known), self.tokens, self.logp, *map(longs, limits))
        self.held = (tables, arrays)
        self.struct = NativeSequence(
            *(table.address for table in tables),
            self.state.data_ptr(),
            *map(addressof, arrays),
            addressof(self.seen),
            NativeSampling(*sampling),
            n + 1,
        )
        self.struct.bf16_cache, self.struct.upto = cache == torch.bfloat16, 1 + self.ends[0]

    def _limits(self, block: list[int]) -> tuple[list[int], list[int], list[int]]:
        """strict, low_limit and high_limit of the first pass."""
        count, upto = self.ends[0], self.ends[min(1, len(self.ends) - 1)]
        block, wanted = block[:count], upto - count
        before, behind = ([cut(block, b) for b in block] for cut in (bisect_left, bisect_right))
        strict = [*(b + 1 for b in before), *[count + 1] * wanted]
        return strict, [1, *(b + 1 for b in behind), *strict], [*behind, *[upto] * wanted]

    @property
    def done(self) -> bool:
        return self.struct.step == len(self.ends) - 1

    @property
    def wanted(self) -> int:
        return self.ends[self.struct.step + 1] - self.ends[self.struct.step]


def step(model: armd.ArmdLM, sequences: list[CSequence]) -> list[torch.Tensor]:
    """One C call; the logits of each sequence."""
    assert isinstance(model, fast.FastLM) and model.whole
    config, sizes = model.config, [sequence.wanted for sequence in sequences]
    places = config.max_length + 2
    code = model.position_codes(places).contiguous()
    rope = rope_cos_sin(torch.arange(places)[None], config)[0].float().contiguous()
    logits = torch.empty(sum(sizes), config.vocab_size)
    pointers = (c_void_p * len(sizes))(*(addressof(s.struct) for s in sequences))
    tables = (table.data_ptr() for table in (code, rope, logits))
    assert library().decode_step(byref(model.address()), pointers, len(sizes), *tables) == 0
    assert not any(sequence.struct.broken for sequence in sequences)
    return list(logits.split(sizes))


@torch.no_grad()
def decode(model: armd.ArmdLM, sequences: list[CSequence]) -> list[torch.Tensor]:
    """All sequences to their ends, together. Returns their logits in generation order, from the
    first token that is not prefilled on."""
    found: list[list[torch.Tensor]] = [[] for _ in sequences]
    while not all(sequence.done for sequence in sequences):
        going = [i for i, sequence in enumerate(sequences) if not sequence.done]
        for i, logits in zip(going, step(model, [sequences[i] for i in going]), strict=True):
            found[i].append(logits)
    return [torch.cat(rows) for rows in found]
