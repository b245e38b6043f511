"""`armd eval samples`: generated text, read by a judge."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Literal

import tyro

from ..data.manifest import MANIFEST
from ..data.sources import digest
from ..errors import ArmdError, first_line
from .judge import DEFAULT, Judge, averages, load_judge
from .results import beside, read_results, stamp, tried_to_write
from .sample_files import Samples, heldout_samples, place_for, read_samples
from .text_metrics import text_figures

MOST_SAMPLES = 10**6


def eval_samples(
    source: tyro.conf.Positional[str],
    /,
    *,
    judge: str = DEFAULT,
    count: int = 64,
    length: int | None = None,
    streams: int = 1,
    steps: int | None = None,
    temperature: float = 1.0,
    match_entropy: float | None = None,
    seed: int = 0,
    batch: int = 8,
    tokenizer: str | None = None,
    device: str | None = None,
    precision: Literal["float32", "bfloat16"] = "float32",
    reference: Path | None = None,
    save: Path | None = None,
    overwrite: bool = False,
    json: Path | None = None,
) -> dict[str, Any]:
    """Generative perplexity, entropy, repetition of samples.

    Args:
        source: A file of samples (.jsonl with text and perhaps ids, or .txt), a model that writes
            them, or a prepared dataset: real text, windows of its held-out split.
        judge: A Hugging Face causal LM, its folder, a GGUF file, or smollm2.
        count: Samples to make, or at most to read.
        length: Tokens of a sample; 1024, or the most that the model takes.
        streams: Tokens drawn at a time, where a model writes.
        steps: Passes that a diffusion baseline may take for a batch; one a token if not given.
            BD3-LM takes at least one a block, transformer-xl one a token.
        temperature: Of the sampling, where a model writes.
        match_entropy: Search the temperature whose samples have this entropy, in bits.
        seed: Of the sampling; sample i is the same whatever the batch, but of a baseline not.
        batch: Texts written or judged at a time.
        tokenizer: The model's, if its folder has none.
        device: cpu, cuda or cuda:N; the GPU if there is one.
        precision: Of the judge's and the model's arithmetic.
        reference: Real text for MAUVE, in the forms of source.
        save: Keep the samples here, as .jsonl.
        overwrite: Replace the file of --save, if there is one.
        json: The figures go here.
    """
    check_numbers(count, batch, length)
    check_files(save, json, reference)
    if temperature != 1 and match_entropy is not None:
        raise ArmdError("--match-entropy searches the temperature; leave out --temperature")
    is_file, is_dataset = Path(source).is_file(), (Path(source) / MANIFEST).is_file()
    if is_file or is_dataset:
        used = {"--streams": streams != 1, "--steps": steps is not None}
        used |= {"--temperature": temperature != 1, "--match-entropy": match_entropy is not None}
        used |= {"--tokenizer": tokenizer is not None, "--seed": is_file and seed != 0}
        refuse_unused(source, used)
    earlier = read_results(json, "samples")
    with place_for(save, overwrite=overwrite) as keep:
        judging = load_judge(judge, device=device, precision=precision)
        cut = judging.max_length
        real = reference and read_samples(reference, judging, count=count, length=cut).texts
        if is_file:
            found = read_samples(Path(source), judging, count=count, length=min(length or cut, cut))
            refuse_unused(source, {"--length": length is not None and "length" not in found.facts})
        elif is_dataset:
            found = heldout_samples(Path(source), count=count, length=length or cut, seed=seed)
        else:
            from .generate_samples import write_samples
            from .load_model import load

            writer = load(source, tokenizer=tokenizer, device=device, precision=precision)
            found = write_samples(
                writer,
                count=count,
                length=length,
                streams=streams,
                steps=steps,
                temperature=temperature,
                match_entropy=match_entropy,
                seed=seed,
                batch=batch,
            )
        failed = keep(found)
    result = judged(found, judging, cut=cut, batch=batch)
    result |= {
        "source": source,
        "text": digest(found.texts),
        "mauve": mauve(found.texts, real),
        **stamp(),
    }
    print(shown(result))
    unwritten = tried_to_write(json, "samples", beside(earlier, [result]))
    if lost := [f"the samples are lost: {failed}"] * bool(failed) + [unwritten] * bool(unwritten):
        raise ArmdError("; ".join(lost if unwritten else [*lost, "the figures are whole"]))
    return result


def check_files(save: Path | None, figures: Path | None, reference: Path | None) -> None:
    if save is not None and figures is not None and save.resolve() == figures.resolve():
        raise ArmdError("--save and --json name one file; the figures need one of their own")
    if reference is not None and not reference.is_file():
        raise ArmdError(f"no file {reference}; --reference names real text")


def check_numbers(count: int, batch: int, length: int | None) -> None:
    if count < 1 or batch < 1 or (length is not None and length < 2):
        raise ArmdError("count and batch must be at least 1, length at least 2")
    if count > MOST_SAMPLES:
        raise ArmdError(f"--count {count} is more than {MOST_SAMPLES:,}; lower it")


def refuse_unused(source: str, used: dict[str, bool]) -> None:
    """Raise for options that a model's writing would heed, of texts that are there already."""
    for option, given in used.items():
        if given:
            raise ArmdError(f"the texts of {source} are written already; leave out {option}")


def judged(samples: Samples, judge: Judge, *, cut: int, batch: int) -> dict[str, Any]:
    """All figures of these samples under this judge."""
    eos = judge.tokenizer.eos
    again = [ids[:cut] for ids in judge.encode(samples.texts)]
    if not any(len(ids) > 1 for ids in again):
        raise ArmdError("no sample has two tokens or more; there is nothing to judge")
    result: dict[str, Any] = {
        "retokenised": averages(judge.surprise(again, batch=batch), again, eos)
    }
    if samples.ids is None:
        result["own_ids_not_judged"] = "the samples have none"
    elif samples.vocabulary is None:
        result["own_ids_not_judged"] = "the file does not say of which tokenizer they are"
    elif samples.vocabulary != judge.tokenizer.backend.get_vocab():
        result["own_ids_not_judged"] = "the judge has another vocabulary"
    else:
        straight = [ids[:cut] for ids in samples.ids]
        result["own_ids"] = averages(judge.surprise(straight, batch=batch), straight, eos)
    own = samples.ids if samples.ids is not None else again
    return result | {
        **text_figures(own),
        "entropy_over": "own tokens" if samples.ids is not None else "the judge's tokens",
        "judge": judge.name,
        "precision": judge.precision,
        "samples": len(samples.texts),
        "mean_tokens": sum(map(len, own)) / len(own),
        "cut": cut,
        "examples": samples.texts[:2],
        **samples.facts,
    }


def mauve(texts: list[str], real: list[str] | None) -> float | str:
    """MAUVE against real text, if it can be computed; otherwise why not."""
    if real is None:
        return "not run: give real text with --reference"
    if importlib.util.find_spec("mauve") is None:
        return "not run: pip install mauve-text"
    import mauve as package  # type: ignore[import-not-found]

    try:
        return float(package.compute_mauve(p_text=real, q_text=texts).mauve)
    except Exception as error:  # it asks the hub for a model; the other figures are there already
        return f"not run: {first_line(error)}"


def shown(result: dict[str, Any]) -> str:
    lines = []
    for name, meaning in (("retokenised", "decoded, retokenised"), ("own_ids", "own token ids")):
        if name in result:
            part = result[name]
            lines.append(
                f"generative perplexity ({meaning}), ± one standard error: "
                f"corpus {part['corpus']:.2f} ± {part['corpus_standard_error']:.2f}, "
                f"mean of sequences {part['mean_of_sequences']:.2f} "
                f"± {part['mean_standard_error']:.2f}, {part['tokens_scored']:,} tokens scored"
            )
    if "own_ids" not in result:
        lines.append(f"own token ids: not judged; {result['own_ids_not_judged']}")
    lines.append(
        f"unigram entropy ({result['entropy_over']}): {result['entropy_bits']:.3f} bits, "
        f"{result['entropy_nats']:.3f} nats"
    )
    share = ", ".join(f"{n}: {result[f'distinct_{n}']:.3f}" for n in (1, 2, 3, 4))
    lines.append(f"distinct-n {share}; repeated 4-grams {result['repetition_4']:.3f}")
    lines.append(f"MAUVE: {result['mauve']}")
    names = ("judge", "precision", "samples", "mean_tokens", "cut", "form", "model", "streams")
    names += ("steps", "model_calls", "batches", "temperature", "seed", "sampling_precision")
    lines.append(", ".join(f"{name} {result[name]}" for name in names if name in result))
    if result.get("prompts"):
        lines.append(f"{result['prompts']} of the texts hold their prompt, which is judged, too")
    lines.append(
        "a text's first token is not scored; the corpus average counts only the first EOS of a text"
    )
    return "\n".join(lines)
