"""`armd eval infill`: what context on both sides of a blank buys."""

from __future__ import annotations

from itertools import islice
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from ..errors import ArmdError
from ..runtime.seeds import seeded
from .results import beside, read_results, stamp, table, write_results

if TYPE_CHECKING:
    from .corpora import Corpus
    from .load_model import Loaded

SHARES = (0.1, 0.3, 0.5)
MOST_CANDIDATES = 1024


def eval_infill(
    model: tyro.conf.Positional[str],
    /,
    *,
    data: str,
    shares: tuple[float, ...] = SHARES,
    windows: int = 64,
    window: int | None = None,
    seed: int = 0,
    batch: int = 8,
    fill: bool = False,
    candidates: int = 1,
    tokenizer: str | None = None,
    device: str | None = None,
    precision: Literal["float32", "bfloat16"] = "float32",
    json: Path | None = None,
) -> list[dict[str, Any]]:
    """Blanks in held-out text: their exact likelihood given the left side alone, and given both.

    Args:
        model: A save_pretrained folder of an ARMD model, or a training run.
        data: One text: name=PATH, or PATH.
        shares: How much of a window is blank.
        windows: How many windows of the text to take.
        window: Tokens in a window; 1024, or the most the model takes.
        seed: Of the choice of blanks, the same for every model.
        batch: Windows at a time.
        fill: Also fill the spans greedily, and with several candidates draw them: ROUGE-L and how
            many are exactly the text.
        candidates: Also with so many candidates for each span: at least so much is gained.
        tokenizer: Its folder or name, if the model's folder has none.
        device: cpu, cuda or cuda:N; the GPU if there is one.
        precision: Of weights and arithmetic; probabilities are float64.
        json: The figures go here.
    """
    from .infill_scores import check_share
    from .load_model import load

    if not shares:
        raise ArmdError("--shares names no share; give one or more, such as 0.3, or leave it out")
    for share in shares:
        check_share(share)
    earlier = read_results(json, "infill")
    loaded = load(model, tokenizer=tokenizer, device=device, precision=precision)
    if loaded.kind != "armd" or not loaded.model.any_order:
        raise ArmdError(f"{model} knows one order only; infilling needs an ARMD model")
    length = min(1024, loaded.model.config.max_length) if window is None else window
    if windows < 1 or batch < 1:
        raise ArmdError("--windows and --batch must be at least 1")
    if not 1 <= candidates <= MOST_CANDIDATES:
        raise ArmdError(f"--candidates {candidates} must be between 1 and {MOST_CANDIDATES}")
    if length < 2:
        raise ArmdError(f"a window of {length} tokens has no two sides; raise --window")
    corpus = one_text(data)
    rows = token_windows(loaded, corpus, length, windows)
    results = []
    for kind in ("tokens", "spans"):
        for share in shares:
            figures = infilling(loaded, rows, kind=kind, share=share, seed=seed, batch=batch)
            if fill and kind == "spans":
                add_fills(figures, loaded, rows, share=share, seed=seed)
            if candidates > 1 and kind == "spans":
                add_candidates(figures, loaded, rows, count=candidates, seed=seed, fill=fill)
            settings = {"model": model, "data": data, "window": length, "seed": seed}
            facts = {"weights": loaded.fingerprint, "config": loaded.config}
            results.append({**settings, **facts, "text": corpus.fingerprint, **figures})
    marked = [{**result, **stamp()} for result in results]
    print(shown(results))
    write_results(json, "infill", beside(earlier, marked))
    return marked


def one_text(data: str) -> Corpus:
    from .corpora import find_corpora
    from .windows import PROTOCOLS

    (corpus, *more) = find_corpora(data, PROTOCOLS["exact"].splits)
    if more:
        raise ArmdError(f"--data {data} names several texts, this takes one; run it once for each")
    return corpus


def token_windows(loaded: Loaded, corpus: Corpus, length: int, count: int) -> list[list[int]]:
    """The first whole windows of a text."""
    from .windows import whole_windows

    rows = list(islice(whole_windows("sedd", loaded, corpus, length), count))
    corpus.check()
    return rows


def infilling(
    loaded: Loaded, rows: list[list[int]], *, kind: str, share: float, seed: int, batch: int
) -> dict[str, Any]:
    """Both contexts on the same blanks."""
    import torch

    from .infill_scores import fill_blanks

    blank, tokens = hidden_in(rows, kind, share, seed), torch.tensor(rows)
    place = loaded.model.device
    figures: dict[str, Any] = {
        "blanks": kind,
        "share": share,
        "windows": len(rows),
        "tokens_scored": int(blank.sum()),
    }
    for name, full in (("left", False), ("both", True)):
        made = [
            fill_blanks(loaded.model, ids.to(place), hidden.to(place), full=full)
            for ids, hidden in zip(tokens.split(batch), blank.split(batch), strict=True)
        ]
        nll = -torch.cat([part.log_p for part in made]).mean().item()
        figures[name] = {
            "nats_per_token": nll,
            "perplexity": exp(nll),
            "token_accuracy": torch.cat([part.right for part in made]).double().mean().item(),
            "exact_match": torch.cat([part.whole for part in made]).double().mean().item(),
        }
    gain = figures["left"]["nats_per_token"] - figures["both"]["nats_per_token"]
    return figures | {"nats_gained": gain}


def hidden_in(rows: list[list[int]], kind: str, share: float, seed: int) -> Any:
    """The blanks of each window, (windows, n)."""
    import torch

    from .infill_scores import hide

    places = (seeded(seed, number) for number in range(len(rows)))
    return torch.stack([hide(len(rows[0]), share, kind, generator=place) for place in places])


def add_fills(
    figures: dict[str, Any], loaded: Loaded, rows: list[list[int]], *, share: float, seed: int
) -> None:
    """What greedy filling of these spans gives, from the left and from both sides."""
    import torch

    from ..checked_pack import pack_checked
    from .infill_fills import fill_greedily

    blank, fast = hidden_in(rows, "spans", share, seed), pack_checked(loaded.model)
    for name, found in fill_greedily(fast, torch.tensor(rows), blank).items():
        figures[name] |= found


def add_candidates(
    figures: dict[str, Any],
    loaded: Loaded,
    rows: list[list[int]],
    *,
    count: int,
    seed: int,
    fill: bool,
) -> None:
    """What so many candidates for each of these spans gain, at least; and, if wanted, what is drawn
    without and with them."""
    import torch

    from ..checked_pack import pack_checked
    from .infill_candidates import gained
    from .infill_fills import fill_drawn

    blank, fast = hidden_in(rows, "spans", figures["share"], seed), pack_checked(loaded.model)
    options = {"candidates": count, "seed": seed}
    figures["candidates"] = gained(loaded.model, fast, rows, blank, **options)
    if fill:
        texts = torch.tensor(rows)
        figures["both"]["drawn"] = fill_drawn(fast, texts, blank, candidates=1, seed=seed)
        figures["candidates"]["drawn"] = fill_drawn(fast, texts, blank, **options)


def shown(results: list[dict[str, Any]]) -> str:
    header = ["blanks", "share", "tokens", "ppl left", "ppl both", "nats gained"]
    header += ["accuracy left", "both", "exact match left", "both"]
    rows = []
    for result in results:
        left, both = result["left"], result["both"]
        rows.append(
            [
                result["blanks"],
                f"{result['share']:.0%}",
                f"{result['tokens_scored']:,}",
                f"{left['perplexity']:.2f}",
                f"{both['perplexity']:.2f}",
                f"{result['nats_gained']:.4f}",
                *(f"{side['token_accuracy']:.4f}" for side in (left, both)),
                *(f"{side['exact_match']:.4f}" for side in (left, both)),
            ]
        )
    first = results[0]
    return "\n".join(
        [
            table(header, rows),
            *fills_shown(results),
            f"{first['windows']} windows of {first['window']} tokens, seed {first['seed']}; exact "
            "log-likelihood of the blanks, one by one: left, given all that stands before each; "
            "both, given all known tokens and the earlier blanks",
            "accuracy: the most probable token is the true one, all before it being true; exact "
            "match: so in every blank of a window, which is when greedy filling returns the text",
        ]
    )


def fills_shown(results: list[dict[str, Any]]) -> list[str]:
    """A line for each kind of filling."""
    filled = [result for result in results if "rouge_l" in result["left"]]
    fills = [
        f"spans filled greedily, {result['share']:.0%} blank, {result['left']['fills']} spans: "
        f"ROUGE-L (tokens, F1) left {result['left']['rouge_l']:.4f}, both "
        f"{result['both']['rouge_l']:.4f}; exactly the text left "
        f"{result['left']['exact_fills']:.4f}, both {result['both']['exact_fills']:.4f}"
        for result in filled
    ]
    chosen = [
        f"one of {result['candidates']['count']} candidates for each span, {result['share']:.0%} "
        f"blank: at least {result['candidates']['nats_gained']:.4f} nats gained, error "
        f"{result['candidates']['error']:.4f}"
        for result in results
        if "candidates" in result
    ]
    drawn = [
        f"spans drawn: ROUGE-L one draw {one['rouge_l']:.4f}, one of {many['count']} candidates "
        f"{many['drawn']['rouge_l']:.4f}; exactly the text {one['exact_fills']:.4f}, "
        f"{many['drawn']['exact_fills']:.4f}"
        for result in results
        if (one := result["both"].get("drawn")) and (many := result["candidates"])
    ]
    return [*fills, *chosen, *drawn]
