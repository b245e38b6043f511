"""Packing that is checked: does the C decode step compute what the model computes?

The C kernels know the network as armd/model/ defines it. A field or layer that somebody adds there
is unknown to them, and they would go on as if it did not exist. So after packing, a few random
tokens are decoded and scored once by the plain model. Where the two differ, the model is decoded
by torch, and a warning says so.
"""

import warnings
from types import FunctionType
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.nn.utils.parametrize import is_parametrized

from .generation.api import stream
from .model import order as orders
from .model.eval_mode import without_dropout
from .model.likelihood import log_likelihood
from .model.modeling_armd import ArmdLM
from .native.checksum import checksum
from .native.linear import BITS
from .native.packed import FastLM, pack, with_cache
from .pretrained import in_memory

LENGTH, GIVEN = 12, 3
"""Tokens of the check, and how many of them are given as a prompt."""
TOLERANCE = 2e-3
"""Of a log-probability, in nats; rounding in float32 stays far below."""
ROUNDED = 0.2
"""The same where rows are rounded to 8 bits: what differs in its last bit can be rounded to the
number beside it, while a part that the kernels do not know makes a difference of whole nats."""
SETTINGS = (int, float, bool, str)
"""Attributes of a module that a pass may depend on."""
LIBRARIES = ("torch.", "transformers.", "builtins")
"""Whose methods nobody replaces."""


def pack_checked(model: ArmdLM, weights: str = "fp32", cache: str = "fp32") -> ArmdLM:
    """As native.packed.pack, or the model itself where packed decoding would differ from it;
    `cache` is the format of keys and values, which costs precision that the check does not see."""
    return with_cache(_checked(model, weights), cache)


def pack_loaded(model: ArmdLM, weights: str = "fp32", cache: str = "fp32") -> ArmdLM:
    """The same, of a model that was just loaded: what stays of its file is read into memory. Not
    for a model of a user's, whose weights may be parts of something, or in use."""
    found = pack_checked(model, weights, cache)
    return found if isinstance(found, FastLM) else in_memory(found)


def has_hooks(model: ArmdLM) -> bool:
    """Whether something of a user's own takes part in the model's passes, such as pruning, a
    parametrization, a method of one module that was replaced, or a hook that changes activations. C
    knows weights alone."""
    everywhere = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)
    return any(everywhere) or any(
        module._forward_hooks
        or module._forward_pre_hooks
        or is_parametrized(module)
        or any(isinstance(getattr(type(module), name, None), FunctionType) for name in vars(module))
        for module in model.modules()
    )


def made_of(model: ArmdLM) -> list[Any]:
    """What a packed copy of the model follows from: equal as long as it need not be packed anew."""
    parts, methods = [], {}
    for name, module in model.named_modules(remove_duplicate=False):
        plain = {key: value for key, value in vars(module).items() if type(value) in SETTINGS}
        plain.pop("training", None)
        parts.append((name, type(module), plain))
        for kind in type(module).__mro__:
            if kind not in methods and not kind.__module__.startswith(LIBRARIES):
                methods[kind] = [m for m in vars(kind).values() if isinstance(m, FunctionType)]
    on_cpu = model.device.type == "cpu"  # elsewhere nothing is packed
    sums = [checksum(weight) for weight in model.parameters() if on_cpu]
    return [sums, parts, methods, has_hooks(model), str(vars(model.config))]


def _checked(model: ArmdLM, weights: str) -> ArmdLM:
    if has_hooks(model):
        return model
    packed = pack(model, weights)
    if not isinstance(packed, FastLM) or not packed.whole:  # decoded by torch
        return packed
    if packed is model:  # from a quantised folder
        weights = packed.weights
    # rounded weights differ from the model on purpose: there the packed weights are scored by torch
    off = largest_difference(packed, model if weights == "fp32" else packed)
    if off <= (ROUNDED if weights in BITS else TOLERANCE):
        return packed
    warnings.warn(
        f"the C decode step differs from the model (log p off by {off:.3g}): the model has parts "
        "that the kernels do not know. Decoding with torch, several times slower; "
        "docs/changing.md says what to change in C",
        stacklevel=2,
    )
    return model


@torch.no_grad()
@torch.autocast("cpu", enabled=False)  # scores in bfloat16 would differ from the kernels'
def largest_difference(packed: ArmdLM, scored_by: ArmdLM) -> float:
    """Over random tokens, decoded in a strided and in a random order (left to right alone where
    the model knows no other): the largest difference between the log p of decoding and of scoring,
    relative where log p is below -1."""
    config, generator = packed.config, torch.Generator().manual_seed(0)
    n = min(LENGTH, config.max_length)
    given = min(GIVEN, n - 1)
    known = torch.arange(n) < given
    order = orders.left_to_right(n)
    if packed.any_order:
        shuffled = orders.random(n - given, generator=generator)
        strided = orders.infill(known, min(2, n - given))
        order = orders.stack([strided, orders.completing(known, shuffled)])
    rows = order.batch or 1
    tokens = torch.randint(config.vocab_size, (rows, n), generator=generator)
    tokens = torch.nn.functional.pad(tokens, (0, 1))  # padding is drawn at position n
    decoded = torch.zeros(rows, n + 1, dtype=torch.float64)
    for step in stream(  # so hot that every token is about as probable as any other
        packed,
        tokens=tokens[:, :-1],
        known=known.expand(rows, n),
        order=order,
        temperature=100.0,
        generator=generator,
    ):
        tokens.scatter_(1, step.position, step.token)
        decoded.scatter_(1, step.position, step.logp)
    with without_dropout(scored_by):
        scored = log_likelihood(scored_by, tokens[:, :-1], order).double()
    scored = in_natural_order(scored, order)
    difference = (decoded[:, :-1] - scored)[:, ~known] / scored[:, ~known].abs().clamp(min=1)
    return float(difference.abs().nan_to_num(nan=0.0).max())


def in_natural_order(logp: torch.Tensor, order: orders.Order) -> torch.Tensor:
    return logp.gather(1, order.rows(len(logp)).inverse().expand(logp.shape))
