"""`armd bench cache`: what do keys and values in bf16 cost on real text?"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from ..errors import ArmdError
from ..generation.api import stream
from ..model.modeling_armd import ArmdLM
from ..model.order import strided
from ..model.shapes import Int, Tensor
from ..native.packed import pack, with_cache
from ..runtime.atomic_files import write_figures
from .decode import load_for
from .timing import check_positive


@dataclass(frozen=True)
class CacheLoss:
    """Nats a token of a text that is decoded token by token, with either cache."""

    weights: str
    streams: int
    tokens: int
    fp32: float
    bf16: float
    largest: float
    """Difference of one token's log-probability."""


def bench_cache(
    model: Annotated[str, tyro.conf.Positional],
    data: str,
    windows: int = 8,
    length: int = 512,
    streams: tuple[int, ...] = (1, 4),
    weights: tuple[str, ...] = ("fp32", "q4"),
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Decode windows of a text file step by step, each token given, with keys and values in float32
    and in bf16, and compare the log-probabilities that the steps give its tokens."""
    from ..pretrained import load_tokenizer

    check_positive(windows=windows, length=length - 1, streams=streams)
    loaded = load_for(model, length, torch.device("cpu"))
    text = Path(data).read_bytes().decode("utf-8", "replace")[: 16 * windows * length]
    ids = load_tokenizer(model).backend.encode(text, add_special_tokens=False).ids
    count = min(windows, len(ids) // length)
    if not count:
        raise ArmdError(f"{data} has {len(ids)} tokens, fewer than --length {length}")
    tokens = torch.tensor(ids[: count * length]).view(count, length)
    rows = []
    for kind in weights:
        packed = pack(loaded, kind)
        for number in streams:
            pair = [decoded(with_cache(packed, keep), tokens, number) for keep in ("fp32", "bf16")]
            rows.append(loss_of(pair, kind, number))
            print(
                "{weights}, S = {streams}, {tokens} tokens: {fp32:.4f} nats with a float32 cache, "
                "{bf16:.4f} in bf16; largest difference {largest:.3f}".format(**asdict(rows[-1])),
                flush=True,
            )
    if json_file:
        write_figures(json_file, [asdict(row) for row in rows])


def loss_of(pair: list[Tensor], weights: str, streams: int) -> CacheLoss:
    fp32, bf16 = pair
    means = (-float(fp32.mean()), -float(bf16.mean()))
    largest = float((fp32 - bf16).abs().max())
    return CacheLoss(weights, streams, fp32.numel(), *means, largest)


def decoded(model: ArmdLM, tokens: Int[Tensor, "b n"], streams: int) -> Tensor:
    """Log-probabilities that decode steps give the tokens of a text. Only its first token is drawn,
    greedily, and left out: what is given before it would pass at once, without steps."""
    known = torch.ones_like(tokens, dtype=torch.bool)
    known[:, 0] = False
    order = strided(tokens.shape[1], streams)
    found: list[Any] = []
    for step in stream(model, tokens=tokens, known=known, order=order, temperature=0.0):
        found.append(step.logp.where(step.position > 0, torch.nan))
    logp = torch.cat(found, 1)
    return logp[logp.isfinite()].double()
