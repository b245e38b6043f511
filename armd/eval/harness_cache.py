"""lm_eval's --use_cache for our models. By itself it knows a result by its question alone, of
whichever model it is, and pickles it."""

import json
from typing import Any

from ..data.tokenizer import whole_hash
from .load_model import Loaded


def keep_apart(results: Any, loaded: Loaded, *options: object) -> None:
    """Make an open cache of lm_eval's keep results as JSON, and find those of this model, with
    these options, alone."""
    of = [loaded.fingerprint, loaded.precision, whole_hash(loaded.tokenizer), *options]
    results.encode, results.decode = json.dumps, as_result
    results.encode_key = lambda question: json.dumps([*of, question])


def as_result(text: str) -> Any:
    """A number, a text, or log p and whether it is the greedy one."""
    found = json.loads(text)
    return tuple(found) if isinstance(found, list) else found
