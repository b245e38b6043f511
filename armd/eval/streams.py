"""`armd eval streams`: what writing in streams costs, on held-out text."""

from __future__ import annotations

import time
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from ..errors import ArmdError
from ..runtime.progress import progress, rate
from .results import beside, read_results, stamp, table, tried_to_write

if TYPE_CHECKING:
    import torch

    from .load_model import Loaded

STREAMS = (1, 2, 4, 8)


def eval_streams(
    model: tyro.conf.Positional[str],
    /,
    *,
    data: str,
    streams: tuple[int, ...] = STREAMS,
    prompt: int = 0,
    windows: int = 8,
    window: int | None = None,
    tokenizer: str | None = None,
    device: str | None = None,
    precision: Literal["float32", "bfloat16", "int8"] = "float32",
    json: Path | None = None,
) -> list[dict[str, Any]]:
    """Exact likelihood of the same windows in strided orders of 1, 2, 4 and 8 streams.

    Args:
        model: A save_pretrained folder of an ARMD model, or a training run.
        data: Texts, parted by commas: a name, name=PATH, or PATH.
        streams: Numbers of streams; 1, left to right, is what the others are compared with.
        prompt: So many tokens of a window are given first, and not scored.
        windows: How many whole windows of a text to take, evenly spread over it.
        window: Tokens in a window; 1024, or the most the model takes.
        tokenizer: Its folder or name, if the model's folder has none.
        device: cpu, cuda or cuda:N; the GPU if there is one.
        precision: Of weights and arithmetic; sums are float64. int8 rounds the weights.
        json: The figures go here.
    """
    from .corpora import find_corpora
    from .load_model import load
    from .windows import PROTOCOLS

    earlier = read_results(json, "streams")
    corpora = find_corpora(data, PROTOCOLS["exact"].splits)
    loaded = load(model, tokenizer=tokenizer, device=device, precision=precision)
    if loaded.kind != "armd" or not loaded.model.any_order:
        raise ArmdError(f"{model} knows one order only; streams need an ARMD model")
    length = min(1024, loaded.model.config.max_length) if window is None else window
    check(loaded, streams, prompt, windows, length)
    results, unwritten = [], ""
    for corpus in corpora:
        rows = spread_windows(loaded, corpus, length, windows)
        settings = {"model": model, "data": corpus.name, "source": corpus.source}
        facts = {
            "text": corpus.fingerprint,
            "weights": loaded.fingerprint,
            "config": loaded.config,
            "precision": loaded.precision,
        }
        with progress(corpus.name, len(rows) * len({1, *streams})) as report:
            figures = costs(loaded, rows, streams, prompt, report)
        results.append({**settings, **facts, "prompt": prompt, **figures, **stamp()})
        if len(corpora) > 1:  # the table comes after the last of them
            nats = (f"S={row['streams']} {row['nats_per_token']:.4f}" for row in figures["streams"])
            print(f"{corpus.name}: {', '.join(nats)} nats/token", flush=True)
        unwritten = tried_to_write(json, "streams", beside(earlier, results))
    print(shown(results))
    if unwritten:
        raise ArmdError(unwritten)
    return results


def check(loaded: Loaded, streams: tuple[int, ...], prompt: int, windows: int, length: int) -> None:
    if length > loaded.model.config.max_length:
        most = loaded.model.config.max_length
        raise ArmdError(f"a window of {length} passes the model's {most} tokens; lower --window")
    if windows < 1:
        raise ArmdError(f"--windows {windows} must be at least 1")
    if not 0 <= prompt < length:
        raise ArmdError(f"--prompt {prompt} must leave some of the window's {length} tokens")
    if not streams or min(streams) < 1 or max(streams) > length - prompt:
        raise ArmdError(f"--streams must be between 1 and the {length - prompt} tokens to score")


def spread_windows(loaded: Loaded, corpus: Any, length: int, count: int) -> torch.Tensor:
    """Whole windows of a text, the first one and others at even distances."""
    import torch

    from .windows import whole_windows

    rows = list(whole_windows("exact", loaded, corpus, length))
    corpus.check()
    count = min(count, len(rows))
    return torch.tensor([rows[number * len(rows) // count] for number in range(count)])


def costs(
    loaded: Loaded, rows: torch.Tensor, streams: tuple[int, ...], prompt: int, report: Any
) -> dict[str, Any]:
    """Nats of the scored tokens by streams, and what each boundary between two streams costs."""
    import torch

    n, start, done = rows.shape[1], time.perf_counter(), 0
    nats: dict[int, torch.Tensor] = {}
    seconds: dict[int, float] = {}
    for count in dict.fromkeys((1, *streams)):
        order, begin = prompted(n, prompt, count), time.perf_counter()
        parts = []
        for row in rows:
            with torch.inference_mode():
                log_p = loaded.scorer().log_probs(row[None].to(loaded.model.device), order, prompt)
            parts.append(-log_p[0, prompt:].double().sum().cpu())
            done += 1
            report(done, rate(done * n, time.perf_counter() - start))
        nats[count] = torch.stack(parts)
        seconds[count] = (time.perf_counter() - begin) / len(rows)
    scored = n - prompt
    made = []
    for count in dict.fromkeys(streams):
        mean, apart = float(nats[count].mean()) / scored, (nats[count] - nats[1]) / scored
        spread = float(apart.std()) / len(rows) ** 0.5 if len(rows) > 1 else None
        more = float(apart.mean())
        boundary = more * scored / (count - 1) if count > 1 else 0.0
        figures = {"streams": count, "nats_per_token": mean, "nats_more": more, "error": spread}
        times = {"times_perplexity": exp(more), "nats_per_boundary": boundary}
        made.append({**figures, **times, "seconds_per_window": round(seconds[count], 3)})
    return {"window": n, "windows": len(rows), "tokens_scored": scored * len(rows), "streams": made}


def prompted(n: int, prompt: int, streams: int) -> Any:
    """Strided runs of what follows a prompt, which is given left to right."""
    import torch

    from ..model.order import infill

    return infill(torch.arange(n) < prompt, streams)


def shown(results: list[dict[str, Any]]) -> str:
    header = ["data", "streams", "ppl", "nats/token", "more than S=1", "error", "times S=1"]
    header += ["nats/boundary", "s/window"]
    rows = [
        [
            result["data"],
            str(row["streams"]),
            f"{exp(row['nats_per_token']):.3f}",
            f"{row['nats_per_token']:.4f}",
            f"{row['nats_more']:+.4f}",
            "" if row["error"] is None else f"{row['error']:.4f}",
            f"{row['times_perplexity']:.3f}",
            f"{row['nats_per_boundary']:.1f}" if row["streams"] > 1 else "",
            f"{row['seconds_per_window']:.2f}",
        ]
        for result in results
        for row in result["streams"]
    ]
    counts = [result["windows"] for result in results for _ in result["streams"]]
    many = f"{counts[0]} window{'s' * (counts[0] != 1)}"
    if len(set(counts)) > 1:
        header.insert(1, "windows")
        rows = [[row[0], str(count), *row[1:]] for row, count in zip(rows, counts, strict=True)]
        many = "windows"
    first = results[0]
    given = f", the first {first['prompt']} given" if first["prompt"] else ""
    none = "; of a single window there is none" if 1 in counts else ""
    return "\n".join(
        [
            table(header, rows),
            f"{many} of {first['window']} tokens{given}; exact log-likelihood of each strided "
            f"order; error: of the difference, from its spread over windows{none}",
        ]
    )
