"""The model: a strictly causal, permutation-equivariant transformer of two streams.

Context rows X carry the tokens [BOS, x_0, x_1 ...] in generation order; query rows G carry one row
for each token to predict. Row k of G sees only blocks before its own, so its logits are
log p(x_k | all tokens of earlier blocks, the position of x_k). One pass scores a whole order.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import MaskedLMOutput

from .attention_inputs import AttentionInputs, attention_inputs, context_position
from .configuration_armd import ArmdConfig
from .cpu_ops import Dropout, RmsNorm
from .errors import ArmdError
from .head import IGNORE, accumulate_dtype, target_log_probs, weighted_loss
from .initial_weights import InitialWeights
from .layers import Layer, rope_cos_sin
from .neighbor_rows import InOrderRows, NeighborRows
from .order import Order, left_to_right
from .padding import unpad
from .plain_generation import PlainGeneration
from .prefix import PositionCode, prefix_sums, prefix_sums_in_blocks
from .shapes import Float, Int, Tensor
from .streams import CausalLayer, LastTwoStreamLayer, NeighborLayer, TwoStreamLayer
from .strict_model import StrictModel, refuse_unknown

AUTO_MAP = {
    "AutoModelForMaskedLM": "modeling_armd.ArmdLM",
    "AutoModelForCausalLM": "causal_armd.ArmdForCausalLM",
}
"""Which class of the saved code each of transformers' auto classes takes."""


class ArmdLM(PlainGeneration, NeighborRows, InitialWeights, StrictModel):
    """The language model. Its logits are for the token itself, as in masked language models."""

    config_class = ArmdConfig
    _input_embed_layer = "embedding"
    accepts_loss_kwargs = False  # transformers' Trainer would hand over num_items_in_batch
    base_model_prefix = ""
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = [  # noqa: RUF012
        "TwoStreamLayer",
        "LastTwoStreamLayer",
        "CausalLayer",
        "NeighborLayer",
    ]
    causal_layer = CausalLayer
    """Places behind the longest text that a row may stand for."""
    config: ArmdConfig

    def __init__(self, config: ArmdConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.bos = nn.Parameter(torch.empty(config.d_model))
        self.layers = nn.ModuleList(kind(config) for kind in self._layer_kinds())
        if config.query in ("prefix", "neighbor"):
            self.position_code = PositionCode(config.d_model, config.d_pe)
        if config.query != "shift":
            self.query_norm = RmsNorm(config.d_model, eps=config.norm_eps)
        if config.query == "neighbor":
            self.unknown = nn.Parameter(torch.empty(config.d_model))
            self.gate = nn.Parameter(torch.empty(1))
        if not config.tie_word_embeddings:
            self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.norm = RmsNorm(config.d_model, eps=config.norm_eps)
        self.dropout = Dropout(config.dropout)
        self.gradient_checkpointing = False
        self.post_init()

    def _layer_kinds(self) -> list[type[Layer]]:
        config = self.config
        if config.query == "neighbor":
            return [NeighborLayer] * config.n_layers
        two = 0 if config.query == "shift" else config.n_two_stream
        kinds: list[type[Layer]] = [TwoStreamLayer] * (two - 1)
        kinds += [LastTwoStreamLayer] * (two > 0)
        return kinds + [self.causal_layer] * (config.n_layers - two)

    def get_output_embeddings(self) -> nn.Module | None:
        return None if self.config.tie_word_embeddings else self.head

    def set_output_embeddings(self, new_embeddings: Any) -> None:
        self.head = new_embeddings

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """As transformers', and the code goes with it, so that it loads without armd."""
        from .causal_armd import ArmdForCausalLM  # named here, so that its file goes, too

        if type(self) in (ArmdLM, ArmdForCausalLM):
            self.config.auto_map = AUTO_MAP.copy()
        super().save_pretrained(*args, **kwargs)

    def hidden(
        self,
        tokens: Int[Tensor, "b n"],
        order: Order,
        attention_mask: Tensor | None = None,
        read: InOrderRows | None = None,
        most: int | None = None,
    ) -> Float[Tensor, "b n d"]:
        """The final rows, in generation order: row k knows the blocks before block[k] alone.
        Where attention_mask is 0 is padding, on the left or on the right: no token sees it.
        `read`, with neighbors: the first rows as read_in_order made them, without gradients.
        `most` tokens may be given; max_length, if it says no other number."""
        tokens = token_ids(tokens)
        order = self._fit(tokens, order, most or self.config.max_length)
        if not len(tokens):
            return self.bos.expand(*tokens.shape, -1)
        if attention_mask is not None:
            tokens, order, back = unpad(tokens, order, attention_mask)
            rows = self.hidden(tokens, order, most=most)
            return rows.gather(1, back[..., None].expand(rows.shape))
        drawn = tokens.gather(1, order.position.expand(tokens.shape))
        context = self.dropout(self.context_rows(drawn[:, :-1]))
        if self.config.query == "neighbor":
            return self.hidden_of_neighbors(context, order, read)
        inputs = attention_inputs(order, self.config, context.dtype)
        if self.config.query == "shift":
            wanted = order.position + 1
            rows = self.shift_inputs(context, self.position_codes(len(order) + 1), wanted)
            rope = self.shift_rope(inputs.context_rope, rope_cos_sin(wanted, self.config))
            inputs = replace(inputs, query_rope=rope.to(context.dtype))
        else:
            rows = torch.stack([context, self._first_query(context, order, inputs)])
        return self.norm(self.through_layers(rows, inputs))

    def context_rows(self, drawn: Int[Tensor, "b m"]) -> Float[Tensor, "b n d"]:
        """X^0: BOS, in a block before all others, then the tokens drawn so far."""
        bos = self.bos.expand(len(drawn), 1, -1)
        return torch.cat([bos, self.embedding(drawn)], 1)

    def shift_inputs(
        self,
        context: Float[Tensor, "b n d"],
        code: Float[Tensor, "length p"],
        wanted: Int[Tensor, "b2 n"],
    ) -> Float[Tensor, "b n d"]:
        """The first rows of the shifted query. Row k holds the last token and predicts the one at
        wanted[k]; left to right that position is no input."""
        return context

    def shift_rope(
        self, own: Float[Tensor, "b n half 2"], wanted: Float[Tensor, "b2 n half 2"]
    ) -> Float[Tensor, "b n ropes 2"]:
        """How these rows are turned: each to where its own token stands."""
        return own

    def position_codes(self, length: int) -> Float[Tensor, "n p"]:
        """PE of positions 0..length-1; for the mean, one constant for all makes it a plain sum."""
        if self.config.query not in ("prefix", "neighbor"):
            return self.bos.new_ones(length, 1)
        return self.position_code(length)

    def logits(self, rows: Float[Tensor, "*b d"]) -> Float[Tensor, "*b v"]:
        """The head: the embedding, or a matrix of its own."""
        return nn.functional.linear(rows, self.head_matrix())

    def head_matrix(self) -> Float[Tensor, "v d"]:
        return self.embedding.weight if self.config.tie_word_embeddings else self.head.weight

    def target_log_probs(
        self, rows: Float[Tensor, "r d"], target: Int[Tensor, "r"]
    ) -> Float[Tensor, "r"]:
        """log p of one token for each final row."""
        return target_log_probs(rows, self.head_matrix(), target)

    def _first_query(self, context: Tensor, order: Order, inputs: AttentionInputs) -> Tensor:
        """G^0: prefix aggregation over what each row sees."""
        code = self.position_codes(len(order) + 1).to(context.dtype)
        query, key = code[order.position + 1], code[context_position(order)]
        if inputs.limit is None:
            count = torch.arange(1, len(order) + 1, device=context.device)
            return self.first_query_from_sums(prefix_sums(query, key, context), count)
        sums = prefix_sums_in_blocks(query, key, context, inputs.limit)
        return self.first_query_from_sums(sums, inputs.limit)

    def first_query_from_sums(
        self, sums: Float[Tensor, "*b n d"], count: Int[Tensor, "*b2 n"] | None
    ) -> Float[Tensor, "*b n d"]:
        """G^0 from sums over `count` context rows, which only a mean asks for. With neighbors, the
        row of a query whose neighbor is unknown, about as large as an embedding."""
        if self.config.query == "mean":
            assert count is not None
            sums = sums / count[..., None]
        first = self.query_norm(sums)
        if self.config.query == "neighbor":
            first = self.unknown + self.config.init_std * self.gate * first
        return first

    def forward(
        self,
        input_ids: Int[Tensor, "b n"],
        order: Order | None = None,
        labels: Int[Tensor, "b n"] | None = None,
        weight: Float[Tensor, "... n"] | None = None,
        attention_mask: Tensor | None = None,
        **other: Any,
    ) -> MaskedLMOutput:
        """Logits (batch, n, vocabulary) in generation order: row k is for the token at position[k].
        input_ids are in natural order; without an order, left to right. attention_mask is 0 at
        padding, which changes no logit of a real token and is not scored.

        With labels (natural order, -100 is not scored) only the loss is made, never all logits: the
        mean over scored tokens, or, with weight (generation order), the weighted mean."""
        refuse_unknown(other)
        order = left_to_right(max(1, input_ids.shape[-1])) if order is None else order
        rows = self.hidden(input_ids, order, attention_mask)
        if labels is None:
            return MaskedLMOutput(logits=self.logits(rows))  # type: ignore
        if attention_mask is not None:
            labels = labels.masked_fill(attention_mask == 0, IGNORE)
        labels = labels.long()
        position = order.rows(len(labels)).position.to(labels.device)
        target = labels.gather(1, position.expand(labels.shape)).flatten()
        token_weight = (target != IGNORE).to(accumulate_dtype(rows.dtype))
        if weight is not None:
            token_weight = token_weight * weight.expand(labels.shape).flatten()
        token_weight = token_weight / token_weight.sum().clamp(
            min=torch.finfo(token_weight.dtype).tiny
        )
        loss = weighted_loss(rows.flatten(0, 1), self.head_matrix(), target, token_weight)
        return MaskedLMOutput(loss=loss)  # type: ignore

    @property
    def any_order(self) -> bool:
        """It knows other orders than left to right."""
        return self.config.query != "shift"

    def check_order(self, order: Order) -> None:
        """Raise for an order that the model does not know."""
        if not self.any_order and not order.is_left_to_right:
            raise ArmdError("query='shift' is autoregressive: it knows order left_to_right alone")

    def _fit(self, tokens: Tensor, order: Order, most: int) -> Order:
        """The order as rows for these tokens, on their device; raises where the two do not fit."""
        batch, n = tokens.shape
        if len(order) != n:
            raise ArmdError(
                f"the order is for {len(order)} tokens, the text has {n}; make them equal"
            )
        if n > most:
            raise ArmdError(
                f"a text of {n} tokens passes max_length {most}; cut it, or "
                "build the model with a larger max_length"
            )
        # elsewhere than on a CPU the check would wait for the device, and its kernels check anyway
        if tokens.device.type == "cpu" and tokens.numel():
            low, high = int(tokens.min()), int(tokens.max())
            if low < 0 or high >= self.config.vocab_size:
                raise ArmdError(
                    f"token {low if low < 0 else high} is outside the vocabulary of "
                    f"{self.config.vocab_size}; is this the model's own tokenizer?"
                )
        self.check_order(order)
        return order.rows(batch).to(tokens.device)


def token_ids(tokens: Tensor) -> Int[Tensor, "b n"]:
    """Token ids of any type of whole numbers as int64; raises for what are none."""
    whole = not (tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool)
    if tokens.dim() != 2 or not whole:
        kind = str(tokens.dtype).removeprefix("torch.")
        raise ArmdError(
            f"tokens must be integers (batch, n), not {kind} of shape {tuple(tokens.shape)}"
        )
    return tokens.long()


# so that save_pretrained ships the code, and the folder loads where armd is not installed
ArmdLM.register_for_auto_class("AutoModelForMaskedLM")
