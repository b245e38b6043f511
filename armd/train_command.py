"""`armd train PRESET [--field value ...]`: the preset gives each field its default."""

import sys
from collections.abc import Sequence
from dataclasses import replace

from .errors import ArmdError
from .presets import PRESETS, preset
from .recipe import Recipe, read


def train_command(words: Sequence[str]) -> None:
    """Parse and train."""
    recipe = parse(words)
    from .train import train

    train(recipe)


def parse(words: Sequence[str]) -> Recipe:
    """The recipe that the words ask for: the preset's, changed by --config, then by each option."""
    import tyro

    words = list(words)
    name = words.pop(0) if words and not words[0].startswith("-") else ""
    if not name:
        _explain(words)
    base, words = _with_file(preset(name), words)
    recipe = tyro.cli(
        tyro.conf.OmitArgPrefixes[tyro.conf.AvoidSubcommands[Recipe]],
        args=words,
        default=base,
        prog=f"armd train {name}",
        description="Train a model, or go on with a run that stopped. --config FILE reads fields "
        "from JSON or TOML before the options.",
    )
    recipe = replace(recipe, preset=name)
    for field, text in (("data", "a folder that armd prepare made"), ("out", "the run's folder")):
        if not getattr(recipe, field):
            raise ArmdError(f"--{field} is missing: {text}")
    return recipe


def _with_file(base: Recipe, words: list[str]) -> tuple[Recipe, list[str]]:
    """Take --config FILE, or --config=FILE, out of the words."""
    for index, word in enumerate(words):
        if word == "--config" and index + 1 < len(words):
            return read(words[index + 1], base), words[:index] + words[index + 2 :]
        if word.startswith("--config="):
            return read(word.removeprefix("--config="), base), words[:index] + words[index + 1 :]
        if word == "--config":
            raise ArmdError("--config needs a file, JSON or TOML")
    return base, words


def _explain(words: list[str]) -> None:
    """What the verb does, for those who named no preset."""
    lines = [f"  {name:<16}{PRESETS[name].__doc__.splitlines()[0]}" for name in PRESETS]  # type: ignore[union-attr]
    text = (
        "usage: armd train PRESET --data FOLDER --out RUN [--field value ...] [--config FILE]\n\n"
        + "\n".join(lines)
        + "\n\narmd train PRESET --help lists the fields and the preset's values."
    )
    if any(word in ("-h", "--help") for word in words):
        print(text)
        sys.exit(0)
    raise ArmdError(f"name a preset first: armd train {' | '.join(PRESETS)} ...")
