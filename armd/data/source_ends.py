"""What a tokenizer puts around each text: nothing beside our weights, because our model has a BOS
row of its own, and what the source's put there again on the way back."""

import json
from pathlib import Path
from typing import Any

from ..errors import ArmdError

KEPT = "source_adds"
"""The entry of tokenizer_config.json that says what was taken away."""
FLAGS = ("add_bos_token", "add_eos_token")
A, B = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
NOTHING = {"type": "TemplateProcessing", "single": [A], "pair": [A, B], "special_tokens": {}}


def without_ends(processor: Any) -> Any:
    """A post-processor, as tokenizer.json has it, that adds no tokens; None stays None."""
    if processor is None:
        return None
    kind = processor["type"]
    if kind == "Sequence":
        return processor | {"processors": [without_ends(one) for one in processor["processors"]]}
    if kind == "TemplateProcessing":
        texts = {
            name: [part for part in processor[name] if "Sequence" in part]
            for name in ("single", "pair")
        }
        return processor | texts | {"special_tokens": {}}
    return NOTHING if kind in ("BertProcessing", "RobertaProcessing") else processor


def leave_out_ends(folder: Path) -> None:
    """Let the tokenizer in a folder add no BOS and no EOS, and note what it added."""
    if not (folder / "tokenizer.json").is_file():
        return
    whole, settings = _read(folder)
    own = whole.get("post_processor")
    try:
        plain = without_ends(own)
    except (TypeError, KeyError, RecursionError) as error:
        raise _damaged(folder, repr(error)) from None
    asked = {name: settings[name] for name in FLAGS if name in settings}
    if plain == own and not any(asked.values()):
        return
    settings |= dict.fromkeys(FLAGS, False)
    if plain != own or KEPT not in settings:
        settings[KEPT] = {"post_processor": own, **asked}
    _write(folder, whole | {"post_processor": plain}, settings)


def put_back_ends(folder: Path) -> None:
    """Let the tokenizer in a folder add what the source's added, if that is noted there."""
    if not (folder / "tokenizer.json").is_file():
        return
    whole, settings = _read(folder)
    kept = settings.pop(KEPT, None)
    if not isinstance(kept, dict):
        return
    for name in FLAGS:
        settings.pop(name, None)
    settings |= {name: kept[name] for name in FLAGS if name in kept}
    _write(folder, whole | {"post_processor": kept.get("post_processor")}, settings)


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json, which need not be there."""
    found = []
    for name in ("tokenizer.json", "tokenizer_config.json"):
        try:
            text = (folder / name).read_text("utf-8") if (folder / name).is_file() else "{}"
            found.append(json.loads(text))
        except (OSError, ValueError, RecursionError) as error:
            raise _damaged(folder, str(error)) from None
    if not all(isinstance(one, dict) for one in found):
        raise _damaged(folder, "it holds no table")
    return found[0], found[1]


def _write(folder: Path, whole: dict[str, Any], settings: dict[str, Any]) -> None:
    for name, content in (("tokenizer.json", whole), ("tokenizer_config.json", settings)):
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / name).write_text(text + "\n", "utf-8")


def _damaged(folder: Path, reason: str) -> ArmdError:
    return ArmdError(f"the tokenizer in {folder} is damaged ({reason}); copy it again")
