"""The command line: which verb does which job. Each verb's module is imported only when called,
so `armd --help` answers without loading torch."""

import difflib
import importlib
import inspect
import itertools
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .cli_errors import REFUSALS, one_line, refusal_of
from .errors import ArmdError

# verb -> (module of armd, function, what it does); two words are matched before one
VERBS: dict[str, tuple[str, str, str]] = {
    "demo": ("commands.demo", "demo", "train a small model and show what it does"),
    "prepare": ("data.prepare", "prepare", "turn text into a dataset of tokens"),
    "train": ("train.command", "train_command", "train a model, or go on with a run"),
    "plan": (
        "train.cost_estimate",
        "plan",
        "what a preset costs: weights, FLOPs, memory, days",
    ),
    "inspect": (
        "train.inspect_batch",
        "inspect_batch",
        "look at the batch of one training step",
    ),
    "convert": (
        "convert.command",
        "convert_command",
        "turn a pretrained Llama-type model into ours, or back",
    ),
    "adapt": (
        "train.adapt_command",
        "adapt_command",
        "teach a converted model to write in streams",
    ),
    "quantize": ("commands.quantize", "quantize", "round weights to 8 or 4 bits, and measure it"),
    "verify": ("commands.verify", "verify", "check a run, a model or a dataset for damage"),
    "generate": ("commands.generate", "generate", "write text: continue prompts, fill blanks"),
    "eval ppl": ("eval.ppl", "eval_ppl", "perplexity by the field's protocols"),
    "eval samples": ("eval.samples", "eval_samples", "judge generated text"),
    "eval streams": ("eval.streams", "eval_streams", "what writing in streams costs"),
    "eval harness": ("eval.harness_command", "harness", "lm_eval with --model armd; its options"),
    "eval infill": ("eval.infill", "eval_infill", "what context on both sides buys"),
    "reproduce": (
        "reproduce.command",
        "reproduce",
        "the paper's experiments, in miniature or in full",
    ),
    "plot": ("plots.curves", "plot_curves", "draw the curves of runs"),
    "plot order": (
        "plots.orders",
        "plot_order",
        "draw an order: masking process, permutation, mask",
    ),
    "plot idea": ("plots.orders", "plot_idea", "draw three orders side by side: the idea"),
    "plot rows": ("plots.rows", "plot_rows", "draw the rows of a pass with the neighbor query"),
    "plot streams": (
        "plots.streams",
        "plot_streams",
        "draw which token of a text is written at which step",
    ),
    "serve": ("serve.command", "serve", "serve a model to many clients, with a page"),
    "bench train": ("bench.train", "bench_train", "time a training step against AR and GPT-2"),
    "bench adapt": ("bench.adapt", "bench_adapt", "time a step of adaptation against fine-tuning"),
    "bench eval": ("bench.eval", "bench_eval", "time perplexity against the bare forward"),
    "bench decode": ("bench.decode", "bench_decode", "time generation against other models"),
    "bench prefill": ("bench.prefill", "bench_prefill", "time the pass over a prompt"),
    "bench cache": ("bench.cache", "bench_cache", "nats lost by keys and values in bf16"),
    "bench products": ("bench.gemm", "bench_products", "time products of a few rows"),
    "bench faults": ("bench.faults", "bench_faults", "kills, full disks, damage, hostile input"),
    "bench busy": ("bench.busy", "bench_busy", "time work beside another busy process"),
    "bench fair": ("bench.fairness", "bench_fair", "time four clients beside others of all kinds"),
    "bench serve": ("bench.serve", "bench_serve", "time the server: many clients against one"),
}


COMPUTING = re.compile(
    "train|adapt|demo|generate|eval|bench (train|adapt|decode|eval|busy|products)"
)
"""Verbs whose main thread does the work, in as many threads as there are cores."""


def overview(group: str = "") -> str:
    """What `armd --help` prints; with a group, such as eval, what `armd eval --help` does."""
    shown = {verb: row for verb, row in VERBS.items() if verb.startswith(f"{group} ".lstrip())}
    width = max(map(len, shown))
    rows = "\n".join(f"  armd {verb:<{width}}  {text}" for verb, (_, _, text) in shown.items())
    return (
        f"usage: armd {group or 'VERB'} {'VERB ' if group else ''}[OPTIONS]\n\n"
        "Auto-Regressive Masked Diffusion language models.\n\n"
        f"{rows}\n\narmd {'VERB' if not group else f'{group} VERB'} --help lists a verb's options."
    )


def is_group(word: str) -> bool:
    """Whether this word is no verb by itself, but the first word of some: eval, bench."""
    return word not in VERBS and any(verb.startswith(f"{word} ") for verb in VERBS)


def find_verb(words: Sequence[str]) -> tuple[str, list[str]]:
    """The verb that `words` begin with, and the words left for it."""
    for count in (2, 1):
        verb = " ".join(words[:count])
        if len(words) >= count and verb in VERBS:
            return verb, list(words[count:])
    said = " ".join(words[:2] if f"{words[0]} " in " ".join(VERBS) + " " else words[:1])
    near = difflib.get_close_matches(said, VERBS, n=1, cutoff=0.4)
    hint = f"did you mean 'armd {near[0]}'?" if near else "armd --help lists the verbs"
    raise ArmdError(f"no verb '{said}'; {hint}")


def run(words: Sequence[str]) -> None:
    """Parse `words` and do what they say. Raises ArmdError for a user's mistake."""
    import tyro

    verb, rest = find_verb(words)
    module, function, _ = VERBS[verb]
    target = getattr(importlib.import_module(f"armd.{module}"), function)
    if list(inspect.signature(target).parameters) == ["words"]:
        return target(rest)  # its options depend on its first word, so it parses them itself
    tyro.cli(
        target,
        args=rest,
        prog=f"armd {verb}",
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone),
        registry=whole_numbers(rest),
    )


def whole_numbers(given: list[str]) -> Any:
    """How tyro reads them: none that 64 bits do not hold, which nothing could count to."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

    def read(words: list[str]) -> int:
        if len(words[0]) > 20 or not -(2**63) <= (number := int(words[0])) < 2**63:
            option = given[given.index(words[0]) - 1] if words[0] in given[1:] else "an option"
            raise OverflowError(f"{option} '{words[0][:24]}' is no whole number of 64 bits")
        return number

    registry = ConstructorRegistry()

    @registry.primitive_rule
    def rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
        whole = PrimitiveConstructorSpec(
            1, "INT", read, lambda value: type(value) is int, lambda value: [str(value)]
        )
        return whole if info.type is int else None

    return registry


def main() -> None:
    from .native.build import own_compiled_graphs
    from .runtime.signals import end_with_parent, hide_lost_interrupts
    from .runtime.standard_streams import mend_streams, outlive_reader, printable, widen
    from .runtime.threads import bind_threads, limit_spinning

    end_with_parent()
    mend_streams()
    hide_lost_interrupts()
    widen()
    # Python would put the folder that we are called in before its own, in each process of ours
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    words = sys.argv[1:]
    if any(word.startswith("--json") for word in words):
        outlive_reader()
    bind_threads() if COMPUTING.match(" ".join(words)) else limit_spinning()
    if words and not {"-h", "--help"} & {*words}:
        own_compiled_graphs()
    try:
        try:
            answer(words)
        finally:  # of SystemExit too: what cannot be written is an error, and not of Python's end
            flush_output()
    except Exception as error:
        error = refusal_of(error)
        if not isinstance(error, REFUSALS) or isinstance(error, RuntimeError | ImportError):
            raise
        if isinstance(error, BrokenPipeError):
            sys.stderr.close()
            raise SystemExit(1) from None
        print(f"armd: {printable(one_line(error))}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("armd: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def answer(words: Sequence[str]) -> None:
    """What was asked for: help, the version, or a verb's job."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        raise SystemExit(0)
    if is_group(words[0]) and words[1:] in ([], ["-h"], ["--help"]):
        print(overview(words[0]))
        raise SystemExit(0)
    if words[0] == "--version":
        from importlib.metadata import version

        print(f"armd {version('armd')}")
        raise SystemExit(0)
    check_words(words)
    check_figures(words)
    if "HF_ENDPOINT" in os.environ:  # the hub's library cannot be imported with a wrong one
        from .data.hub import endpoint

        endpoint()
    run(words)


def flush_output() -> None:
    """Raise where standard output takes no more; what it holds is lost then."""
    from .runtime.standard_streams import to_nowhere

    try:
        getattr(sys.stdout, "close_out", sys.stdout.flush)()
    except BrokenPipeError:
        to_nowhere(1)
        raise
    except OSError as error:
        to_nowhere(1)
        reason = error.strerror
        raise ArmdError(f"cannot write to standard output: {reason}; send it elsewhere") from None


def check_words(words: Sequence[str]) -> None:
    """Raise for words that are no text: nothing could print, encode or save them."""
    for number, word in enumerate(words, 1):
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            shown = word.encode("utf-8", "replace").decode()[:40]
            raise ArmdError(f"word {number} of the command ('{shown}') is no UTF-8 text")


def check_figures(words: Sequence[str]) -> None:
    """Raise, whatever the verb and before its work, where the file of --json is there and holds no
    figures: it would be replaced, and may be the text or the prompts that they are of. A named pipe
    would wait for its reader; those of a shell, in /dev, have one."""
    named = [word for option, word in itertools.pairwise(words) if option == "--json"]
    named += [word.removeprefix("--json=") for word in words if word.startswith("--json=")]
    for path in map(Path, named):
        if path.is_fifo() and Path("/dev") not in path.absolute().parents:
            raise ArmdError(
                f"{path} is a named pipe; give --json the name of a file, or /dev/stdout"
            )
        if path.is_dir():
            raise ArmdError(f"{path} is a folder; give --json the name of a file in it")
        if path.is_file() and path.stat().st_size and not holds_figures(path):
            raise ArmdError(f"{path} is there and holds no figures; give --json another name")


OTHERS = ("config.json", "data.json", "manifest.json", "newest.json", "facts.json", "sha256.json")
OTHERS += ("vocab.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
"""Files of runs, models and datasets, which are JSON too: these, and all that end in _config.json
or .index.json."""


def holds_figures(path: Path) -> bool:
    import json

    if path.name in OTHERS or path.name.endswith(("_config.json", ".index.json")):
        return False
    try:
        found = None if path.suffix == ".jsonl" else json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict | list)


if __name__ == "__main__":
    main()
