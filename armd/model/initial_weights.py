"""How the weights of a new model start."""

from typing import Any

from torch import nn

from .configuration_armd import ArmdConfig
from .layers import Layer
from .prefix import PositionCode


class InitialWeights:
    """The part of ArmdLM that transformers calls for every module of a new model."""

    config: ArmdConfig

    def _init_weights(self, module: Any) -> None:
        std = self.config.init_std
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        elif isinstance(module, nn.RMSNorm):
            nn.init.ones_(module.weight)
        elif isinstance(module, InitialWeights):
            self._init_own(module)
            # Here, not when their own turn comes: of a model that is not its own, transformers
            # passes over every module that holds its parameters in children only.
            for part in module.modules():  # type: ignore[attr-defined]
                self._init_linears(part)

    def _init_own(self, model: Any) -> None:
        std = self.config.init_std
        nn.init.normal_(model.bos, std=std)
        if self.config.query == "neighbor":
            nn.init.normal_(model.unknown, std=std)
            nn.init.ones_(model.gate)
        if not self.config.tie_word_embeddings:
            nn.init.normal_(model.head.weight, std=std)

    def _init_linears(self, part: nn.Module) -> None:
        """Unit gain, so that positions and attention start seeing at every width: at 0.02 a narrow
        model starts nearly blind, and stays behind an autoregressive one."""
        if isinstance(part, PositionCode):
            for linear in (part.inner, part.outer):
                gain = self.config.pe_std or linear.in_features**-0.5
                nn.init.normal_(linear.weight, std=gain)
        elif isinstance(part, Layer):
            for linear in (part.query, part.key_value, part.gate_up):
                nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)
            for linear in (part.query, part.key_value, part.out, part.gate_up, part.down):
                linear.reset_adapter()
            if part.right_bias is not None:
                nn.init.zeros_(part.right_bias)
            for linear in (part.out, part.down):  # 2L branches add up to about one
                spread = (2 * self.config.n_layers * linear.in_features) ** -0.5
                nn.init.normal_(linear.weight, std=spread)
