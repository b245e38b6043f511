"""`armd eval ppl`: zero-shot perplexity on the benchmarks, each protocol by its name."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ..data.tokenizer import whole_hash
from ..errors import ArmdError
from ..runtime.processes import ProcessGroup, process_group
from ..runtime.progress import progress
from .peer_detokenize import PEER_DETOKENIZERS
from .perplexity import DRAWN, Scoring, drawn, perplexity
from .results import read_results, stamp, table, tried_to_write
from .windows import PROTOCOLS, Protocol

if TYPE_CHECKING:
    from .corpora import Corpus
    from .load_model import Loaded
    from .scorer import Scorer

BERT = 30_522
"""Tokens of bert-base-uncased."""
MOST_STEPS = 10**6
"""Of a masking process."""


def eval_ppl(
    model: tyro.conf.Positional[str],
    /,
    *,
    data: str | None = None,
    protocol: Literal["exact", "sedd", "mdlm", "bd3lm", "rows", "lm1b", "lm1b-packed"] = "exact",
    scoring: Annotated[Scoring, tyro.conf.arg(name="")] = Scoring(),  # noqa: B008
    window: int | None = None,
    tokenizer: str | None = None,
    device: str | None = None,
    precision: Literal["float32", "bfloat16", "int8", "q8", "q4"] = "float32",
    json: Path | None = None,
) -> list[dict[str, Any]]:
    """Perplexity of a model on texts it was not trained on.

    Args:
        model: A save_pretrained folder, a training run, or a Hugging Face causal LM.
        data: Data sets, parted by commas: a name, name=PATH, or PATH.
        protocol: How texts are detokenised, cut and counted. exact: all tokens once; sedd, mdlm,
            bd3lm: as those projects do; rows: each row alone; lm1b, lm1b-packed: as in Table 3.
        scoring: Orders and batches.
        window: Tokens in a window; the protocol's (1024, lm1b's 128), or the most the model takes.
        tokenizer: Its folder or name, if the model's folder has none.
        device: cpu, cuda or cuda:N; the GPU if there is one.
        precision: Of weights and arithmetic; sums are float64. int8, q8 and q4 round the
            weights, as `armd generate --weights` does.
        json: Results go here after each data set; what is there with these settings is not redone.
    """
    from .corpora import find_corpora
    from .load_model import load

    chosen = PROTOCOLS[protocol]
    corpora = find_corpora(
        chosen.data if data is None else data, chosen.splits, chosen.detokenizers
    )
    done = read_results(json, "ppl")
    made, unwritten = [], ""
    with process_group() as ranks:
        loaded = load(model, tokenizer=tokenizer, device=device, precision=precision)
        scorer = loaded.scorer()
        length = min(chosen.window, scorer.max_length) if window is None else window
        check_options(scoring, length, scorer.drawn)
        asked = [settings_of(loaded, corpus, protocol, length, scoring) for corpus in corpora]
        if not ranks.same(asked):
            raise ArmdError(
                f"{model} or a text was replaced while it was loaded; give the command again"
            )
        done = ranks.from_first(done)  # the others may have found another file, or none
        for corpus, settings in zip(corpora, asked, strict=True):
            known = {"settings": settings, "data": corpus.name}
            ends = {"row_ends": row_ends(chosen, corpus)}
            result = next((r for r in done if r | known == r), {})
            if not is_whole(result | ends, chosen, scoring, length, scorer):
                done = [one for one in done if one is not result]
                result = evaluated(loaded, corpus, chosen, scoring, length, ranks)
                result |= {"settings": settings, **ends}
                done.append(result)
                if ranks.first:
                    if len(corpora) > 1:  # the table comes after the last of them
                        print(f"{corpus.name}: perplexity {marked(result)}", flush=True)
                    unwritten = tried_to_write(json, "ppl", done)
            made.append(result | ends)
        if ranks.first:
            print(shown(made, chosen, scoring, length, scorer))
            print(other_tokenizer(chosen, loaded.tokenizer.vocab_size), end="")
    if unwritten:
        raise ArmdError(unwritten)
    return made


def other_tokenizer(protocol: Protocol, vocab_size: int) -> str:
    """A warning where the paper's Table 3 is over other tokens."""
    if not protocol.free_bos or vocab_size == BERT:
        return ""
    return (
        f"Table 3 is over the {BERT:,} tokens of bert-base-uncased, this is over {vocab_size:,}: "
        "not to be compared; prepare and train with --tokenizer bert-base-uncased\n"
    )


def settings_of(
    loaded: Loaded, corpus: Corpus, protocol: str, window: int, scoring: Scoring
) -> dict[str, Any]:
    """What a result depends on: with the same settings it need not be made again."""
    lines = PROTOCOLS[protocol].by_row and not corpus.ends  # earlier versions scored their ends
    return {
        "model": loaded.name,
        "weights": loaded.fingerprint,
        "tokenizer": whole_hash(loaded.tokenizer),
        "kind_of_model": loaded.kind,
        "precision": loaded.precision,
        "protocol": protocol,
        "window": window,
        **used(scoring, loaded.scorer().drawn),
        "text": corpus.fingerprint,
        **({"rows_are": "lines without their ends"} if lines else {}),
    }


def evaluated(
    loaded: Loaded,
    corpus: Corpus,
    protocol: Protocol,
    scoring: Scoring,
    window: int,
    ranks: ProcessGroup,
) -> dict[str, Any]:
    """One data set's figures, with all that is needed to make them again."""
    with progress(corpus.name, shown=ranks.first) as report:
        figures = perplexity(
            loaded, corpus, protocol, scoring, window=window, ranks=ranks, report=report
        )
    corpus.check()
    return {**figures, "config": loaded.config, "parameters": loaded.parameters, **stamp()}


def used(scoring: Scoring, noisy: bool) -> dict[str, Any]:
    """The settings that the result depends on."""
    settings = asdict(scoring)
    if not noisy:  # whose windows share their noise with those beside them
        del settings["batch"]
    needs = {
        "streams": scoring.order == "strided",
        "steps": scoring.order == "masking",
        "rho": scoring.order == "shuffled",
        "shuffle": scoring.order == "shuffled",
        "order": not noisy,
        "draws": noisy or scoring.order in DRAWN,
        "seed": noisy or scoring.order in DRAWN,
    }
    return {name: value for name, value in settings.items() if needs.get(name, True)}


def check_options(scoring: Scoring, window: int, noisy: bool) -> None:
    """Raise for options that the figure would not depend on, or that no window has room for."""
    settings, with_effect = asdict(scoring), used(scoring, noisy)
    for name in ("streams", "rho", "shuffle", "steps", "draws"):
        if name not in with_effect and settings[name] != getattr(Scoring, name):
            raise ArmdError(
                f"--{name} {settings[name]} has no effect with --order {scoring.order}; leave it "
                "out, or choose another --order"
            )
    if "steps" in with_effect and scoring.steps > MOST_STEPS:
        raise ArmdError(f"--steps {scoring.steps} must be between 1 and {MOST_STEPS:,}")
    for name in ("streams", "rho"):
        if name in with_effect and settings[name] > window:
            raise ArmdError(
                f"--{name} {settings[name]} must be between 1 and the window's {window} tokens"
            )


def shown(
    results: list[dict[str, Any]], protocol: Protocol, scoring: Scoring, window: int, scorer: Scorer
) -> str:
    header = ["data", "split", "ppl", "nats/token", "bits/byte", "rows", "windows", "scored"]
    header += ["dropped", "tokens/s"]
    rows = []
    for result in results:
        rate = result["tokens_scored"] * drawn(scoring, scorer.drawn) / max(result["seconds"], 1e-9)
        rows.append(
            [
                result["data"],
                result["split"],
                marked(result),
                f"{result['nats_per_token']:.4f}",
                f"{result['bits_per_byte']:.4f}",
                *(f"{result[k]:,}" for k in ("rows", "windows", "tokens_scored", "tokens_dropped")),
                f"{rate:,.0f}",
            ]
        )
    lines = [table(header, rows), described(protocol, window, results)]
    lines.append(order_line(scoring, scorer))
    for result in results:
        if "perplexity_counting_bos" in result:
            lines.append(
                f"{result['data']}: {result['perplexity_counting_bos']:.3f} if the BOS of every "
                "window is counted too, at no cost"
            )
        if "nats_standard_error" in result:
            tight = result.get("perplexity_log_mean_exp")
            lines.append(
                f"{result['data']}: {drawn(scoring, scorer.drawn)} draws, standard error of the "
                f"perplexity {result['perplexity_standard_error']:.3f}"
                + (f", by log-mean-exp <={tight:.3f}" if tight else "")
            )
        elif result["bound"] or result.get("pseudo_likelihood"):
            lines.append(f"{result['data']}: one draw has no standard error; --draws 4 gives one")
    return "\n".join(lines)


def is_whole(result: dict[str, Any], *how: Any) -> bool:
    """Whether a result that was kept can be shown; else it is made anew."""
    try:
        return result.get("nats_per_token") is not None and bool(shown([result], *how))
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        return False


def marked(result: dict[str, Any]) -> str:
    mark = "<=" if result["bound"] else "~" if result.get("pseudo_likelihood") else ""
    return f"{mark}{result['perplexity']:.3f}"


def row_ends(protocol: Protocol, corpus: Corpus) -> str:
    """Where an EOS stands: in running text where a document ends, whatever the protocol, unless
    lines are rows."""
    if not corpus.ends and not protocol.by_row:
        return "EOS after every document"
    return "EOS after every row" if protocol.row_end else "no EOS between rows"


def described(protocol: Protocol, window: int, results: list[dict[str, Any]]) -> str:
    parts = [f"protocol {protocol.name}", f"window {window}"]
    if window != protocol.window and protocol.name not in ("exact", "rows"):
        parts[1] += f" (the protocol's is {protocol.window})"
    ends: dict[str, list[str]] = {}
    for result in results:
        ends.setdefault(result["row_ends"], []).append(result["data"])
    parts += [f"{end} ({', '.join(of)})" if len(ends) > 1 else end for end, of in ends.items()]
    if protocol.wrapped:
        parts.append("BOS and EOS around every window")
    parts.append("tail scored" if protocol.tail else "tails dropped")
    if protocol.group:
        parts[-1] += f" every {protocol.group} rows"
    parts.append(f"first token {results[0]['first_token']}")
    if protocol.detokenizers is PEER_DETOKENIZERS:
        parts.append("detokenised as SEDD, MDLM and BD3-LM do")
    return "; ".join(parts)


def order_line(scoring: Scoring, scorer: Scorer) -> str:
    settings = {k: v for k, v in used(scoring, scorer.drawn).items() if k not in ("order", "limit")}
    words = ", ".join(f"{name} {value}" for name, value in settings.items())
    limit = f"; only the first {scoring.limit} windows" if scoring.limit else ""
    if scorer.figure == "pseudo-likelihood":
        return (
            f"pseudo-likelihood ({words}): each token given all others, which is neither a "
            f"likelihood nor a bound of one{limit}"
        )
    if scorer.drawn:
        return f"the model's own bound ({words}): the mean over draws of its noise{limit}"
    meaning = {
        "left-to-right": "exact log-likelihood",
        "strided": "exact log-likelihood of this block order",
        "shuffled": "a bound: the mean over such orders of the exact log-likelihood of each",
        "random": "a bound: the mean over random orders of the exact log-likelihood of each",
        "masking": "a bound: the mean over draws of the masking process",
    }[scoring.order]
    return f"order {scoring.order}{f' ({words})' if words else ''}: {meaning}{limit}"
