"""What a model is given to write many texts with: caches to write them in, and threads."""

from dataclasses import dataclass, field, replace

import torch

from ..generation.kv_cache import Cache, empty_mark, make_cache
from ..model.modeling_armd import ArmdLM


@dataclass
class CachePool:
    """The slots: caches made once and used again and again."""

    model: ArmdLM
    free: list[Cache] = field(default_factory=list)

    @classmethod
    def of(cls, model: ArmdLM, slots: int) -> "CachePool":
        length = model.config.max_length
        first = make_cache(model, batch=1, length=length)
        rest = [make_cache(model, batch=1, length=length) for _ in range(slots - 1)]
        # position codes and turns are the same for all
        return cls(model, [first, *(replace(c, code=first.code, turn=first.turn) for c in rest)])

    def clear(self, slot: Cache) -> Cache:
        """The slot as an empty cache."""
        slot.mark = empty_mark(self.model, 1)
        return slot


IN_A_CORE = 16 * 2**20
"""Bytes of weights that a core reads about as fast from its caches as two do."""


def threads_for(model: ArmdLM) -> int:
    """A small model's pass is short, and waiting for a second thread at every step of a layer costs
    more than that thread does; the core is better left to those who talk to the clients."""
    weights = sum(part.numel() * part.element_size() for part in model.buffers())
    weights += sum(part.numel() * part.element_size() for part in model.parameters())
    return 1 if weights < IN_A_CORE else torch.get_num_threads()
