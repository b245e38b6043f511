"""Is what transformers loaded a causal language model, and all of it from the files?

A weight that is in no file transformers makes at random, and a model that reads both sides of a
place it loads as a causal one: each then has a perplexity, which means nothing."""

from __future__ import annotations

from typing import Any

from ..errors import ArmdError, first_line

REPORTED = {"output_loading_info": True, "ignore_mismatched_sizes": True}
"""Options of from_pretrained: what did not fit is told, not logged."""
TOKENS = 8
"""That the model is asked about."""
ROUNDING, COARSE = 1e-4, 0.05
"""How far two answers to one context may differ, of the spread of the logits, in 32 bits and in 16.
Of transformers' models, tiny and untrained and in 32 bits, the causal ones differ by 1e-6 at most,
the others by 3e-4 at least."""


def checked(name: str, loaded: Any) -> Any:
    """The model out of what `from_pretrained(..., **REPORTED)` gives; raises unless it is whole and
    causal."""
    from ..model.strict_model import StrictModel

    model, info = loaded
    if not isinstance(model, StrictModel):  # ours, which has looked at its weights itself
        check_whole(name, model, info)
    check_causal(name, model.eval())
    return model


def check_whole(name: str, model: Any, info: dict[str, Any]) -> None:
    """Raise if a weight was made at random. Tied ones are not missing, and buffers are computed."""
    buffers = {name for name, _ in model.named_buffers()}
    if missing := sorted(set(info["missing_keys"]) - buffers):
        raise ArmdError(
            f"{name} lacks {len(missing)} of the weights of {type(model).__name__}, such as "
            f"{missing[0]}; save it as a {type(model).__name__}, or copy it again"
        )
    if other := sorted(str(entry[0]) for entry in info["mismatched_keys"]):
        raise ArmdError(
            f"{name} does not fit its own config.json: {other[0]} has another shape; copy both "
            "files again"
        )


def check_causal(name: str, model: Any) -> None:
    """Raise if what the model says after the first tokens depends on the tokens behind them."""
    import torch

    most = getattr(model.config, "max_position_embeddings", None) or TOKENS
    size, length = model.get_input_embeddings().weight.shape[0], min(TOKENS, most)
    seen = length // 2  # in both rows alike
    ids = torch.arange(length).repeat(2, 1) + size // 2  # special tokens stand at the ends
    ids[1, seen:] -= size // 2 - size // 4
    try:
        with torch.inference_mode():
            logits = model((ids % size).to(model.device), use_cache=False).logits.float()
    except Exception as error:  # whatever a model raises that wants more than tokens
        reason = first_line(error)
        raise ArmdError(f"{name} is no model of text alone ({reason}); give one that is") from None
    off = (logits[0, :seen] - logits[1, :seen]).square().mean().sqrt()
    bound = ROUNDING if torch.finfo(model.dtype).bits >= 32 else COARSE
    if off > bound * logits.std(-1).max():
        raise ArmdError(
            f"{name} ({model.config.model_type}) sees the tokens that it is to predict; give a "
            "causal language model, which reads from left to right"
        )
