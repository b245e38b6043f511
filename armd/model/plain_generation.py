"""Writing with torch alone: what a saved folder can do where armd is not installed.

Block after block, one pass each: the rows of the block just drawn leave their keys and values, the
rows of the next one see them all. armd.generate draws from the same distributions, several times
faster, and takes more options.
"""

from typing import Any, cast

import torch
from torch.nn import functional as F

from .adapted_linear import out_of_order, taken
from .configuration_armd import ArmdConfig
from .errors import ArmdError
from .eval_mode import without_dropout
from .layers import Layer, attention, right_keys, rope_cos_sin
from .limited_attention import LimitMask
from .order import Order, infill
from .padding import checked
from .sampling import Sampling, draw
from .shapes import Bool, Float, Int, Tensor


class Sampler:
    """How a token is chosen, by the names that transformers has for it."""

    def __init__(
        self,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
        **other: Any,
    ) -> None:
        if wrong := [name for name, value in other.items() if value is not None]:
            raise ArmdError(
                f"this generate takes no {', '.join(sorted(wrong))}; it takes max_new_tokens, "
                "streams, do_sample, temperature, top_k, top_p and generator "
                "(AutoModelForCausalLM has transformers' own)"
            )
        if temperature <= 0:
            raise ArmdError(
                "temperature must be above 0; leave out do_sample to take the likeliest"
            )
        sampling = Sampling(temperature, top_k, top_p)
        self.sampling = sampling if do_sample else Sampling(temperature=0)
        self.generator = generator

    def draw(self, logits: Float[Tensor, "b k v"]) -> Int[Tensor, "b k"]:
        uniform = torch.rand(logits.shape[:2], dtype=torch.float64, generator=self.generator)
        return draw(logits, uniform, self.sampling)[0]


class PlainGeneration:
    """The part of ArmdLM that writes: generate and infill."""

    config: ArmdConfig

    @torch.no_grad()
    def generate(
        self,
        input_ids: Int[Tensor, "b n"] | None = None,
        attention_mask: Tensor | None = None,
        *,
        max_new_tokens: int | None = None,
        streams: int = 1,
        eos_token_id: int | list[int] | None = None,
        pad_token_id: int | None = None,
        **choice: Any,
    ) -> Int[Tensor, "b m"]:
        """Continue prompts (padded on the left, if at all) by max_new_tokens, in `streams` strided
        runs. Greedy, or with do_sample: temperature, top_k, top_p, generator. Behind the first EOS
        stands padding."""
        device = cast(Any, self).device
        ids = torch.empty(1, 0, dtype=torch.long) if input_ids is None else input_ids
        ids = ids.to(device)
        real = torch.ones_like(ids) != 0
        if attention_mask is not None and ids.shape[1]:
            real = checked(attention_mask, ids)
            if not bool(real[:, -1].all()):
                raise ArmdError("pad prompts on the left (tokenizer.padding_side = 'left')")
        left = self.config.max_length - int(real.sum(1).max()) if ids.numel() else 256
        count = min(256, left, self.config.max_length) if max_new_tokens is None else max_new_tokens
        if count < 1:
            raise ArmdError(f"max_new_tokens {count} must be at least 1, and the model has room")
        texts = []
        for row, is_real in zip(ids, real, strict=True):
            prompt = row[is_real]
            blank = torch.arange(len(prompt) + count) >= len(prompt)
            texts.append((F.pad(prompt, (0, count))[None], ~blank))
        ends = {"eos_token_id": eos_token_id, "pad_token_id": pad_token_id}
        if bool(real.all()):  # equal lengths: one batch
            return self.infill(
                F.pad(ids, (0, count)), texts[0][1], streams=streams, **ends, **choice
            )
        rows = [self.infill(*text, streams=streams, **ends, **choice)[0] for text in texts]
        return torch.stack(
            [torch.cat([row[~own], made]) for row, own, made in zip(ids, real, rows, strict=True)]
        )

    @torch.no_grad()
    def infill(
        self,
        tokens: Int[Tensor, "b n"],
        known: Bool[Tensor, "n"],
        *,
        streams: int = 1,
        eos_token_id: int | list[int] | None = None,
        pad_token_id: int | None = None,
        **choice: Any,
    ) -> Int[Tensor, "b n"]:
        """Fill the blanks, where `known` is False, of all rows alike; what is known stays."""
        model: Any = self
        if self.config.model_type != ArmdConfig.model_type:
            raise ArmdError("this is another model than ArmdLM; write with armd.generate")
        if known.shape != tokens.shape[1:] or bool(known.all()):
            raise ArmdError("known must be bools (n,), False where a token is to be written")
        if len(known) > self.config.max_length:
            raise ArmdError(
                f"{len(known)} tokens pass the model's max_length {self.config.max_length}"
            )
        order = infill(known.cpu(), streams)
        model.check_order(order)
        given = self.config.eos_token_id if eos_token_id is None else eos_token_id
        eos = [given] if isinstance(given, int) else list(given or ())
        with without_dropout(model):
            text, end = _written(model, tokens.clone(), known.cpu(), order, Sampler(**choice), eos)
        pad = next((t for t in (pad_token_id, self.config.pad_token_id, *eos) if t is not None), 0)
        behind = torch.arange(len(known), device=text.device) > end[:, None]
        return text.masked_fill(behind & ~known.to(text.device), pad)


def _written(
    model: Any, text: Tensor, known: Tensor, order: Order, sampler: Sampler, eos: list[int]
) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b"]]:
    """The text, and where each row ends: at the first EOS that was drawn, of any
    that there are."""
    given, n = int(known.sum()), len(known)
    blocks, there = order.blocks(), known.clone()
    last = [at for block in blocks[:given] for at in block]
    place = torch.arange(n, device=text.device)
    end, cache = torch.full((len(text),), n, device=text.device), PlainCache(model, len(text))
    for block in blocks[given:]:
        logits = model.logits(model.norm(cache.step(text[:, last], last, block)))
        text[:, block] = sampler.draw(logits)
        there[block], last = True, block
        if eos:
            drawn = torch.isin(text, text.new_tensor(eos)) & (there & ~known).to(text.device)
            end = torch.where(drawn, place, n).amin(1)
            written = n if bool(there.all()) else int((~there).long().argmax())
            if bool((end < written).all()):
                break
    return text, end


class PlainCache:
    """Keys and values of every layer, and the context rows before the first one."""

    def __init__(self, model: Any, batch: int) -> None:
        self.model, self.config = model, cast(ArmdConfig, model.config)
        self.neighbor = self.config.query in ("neighbor", "shift")
        """Query rows stand where the token before theirs stands, in every layer."""
        self.two = self.config.n_layers if self.neighbor else self.config.n_two_stream
        self.first = model.bos.expand(batch, 1, -1)[:, :0]
        self.at: list[int] = []
        """Where the context rows stand: BOS at 0, tokens from 1 on."""
        self.pairs: list[tuple[Tensor, Tensor] | None] = [None] * self.config.n_layers

    def step(self, tokens: Tensor, at: list[int], wanted: list[int]) -> Float[Tensor, "b k d"]:
        """The tokens at these places become context rows; the final rows of those wanted."""
        begins, before = not self.at, len(self.at)
        context = self.model.embedding(tokens)
        if begins:
            context = torch.cat([self.model.bos.expand(len(tokens), 1, -1), context], 1)
            self.at.append(0)
        self.at += [p + 1 for p in at]
        self.first = torch.cat([self.first, context], 1)
        # the layers above the two streams keep keys of query rows, of what is given, too
        also = at if begins and self.two < self.config.n_layers else []
        total, queries = len(self.at), [*also, *wanted]
        strict = [*range(1, len(also) + 1), *[total] * len(wanted)]
        reach = [*range(1, total + 1)] if begins else [total] * (total - before)
        among = [*range(1, len(also) + 1), *[total - 1 + len(wanted)] * len(wanted)]
        rows = torch.cat([context, self.first_queries(queries, strict)], 1)
        stand = [*self.at[before:], *(p if self.neighbor else p + 1 for p in queries)]
        for index in range(self.two):
            rows = self.layer(index, rows, stand, total - before, [*reach, *strict])
        rows, stand = rows[:, total - before :], stand[total - before :]
        for index in range(self.two, self.config.n_layers):
            rows = self.layer(index, rows, stand, len(queries), among)
        return rows[:, len(also) :]

    def first_queries(self, queries: list[int], strict: list[int]) -> Float[Tensor, "b k d"]:
        """What query rows start from: prefix sums, or the token before."""
        if self.neighbor:
            slots = {p: slot for slot, p in enumerate(self.at)}
            rows = [
                self.first[:, slots[p]] if p in slots else self.sums([p], [len(self.at)])[:, 0]
                for p in queries
            ]
            return torch.stack(rows, 1)
        return self.sums(queries, strict)

    def sums(self, queries: list[int], strict: list[int]) -> Float[Tensor, "b k d"]:
        code = self.model.position_codes(max(*queries, *self.at) + 2).to(self.first.dtype)
        limit = torch.tensor(strict, device=code.device)
        seen = torch.arange(len(self.at), device=code.device) < limit[:, None]
        weight = code[[p + 1 for p in queries]] @ code[self.at].mT
        return self.model.first_query_from_sums((weight * seen) @ self.first, limit)

    def layer(
        self, index: int, rows: Tensor, stand: list[int], writers: int, limit: list[int]
    ) -> Float[Tensor, "b k d"]:
        """Rows through a layer. The first `writers` leave keys and values."""
        layer = cast(Layer, self.model.layers[index])
        at = torch.tensor(stand, device=rows.device)
        rope = rope_cos_sin(at[None], self.config).to(rows.dtype)
        normed, old = layer.attention_norm(rows), self.pairs[index]
        visible, keys_at = (torch.tensor([t], device=at.device) for t in (limit, self.at))
        adapted = None
        if self.config.adapter_rank:
            adapted = out_of_order(at[None], keys_at, visible).to(rows.dtype)
        key, value = layer.keys_values(
            normed[:, :writers], rope[:, :writers], *taken(adapted, slice(writers))
        )
        if old is not None:
            key, value = torch.cat([old[0], key], 1), torch.cat([old[1], value], 1)
        self.pairs[index] = (key, value)
        right = right_keys(at[None], keys_at, self.config)
        mask = LimitMask(visible, key.shape[1], right)
        query = layer.queries(normed, rope, *taken(adapted))
        seen = attention(query, key, value, mask, layer.right_bias)
        return layer.project_and_mlp(rows, seen, *taken(adapted))
