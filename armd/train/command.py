"""`armd train PRESET [--field value ...]`: the preset gives each field its default."""

import sys
from collections.abc import Sequence
from dataclasses import replace

from ..errors import ArmdError
from .presets import PRESETS, preset, with_model
from .recipe import Recipe
from .recipe_files import from_dict, read


def train_command(words: Sequence[str]) -> None:
    """Parse and train."""
    recipe = parse(words)
    from .loop import train

    train(recipe)


def parse(words: Sequence[str]) -> Recipe:
    """The recipe that the words ask for: the preset's for the model, changed by --config, then by
    each option."""
    import tyro

    words = _spread(list(words), "--keep-at")
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
    """The base as the model and the file of --config change it, and the words without the file."""
    model, _ = _taken(words, "--model", "the name of a model")
    file, words = _taken(words, "--config", "a file, JSON or TOML")
    if file is None:
        return with_model(base, model or base.model), words
    values = read(file)  # once: it may be a pipe
    base = with_model(base, model or from_dict(values, base, file).model)
    recipe = from_dict(values, base, file)
    if recipe.adapt.base_model:
        raise ArmdError(f"{file} is of an adaptation; use armd adapt {recipe.adapt.base_model} ...")
    return recipe, words


def _taken(words: list[str], option: str, what: str) -> tuple[str | None, list[str]]:
    """The value of an option, as OPTION VALUE or OPTION=VALUE, and the words without it; of an
    option that is given several times the last."""
    value, rest, left = None, [], iter(words)
    for word in left:
        name, is_set, given = word.partition("=")
        if name != option:
            rest.append(word)
        elif (value := given if is_set else next(left, None)) is None:
            raise ArmdError(f"{option} needs {what}")
    return value, rest


def _spread(words: list[str], option: str) -> list[str]:
    """OPTION 1,2,3 as the words OPTION 1 2 3."""
    given, rest = _taken(words, option, "whole numbers, as 60000,120000")
    return [*rest, option, *given.split(",")] if given and "," in given else words


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
