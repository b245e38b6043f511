"""AutoModelForCausalLM: the same weights left to right, with logits for the next token."""

from typing import Any

from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutput

from .errors import ArmdError
from .head import IGNORE
from .modeling_armd import ArmdLM
from .order import left_to_right
from .shapes import Int, Tensor
from .strict_model import refuse_unknown


class ArmdForCausalLM(GenerationMixin, ArmdLM):  # type: ignore[misc]
    """Logits at i are for token i + 1, as tools for causal models expect. transformers' generate
    works, without a cache; ArmdLM.generate has one, and streams."""

    def forward(  # type: ignore[override]
        self,
        input_ids: Int[Tensor, "b n"],
        attention_mask: Tensor | None = None,
        labels: Int[Tensor, "b n"] | None = None,
        logits_to_keep: int = 0,
        **other: Any,
    ) -> CausalLMOutput:
        """With labels (as input_ids, -100 is not scored) the mean loss of all tokens but the first,
        as of any causal model."""
        refuse_unknown({name: value for name, value in other.items() if name != "position_ids"})
        n = input_ids.shape[1]
        if n >= self.config.max_length:
            raise ArmdError(
                f"the token after {n} passes max_length {self.config.max_length}; cut the text"
            )
        if attention_mask is not None:  # the row after the last real token is real, too
            real = attention_mask != 0
            attention_mask = (F.pad(real, (0, 1)) | F.pad(real, (1, 0))).long()
        # nothing sees the last token, so any will do
        rows = self.hidden(F.pad(input_ids, (0, 1)), left_to_right(n + 1), attention_mask)[:, 1:]
        loss = None
        if labels is not None:
            target = F.pad(labels[:, 1:], (0, 1), value=IGNORE).to(rows.device)
            logits = self.logits(rows)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())
            return CausalLMOutput(loss=loss, logits=logits)  # type: ignore[arg-type]
        kept = rows[:, -logits_to_keep:] if logits_to_keep else rows
        return CausalLMOutput(logits=self.logits(kept))  # type: ignore[arg-type]

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> dict[str, Any]:
        """The whole text each time: there is no cache here."""
        return {"input_ids": input_ids, "attention_mask": attention_mask, "logits_to_keep": 1}


ArmdForCausalLM.register_for_auto_class("AutoModelForCausalLM")
