"""AutoModelForCausalLM: the same weights left to right, with logits for the next token."""

from typing import Any, cast

import torch
from torch.nn import functional as F
from transformers import Cache, DynamicCache, GenerationMixin, StaticCache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from .errors import ArmdError
from .head import IGNORE
from .layers import Layer, attention, rope_cos_sin
from .modeling_armd import ArmdLM
from .order import left_to_right
from .padding import check_positions, checked
from .shapes import Float, Int, Tensor
from .strict_model import refuse_unknown


class ArmdForCausalLM(GenerationMixin, ArmdLM):  # type: ignore[misc]
    """Logits at i are for token i + 1, as tools for causal models expect. transformers' generate
    works; ArmdLM.generate has streams."""

    @property
    def cached(self) -> bool:
        """Left to right it is one stream of rows, so keys and values are all that a cache needs."""
        return self.config.query in ("neighbor", "shift")

    def forward(  # type: ignore[override]
        self,
        input_ids: Int[Tensor, "b n"],
        attention_mask: Tensor | None = None,
        labels: Int[Tensor, "b n"] | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Int[Tensor, "k"] | None = 0,
        **other: Any,
    ) -> CausalLMOutputWithPast:
        """With labels (as input_ids, -100 is not scored) the mean loss of all tokens but the first,
        as of any causal model. With a cache, input_ids are the tokens after those in it, and
        attention_mask is of all; padding is not scored. Without labels, logits_to_keep are the
        last so many, or the places that a tensor names."""
        position_ids = other.pop("position_ids", None)
        refuse_unknown(other)
        past = past_key_values
        if past is None and use_cache:
            past = DynamicCache()
        before = 0 if past is None else past.get_seq_length()
        n = before + input_ids.shape[1]
        if n > self.config.max_length:
            raise ArmdError(f"{n} tokens pass max_length {self.config.max_length}; cut the text")
        if position_ids is not None:
            check_positions(position_ids, input_ids, before, attention_mask)
        if past is not None:
            rows = self._continued(input_ids, attention_mask, past)
        else:
            if attention_mask is not None:
                real = checked(attention_mask, input_ids)
                # the row after the last real token is real, too
                attention_mask = (F.pad(real, (0, 1)) | F.pad(real, (1, 0))).long()
                if labels is not None:  # neither padding nor the first token of a text is scored
                    scored = real & F.pad(real, (1, 0))[:, :-1]
                    labels = labels.masked_fill(~scored.to(labels.device), IGNORE)
            # nothing sees the last token, so any will do
            text = F.pad(input_ids, (0, 1))
            rows = self.hidden(text, left_to_right(n + 1), attention_mask, most=n + 1)[:, 1:]
        loss = None
        if labels is not None:
            target = F.pad(labels[:, 1:], (0, 1), value=IGNORE).to(rows.device)
            logits = self.logits(rows)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())
        else:
            keep = 0 if logits_to_keep is None else logits_to_keep
            logits = self.logits(rows[:, slice(-keep, None) if isinstance(keep, int) else keep])
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past)  # type: ignore

    def _continued(
        self, tokens: Int[Tensor, "b n"], mask: Tensor | None, cache: Cache
    ) -> Float[Tensor, "b n d"]:
        """The final rows of tokens behind those in the cache, whose keys and values join them. BOS
        is computed each time, so that the cache holds one entry a token, as others expect."""
        if not self.cached:
            raise ArmdError(
                f"query '{self.config.query}' has no cache in the causal class; use_cache=False, "
                "or AutoModelForMaskedLM, whose generate has one"
            )
        if isinstance(cache, StaticCache):
            raise ArmdError("the causal class takes a DynamicCache; leave cache_implementation out")
        batch, n = tokens.shape
        total = cache.get_seq_length() + n
        if mask is None:
            mask = tokens.new_ones(batch, total)
        real = F.pad(checked(mask, tokens.new_empty(batch, total)), (1, 0), value=True)
        new = torch.tensor([0, *range(total - n + 1, total + 1)], device=tokens.device)
        position = (real.long().cumsum(1) - 1)[:, new]
        seen = (real[:, None] & (torch.arange(total + 1, device=new.device) <= new[:, None]))[
            :, None
        ]
        rows = self.context_rows(tokens)
        rope = rope_cos_sin(position, self.config).to(rows.dtype)
        for index, layer in enumerate(cast(list[Layer], self.layers)):
            normed = layer.attention_norm(rows)
            own = [t.transpose(1, 2) for t in layer.keys_values(normed, rope)]
            old = cache.update(own[0][:, :, 1:], own[1][:, :, 1:], index)
            key, value = (
                torch.cat([mine[:, :, :1], kept], 2).transpose(1, 2)
                for mine, kept in zip(own, old, strict=True)
            )
            read = attention(layer.queries(normed, rope), key, value, seen)
            rows = layer.project_and_mlp(rows, read)
        return self.norm(rows)[:, 1:]

    def generate(self, *args: Any, **options: Any) -> Any:
        """As transformers does. Where there is no cache, what needs one is refused: each part of a
        prompt would be taken for the whole of it."""
        settings = options.get("generation_config") or self.generation_config
        for name in ("prefill_chunk_size", "prompt_lookup_num_tokens", "assistant_model"):
            if not self.cached and options.get(name, getattr(settings, name, None)) is not None:
                raise ArmdError(
                    f"{name} needs a cache, which query '{self.config.query}' has not in the "
                    "causal class; leave it out, or use AutoModelForMaskedLM's generate"
                )
        return GenerationMixin.generate(self, *args, **options)  # type: ignore[attr-defined]

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """As transformers does, or, where there is no cache, the whole text each time. Its
        tokenizers are for stop strings and drafts, not for forward."""
        if not self.cached:
            position_ids = kwargs.get("position_ids")
            whole = {"input_ids": input_ids, "attention_mask": attention_mask}
            return whole | {"position_ids": position_ids, "logits_to_keep": 1}
        for name in ("tokenizer", "assistant_tokenizer"):
            kwargs.pop(name, None)
        kwargs["attention_mask"] = attention_mask
        return super().prepare_inputs_for_generation(input_ids, **kwargs)  # type: ignore


ArmdForCausalLM.register_for_auto_class("AutoModelForCausalLM")
# by this table Trainer knows that labels are to be shifted where it smooths them itself
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault("armd", "ArmdForCausalLM")
