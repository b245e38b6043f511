"""Loading a saved model: from safetensors alone, and every weight must fit."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging

from .errors import ArmdError, first_line
from .folder_check import check_inside, check_link
from .shapes import Tensor

UNKNOWN_NEIGHBOR = {
    "unknown",
    "gate",
    "query_norm.weight",
    "position_code.inner.weight",
    "position_code.outer.weight",
}
"""What a model of query "neighbor" has besides the weights of query "shift"."""
IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")
ADAPTER = "adapter_config.json"
OTHER_FILES = ("configuration_files", "transformers_weights")
"""Entries of config.json that name a config or weights; the weights may be pickled."""
logger = logging.get_logger(__name__)


class StrictModel(PreTrainedModel):
    """A model of transformers that is never loaded in part."""

    @classmethod
    def from_pretrained(cls, source: Any, *args: Any, **kwargs: Any) -> Any:
        """As transformers', but a folder that does not fit is an error."""
        wants_info = kwargs.pop("output_loading_info", False)
        check_attention(kwargs.get("attn_implementation"), kwargs.get("config"))
        source = exported(source)
        if Path(source).is_dir():
            check_weight_files(Path(source))
        kwargs |= {"use_safetensors": True, "output_loading_info": True}
        try:
            model, info = super().from_pretrained(source, *args, **kwargs)  # type: ignore[misc]
        except (SafetensorError, KeyError) as error:
            raise ArmdError(f"{source} is damaged ({error}); copy or export it again") from error
        except OSError as error:
            raise ArmdError(
                f"cannot load {source} ({first_line(error)}); give a folder that holds config.json "
                "and model.safetensors (pickled weights are never opened)"
            ) from error
        except ArmdError:
            raise
        except (RuntimeError, ValueError, AttributeError, TypeError) as error:
            raise ArmdError(
                f"{source} does not fit its own config.json: {first_line(error)}"
            ) from error
        if info["mismatched_keys"]:
            raise other_weights(source, info["mismatched_keys"])
        check_names(source, model.config, info["missing_keys"], info["unexpected_keys"])
        return (model, info) if wants_info else model


def check_attention(asked: Any, config: Any) -> None:
    """Raise for another attention than ours, which the Auto classes put into the config; what tools
    pass to every model is taken."""
    asked = asked or getattr(config, "_attn_implementation", None)
    if asked is not None and asked not in ("eager", "sdpa"):
        raise ArmdError(
            f"an armd model has its own attention, not {asked!r}; leave attn_implementation out"
        )


def exported(source: Any) -> Any:
    """The model of a training run, where the folder is one; else the source as it is."""
    inside = Path(source) / "export"
    if inside.is_symlink():
        check_link(inside, Path(source).resolve())
    return str(inside) if (inside / "config.json").is_file() else source


HARMLESS = {
    "return_dict": True,
    "use_cache": False,
    "output_attentions": False,
    "output_hidden_states": False,
}
"""What transformers and its friends pass to every model, and what we do anyway."""


TAKES = "input_ids, order, labels, weight and attention_mask"


def refuse_unknown(other: dict[str, Any], takes: str = TAKES) -> None:
    """Raise for keyword arguments that would change nothing, unless nothing is what they ask."""
    wrong = [n for n, v in other.items() if v is not None and v is not HARMLESS.get(n, other)]
    if wrong:
        raise ArmdError(f"an armd model takes no {', '.join(sorted(wrong))}; it takes {takes}")


def load_weights(model: nn.Module, weights: dict[str, Tensor], source: Any) -> None:
    """Weights of another model of the same sizes; those of query "shift" fit "neighbor"."""
    found = model.load_state_dict(weights, strict=False)
    check_names(source, model.config, found.missing_keys, found.unexpected_keys)


def check_names(
    source: Any, config: Any, missing: Collection[str], unexpected: Collection[str]
) -> None:
    """Raise unless all weights fit. Left to right, "shift" and "neighbor" are one model: there a
    line says what is new or left out. So it does where a bias to the right starts at 0."""
    new = {name for name in missing if not name.endswith(".right_bias")}
    query, left_out = getattr(config, "query", ""), set(unexpected)
    if query == "neighbor" and new == UNKNOWN_NEIGHBOR and not left_out:
        logger.warning(f"{source} is autoregressive; as query 'neighbor' it starts to learn orders")
    elif query == "shift" and left_out == UNKNOWN_NEIGHBOR and not missing:
        logger.warning(f"{source} knows orders; as query 'shift' it is left to right alone")
    elif new | left_out and new | left_out <= UNKNOWN_NEIGHBOR:
        raise ArmdError(
            f"{source} has another query than '{query}', and only 'shift' fits 'neighbor'; leave "
            "the query as its config.json has it, or train anew"
        )
    elif new or left_out:
        raise other_weights(source, sorted(new | left_out))
    elif missing:
        logger.warning(f"{source} has no bias to the right; it starts at 0")


def other_weights(source: Any, names: Collection[Any]) -> ArmdError:
    return ArmdError(
        f"{source} holds other weights than its config.json asks for, such as {next(iter(names))}; "
        "was it made by another model, or saved only in part?"
    )


def check_weight_files(folder: Path) -> None:
    """Raise if the index of the weights names anything but safetensors files of this very folder:
    transformers would unpickle a .bin that is named there. Nothing in it leads out of it."""
    check_inside(folder)
    refuse_adapter(folder)
    refuse_entries(folder / "config.json")
    index = folder / "model.safetensors.index.json"
    names = [path.name for path in folder.glob("*.safetensors")]
    if index.exists():
        try:
            names += json.loads(index.read_text("utf-8"))["weight_map"].values()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ArmdError(f"{index} is damaged; copy or export {folder} again") from None
    for name in set(map(str, names)):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ArmdError(
                f"{index} names '{name[:80]}', which is no safetensors file of this folder; "
                "pickled weights are never opened"
            )


def refuse_entries(file: Path) -> None:
    """Raise if a config names another file to be read in place of ours, or an implementation of
    attention that is no plain word: transformers would get code from the hub's folder of that
    name, and run it."""
    try:
        tables = [json.loads(file.read_text("utf-8"))] if file.is_file() else []
    except (OSError, ValueError, RecursionError) as error:
        raise ArmdError(f"{file} is damaged ({first_line(error)}); copy it again") from None
    for name in OTHER_FILES:
        if tables and isinstance(tables[0], dict) and tables[0].get(name) is not None:
            raise ArmdError(f"{file} names other files ({name}), which is refused; remove it")
    while tables:
        table = tables.pop()
        if not isinstance(table, dict):
            continue
        tables += table.values()
        for name, value in table.items():
            plain = value is None or (isinstance(value, str) and value.isidentifier())
            if name.lstrip("_").startswith(IMPLEMENTATIONS) and not plain:
                raise ArmdError(
                    f"{file} asks to run code of its own ({name}), which is refused; remove that "
                    "entry"
                )


def refuse_adapter(folder: Path) -> None:
    """transformers would read an adapter that lies beside a model, pickled or not, from wherever
    its config says."""
    if (folder / ADAPTER).exists():
        raise ArmdError(
            f"{folder} holds a model and an adapter ({ADAPTER}); remove that, or merge the two: "
            "armd convert SOURCE OUT --adapter FOLDER"
        )
