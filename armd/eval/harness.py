"""lm-eval's face of our model: `lm_eval --model armd --model_args pretrained=PATH`.

Newer versions of the harness find this class through the entry point in pyproject.toml. Version
0.4.13 reads no entry points: `python -m armd.eval.harness ...` registers it, then runs lm_eval.
"""

import argparse
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.model import LM  # type: ignore[import-not-found]
from lm_eval.api.registry import register_model  # type: ignore[import-not-found]
from tqdm.auto import tqdm

from ..data.template import behind_text
from ..errors import ArmdError, first_line
from ..generation.api import stream
from ..model.order import left_to_right
from ..runtime.seeds import seeded
from ..runtime.standard_streams import printable
from . import harness_names
from .harness_cache import keep_apart
from .harness_names import refuse_local_names
from .harness_options import asked, whole_number
from .load_model import Loaded, load
from .padding import filled, in_batches
from .perplexity import Scoring, score_windows
from .scorer import as_numbers, picked
from .windows import Window

ROOT = Path(__file__).parents[1]
NOT_USED = ("max_batch_size", "trust_remote_code")
"""Options of lm_eval's that it hands to every model."""


@register_model("armd")
class ArmdHarness(LM):
    """Left to right, one pass for each batch of requests."""

    def __init__(
        self,
        pretrained: str = "",
        tokenizer: str | None = None,
        device: str | None = None,
        precision: str = "float32",
        batch_size: int | str = 8,
        streams: int = 1,
        seed: int = 0,
        **rest: Any,
    ) -> None:
        super().__init__()
        if not pretrained:
            raise ArmdError("name the model's folder: --model_args pretrained=FOLDER")
        if unknown := rest.keys() - {*NOT_USED}:
            raise ArmdError(
                f"no '{min(unknown)}' in --model_args of armd; there are pretrained, tokenizer, "
                "device, precision, streams and seed"
            )
        auto = str(batch_size).startswith("auto")
        self.batch = 8 if auto else whole_number("--batch_size", batch_size, 1)
        self.streams, self.seed = whole_number("streams", streams, 1), whole_number("seed", seed, 0)
        if (device or "").startswith("cuda") and not torch.cuda.is_available():
            device = None  # the harness asks for a GPU by default
        self.loaded: Loaded = load(
            pretrained, tokenizer=tokenizer, device=device, precision=precision
        )
        if self.loaded.kind != "armd":
            raise ArmdError(f"{pretrained} is no ARMD model; use lm_eval --model hf for it")
        self.longest = self.loaded.model.config.max_length
        self._device = self.loaded.model.device
        self.told = False  # that a context was cut

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> "ArmdHarness":
        given = {name for name, value in (additional_config or {}).items() if value is not None}
        if twice := arg_dict.keys() & given:
            name = min(twice)
            raise ArmdError(f"{name} stands in --model_args; give it as --{name} instead")
        return super().create_from_arg_obj(arg_dict, additional_config)

    def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
        raise ArmdError(
            "armd gives tasks to a model as text; leave out --apply_chat_template, or ask armd "
            "serve with lm_eval --model local-chat-completions"
        )

    def set_cache_hook(self, cache_hook: Any) -> None:
        if cache_hook.dbdict is not None:
            keep_apart(cache_hook.dbdict, self.loaded, self.streams, self.seed)
        super().set_cache_hook(cache_hook)

    @property
    def tokenizer_name(self) -> str:
        return self.loaded.name

    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """log p of each continuation given its context, and whether it is the greedy one."""
        rows = [self._joined(*request.args) for request in requests]
        found: list[tuple[float, bool]] = [(0.0, True)] * len(rows)
        batches = list(in_batches([len(ids) for ids, _ in rows], self.batch))
        for places in tqdm(batches, "batches of answers", disable=disable_tqdm):
            ids = filled([rows[place][0] for place in places]).to(self._device)
            log_p, greedy = self._scored(ids)
            for row, place in enumerate(places):
                end = len(rows[place][0])
                part = slice(end - rows[place][1], end)
                value = log_p[row, part].double().sum().item(), bool(greedy[row, part].all())
                found[place] = value
                self.cache_hook.add_partial("loglikelihood", requests[place].args, value)
        return found

    def _joined(self, context: str, continuation: str) -> tuple[list[int], int]:
        """Tokens of both, cut on the left to what the model takes, and how many are scored. A
        context's last spaces go with the continuation, where the tokenizer has learned them."""
        spaces = len(context) - len(context.rstrip())
        if spaces:
            continuation = context[-spaces:] + continuation
            context = context[:-spaces]
        whole, before = self.loaded.encode([context + continuation, context])
        if continuation and len(whole) <= len(before):  # it ends a word that the context begins
            new = behind_text(lambda text: self.loaded.encode([text])[0])(continuation)
            whole = [*before, *new]
        if len(whole) > self.longest:
            self._tell(f"contexts with their answers are cut to their last {self.longest} tokens")
        return whole[-self.longest :], min(len(whole) - len(before), self.longest)

    @torch.inference_mode()
    def _scored(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.loaded.model(ids, order=left_to_right(ids.shape[1])).logits
        return as_numbers(picked(logits, ids)), logits.argmax(-1) == ids

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """log p of each whole text. A long one is scored in windows; the last is filled up with
        context before it, so that every token is scored once and none with little context."""
        found = []
        for request in tqdm(requests, "texts", disable=disable_tqdm):
            (ids,) = self.loaded.encode([request.args[0]])
            value = self._rolling(ids)
            found.append(value)
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, value)
        return found

    def _rolling(self, ids: list[int]) -> float:
        whole = len(ids) - len(ids) % self.longest if len(ids) > self.longest else len(ids)
        starts = range(0, whole, self.longest)
        windows = [Window(i, ids[s : s + self.longest][: whole - s]) for i, s in enumerate(starts)]
        scoring = Scoring(batch=self.batch)
        parts = score_windows(self.loaded.scorer(), iter(windows), scoring, first=True)
        total = -sum(part.nll for part in parts)
        if rest := len(ids) - whole:
            log_p, _ = self._scored(torch.tensor([ids[-self.longest :]], device=self._device))
            total += log_p[0, -rest:].double().sum().item()
        return total

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The continuation of each context, up to the first stop text; greedy unless a
        temperature is given."""
        found = []
        for number, request in enumerate(tqdm(requests, "texts", disable=disable_tqdm)):
            context, options = request.args
            text = self._continued(context, dict(options), number)
            found.append(text)
            self.cache_hook.add_partial("generate_until", request.args, text)
        return found

    def _continued(self, context: str, options: dict[str, Any], number: int) -> str:
        until, most, sampling = asked(options)
        ids, most = self._fitted(self.loaded.encode([context])[0], most)
        written: dict[int, int] = {}
        text = ""
        for step in stream(
            self.loaded.model,
            length=len(ids) + most,
            prompt=[ids],
            streams=min(self.streams, most),
            **sampling,
            eos=self.loaded.eos,
            generator=seeded(self.seed, number),
        ):
            drawn = step.drawn[0]
            places = step.position[0][drawn].tolist()
            written |= dict(zip(places, step.token[0][drawn].tolist(), strict=True))
            text = self._text(written, len(ids))
            if any(stop in text for stop in until):
                break
        return cut_at(text, until)

    def _fitted(self, ids: list[int], most: int) -> tuple[list[int], int]:
        """A context and the length of its answer, so that the model takes both. The answer is
        shortened first, to no less than half of the room; then the context is cut on its left."""
        most = min(most, max(self.longest - len(ids), self.longest // 2, 1))
        room = self.longest - most
        if len(ids) > room:
            self._tell(f"contexts are cut to their last {room} tokens")
        return ids[len(ids) - min(len(ids), room) :], most

    def _tell(self, what: str) -> None:
        """Once."""
        if not self.told:
            self.told = True
            limit = f"the model takes {self.longest}, answers included"
            print(f"armd: warning: {what}: {limit}", file=sys.stderr)

    def _text(self, written: dict[int, int], start: int) -> str:
        """What stands without a gap after the context, up to an EOS."""
        ids = []
        while start in written and written[start] != self.loaded.eos:
            ids.append(written[start])
            start += 1
        return self.loaded.tokenizer.backend.decode(ids, skip_special_tokens=False)


def check_limit(words: Sequence[str]) -> None:
    """Raise for a --limit that lm_eval takes, and cannot count to."""
    parser = argparse.ArgumentParser("lm_eval", add_help=False, allow_abbrev=False)
    parser.add_argument("--limit", "-L", type=float, default=1.0)
    limit = parser.parse_known_args(words)[0].limit
    if not 0 < limit < 2**63:
        raise ArmdError(f"--limit {limit:g} must be a number of examples, or a share of them")


def cut_at(text: str, until: list[str]) -> str:
    ends = [text.index(stop) for stop in until if stop in text]
    return text[: min(ends)] if ends else text


def main() -> None:
    """lm_eval's own command line, our model known to it."""
    refuse_local_names()  # before its modules take the functions
    import lm_eval.models  # type: ignore[import-not-found]  # noqa: F401 - hf and others, beside ours
    from lm_eval.__main__ import cli_evaluate  # type: ignore[import-not-found]

    try:
        check_limit(sys.argv[1:])
        cli_evaluate()
    except ArmdError as error:
        print(f"armd: {printable(str(error))}", file=sys.stderr)
        raise SystemExit(2) from None
    except Exception as error:  # lm_eval complains of its words with many kinds
        debug = os.environ.get("LMEVAL_LOG_LEVEL", "").upper() == "DEBUG"
        if debug or is_of_armd(error):
            raise
        print(f"armd: {complaint(error)}", file=sys.stderr)
        raise SystemExit(2) from None


def is_of_armd(error: Exception) -> bool:
    """Whether it came up in code of ours, or in what that called: then it is a defect of ours. What
    looks at names before it hands them on is none."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is main
    files = {Path(frame.filename) for frame in frames} - {Path(harness_names.__file__)}
    return any(file.is_relative_to(ROOT) for file in files)


def complaint(raised: Exception) -> str:
    """What to say of an error that lm_eval raises."""
    error = str(raised)
    if error.startswith(("Tasks not found", "No tasks specified")):
        return f"{error}; lm_eval ls tasks lists them"
    if found := re.match("Attempted to load model '(.*)', but no model", error):
        return (
            f"lm_eval has no kind of model '{found[1]}'; of a folder of armd say --model armd "
            "--model_args pretrained=FOLDER"
        )
    kind = type(raised).__name__
    return f"lm_eval: {kind}: {first_line(raised)} (LMEVAL_LOG_LEVEL=DEBUG shows where)"


if __name__ == "__main__":
    main()
