"""`armd bench eval`: what does `armd eval ppl` cost over the model's bare forward pass?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from ..errors import ArmdError
from ..runtime.atomic_files import write_figures

if TYPE_CHECKING:
    from ..eval.corpora import Corpus
    from ..eval.load_model import Loaded


@dataclass(frozen=True)
class Cost:
    """Seconds for the same windows, each side's best and median, and the memory it takes."""

    tokens: int
    forward: float
    forward_median: float
    scoring: float
    """Windows at hand: the forward pass and the probabilities."""
    scoring_median: float
    eval: float
    """From the file: read, detokenise, tokenise, cut, score, add up."""
    eval_median: float
    share: float
    """Speed of eval, of that of the bare forward; by the best times."""
    share_median: float
    memory: int | None
    """Bytes on top of the weights."""
    memory_grown: int | None
    """The same for a text `growth` times as long."""


def bench_eval(
    model: tyro.conf.Positional[str],
    /,
    *,
    data: str,
    windows: int = 32,
    batch: int = 8,
    window: int | None = None,
    repeats: int = 5,
    growth: int = 8,
    tokenizer: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    json: Path | None = None,
) -> Cost:
    """Time perplexity, reading included, against logits alone, interleaved in one process; and
    measure the memory of a text and of one many times as long.

    Args:
        model: A save_pretrained folder, a training run, or a Hugging Face causal LM.
        data: One text: name=PATH, or PATH.
        windows: How many windows a repetition scores.
        batch: Windows at a time, for both sides.
        window: Tokens in a window; 1024, or the most the model takes.
        repeats: Repetitions that count; one more goes before them.
        growth: How many times as long the longer text is; 1 leaves the memory out.
        tokenizer: Its folder or name, if the model's folder has none.
        device: cpu, cuda or cuda:N; the GPU if there is one.
        threads: Of torch; all cores if not given.
        json: The figures go here.
    """
    import torch

    from ..eval.infill import one_text
    from ..eval.load_model import load
    from .timing import check_positive

    check_positive(windows=windows, batch=batch, window=window, growth=growth, threads=threads)
    check_positive(repeats=repeats)
    if threads:
        torch.set_num_threads(threads)
    loaded = load(model, tokenizer=tokenizer, device=device)
    length = window or min(1024, loaded.scorer().max_length)
    cost = measure(loaded, one_text(data), length, windows, batch, repeats=repeats, growth=growth)
    print(shown(cost, length, batch, growth))
    if json:
        settings = {"model": model, "data": data, "window": length, "batch": batch}
        settings |= {"windows": windows, "threads": torch.get_num_threads(), "growth": growth}
        settings |= {"device": str(loaded.model.device), "repeats": repeats}
        content = {"kind": "bench eval", "settings": settings, **asdict(cost)}
        write_figures(json, content)
    return cost


def measure(
    loaded: Loaded,
    corpus: Corpus,
    length: int,
    windows: int,
    batch: int,
    *,
    repeats: int,
    growth: int,
) -> Cost:
    from .timing import interleave, peak_memory

    work = sides(loaded, corpus, length, windows, batch)
    device = loaded.model.device
    memory: list[int | None] = [None, None]
    if growth > 1:
        for place, times in enumerate((1, growth)):
            longer = sides(loaded, repeated(corpus, growth), length, windows * times, batch)
            memory[place] = peak_memory(longer["eval"], device)
    times = interleave(work, repeats=repeats, device=device)
    bare, whole = times["forward"], times["eval"]
    return Cost(
        tokens=windows * length,
        **{name: side.best for name, side in times.items()},
        **{f"{name}_median": side.median for name, side in times.items()},
        share=bare.best / whole.best,
        share_median=bare.median / whole.median,
        memory=memory[0],
        memory_grown=memory[1],
    )


def repeated(corpus: Corpus, times: int) -> Corpus:
    """The same rows again and again."""

    def read() -> Iterator[str]:
        return chain.from_iterable(corpus.read() for _ in range(times))

    return replace(corpus, read=read)


def sides(
    loaded: Loaded, corpus: Corpus, length: int, windows: int, batch: int
) -> dict[str, Callable[[], Any]]:
    """The bare forward pass, the scoring of windows at hand, and all of `armd eval ppl`."""
    import torch

    from ..eval.infill import token_windows
    from ..eval.perplexity import Scoring, perplexity, score_windows
    from ..eval.windows import PROTOCOLS, Window

    scoring = Scoring(batch=batch, limit=windows)
    rows = token_windows(loaded, corpus, length, windows)
    if len(rows) < windows:
        raise ArmdError(f"{corpus.source} has {len(rows)} windows of {length}; lower --windows")
    batches = torch.tensor(rows, device=loaded.model.device).split(batch)

    @torch.inference_mode()
    def forward() -> None:
        for tokens in batches:
            loaded.model(tokens)

    def score() -> None:
        given = (Window(index, ids) for index, ids in enumerate(rows))
        list(score_windows(loaded.scorer(), given, scoring, first=True))

    def evaluate() -> None:
        perplexity(loaded, corpus, PROTOCOLS["exact"], scoring, window=length)

    return {"forward": forward, "scoring": score, "eval": evaluate}


def shown(cost: Cost, length: int, batch: int, growth: int) -> str:
    from ..eval.results import table

    rows = []
    for name, best, median in (
        ("bare forward, all logits", cost.forward, cost.forward_median),
        ("scoring of windows at hand", cost.scoring, cost.scoring_median),
        ("armd eval ppl", cost.eval, cost.eval_median),
    ):
        shares = (f"{cost.forward / best:.1%}", f"{cost.forward_median / median:.1%}")
        rate = f"{cost.tokens / best:,.0f}"
        rows.append([name, f"{best:.3f}", f"{median:.3f}", rate, *shares])
    header = ["", "best s", "median s", "tokens/s", "of bare, best", "median"]
    lines = [table(header, rows), f"{cost.tokens:,} tokens, windows of {length}, batch {batch}"]
    if cost.memory is not None and cost.memory_grown is not None:
        small, large = (size / 2**20 for size in (cost.memory, cost.memory_grown))
        lines.append(
            f"memory on top of the weights: {small:.0f} MiB; {large:.0f} MiB for a text {growth} "
            "times as long"
        )
    return "\n".join(lines)
