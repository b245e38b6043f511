"""What a model needs to decode many requests together: KV caches, and threads."""

from dataclasses import dataclass, field, replace

import torch

from ..generation.kv_cache import KVCache, make_cache
from ..model.modeling_armd import ArmdLM
from ..runtime.memory import check_cache


@dataclass
class CachePool:
    """The KV caches of the slots, made once and used again and again."""

    free: list[KVCache] = field(default_factory=list)
    held: dict[int, tuple[KVCache, object]] = field(default_factory=dict)
    """Which prompt's rows a cache has, by its id: also after the sequence there has ended."""

    @classmethod
    def of(cls, model: ArmdLM, slots: int) -> "CachePool":
        length = model.config.max_length
        check_cache(model, slots, length)
        first = make_cache(model, batch=1, length=length)
        rest = [make_cache(model, batch=1, length=length) for _ in range(slots - 1)]
        # position codes and RoPE are the same for all
        return cls([first, *(replace(c, code=first.code, rope=first.rope) for c in rest)])

    def clear(self, cache: KVCache) -> KVCache:
        cache.clear()
        self.held.pop(id(cache), None)
        return cache

    def holding(self, prompt: object) -> KVCache | None:
        """A cache that has this prompt's rows."""
        return next((cache for cache, own in self.held.values() if own is prompt), None)


IN_A_CORE = 16 * 2**20
"""Bytes of weights that a core reads about as fast from its caches as two do."""


def threads_for(model: ArmdLM) -> int:
    """For a small model the barriers between two threads cost more than the second thread saves,
    and the event loop needs a core."""
    weights = sum(part.numel() * part.element_size() for part in model.buffers())
    weights += sum(part.numel() * part.element_size() for part in model.parameters())
    return 1 if weights < IN_A_CORE else torch.get_num_threads()
