"""Records: each text as it is done, on the screen and in the file of samples."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArmdError
from ..runtime.atomic_files import is_device, refuse_link, replace_text
from ..runtime.lock import Held
from ..runtime.standard_streams import printable
from .generate_options import refuse_lost
from .terminal_view import coloured, live

if TYPE_CHECKING:
    from ..data.tokenizer import TextTokenizer
    from ..runtime.processes import ProcessGroup
    from .generate import Written
    from .generate_inputs import Request
    from .generate_options import Writing

DIGEST = "checksum"
"""The setting that says which model it was (pretrained.model_digest)."""
BEGIN = b'{"index": '
"""Of each record: what is cut off begins so."""


class Records:
    """Writes each record out at once, so that an interrupt keeps what was done. Of many processes,
    each writes a file of its own, and the first puts them together in the end."""

    def __init__(
        self,
        job: Writing,
        settings: dict[str, Any],
        requests: Sequence[Request],
        tokenizer: TextTokenizer,
        ranks: ProcessGroup,
    ) -> None:
        self.job, self.settings, self.tokenizer, self.ranks = job, settings, tokenizer, ranks
        self.made: list[dict[str, Any]] = []
        self.part, self.whole, self.earlier = job.out, None, list[dict[str, Any]]()
        if job.out is not None and ranks.world > 1:
            self.part = self._open_whole(job.out, requests)
        self.stream = None if self.part is None else _open(self.part)
        if self.part is not None and job.resume:
            self.made = resumed(self.part, settings, requests)
        elif self.part is not None and self.stream is not None and self.part.is_file():
            refuse_lost(job, self.part)  # another may have written it while the model was loaded
            self.stream.truncate(0)
        self.done = {record["index"] for record in [*self.earlier, *self.made]}
        self.held = None
        if self.part is not None and self.stream is not None and self.part.is_file():
            self.held = Held(self.part, self.stream.fileno())

    def _open_whole(self, out: Path, requests: Sequence[Request]) -> Path | None:
        """Of many processes: the file of this one, unless all goes to a device. What is in the file
        of all must be lost no more than if there were one, so that it is locked and read, or
        refused, in the same way."""
        self.whole = _open(out) if self.ranks.first else None
        if self.job.resume:
            self.earlier = read_records(out, self.settings, requests)[0]
        else:
            refuse_lost(self.job, out)
        if is_device(out):
            return None
        part = _followed(out).with_name(f"{_followed(out).name}.rank{self.ranks.rank}")
        refuse_link(part)
        return part

    def __enter__(self) -> Records:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self.stream is not None:
            with suppress(OSError):  # a full disk: what is whole stays whole
                self.stream.flush()
                os.fsync(self.stream.fileno())
            with suppress(OSError):
                self.stream.close()
        if self.whole is not None:
            with suppress(OSError):
                self.whole.close()
        stopped = isinstance(error, KeyboardInterrupt | OSError)
        if stopped and self.part is not None and self.part.is_file():  # a pipe would be waited for
            # an interrupt may come between writing a sample and counting it
            kept = self.part.read_bytes().count(b"\n")
            print(
                f"armd: kept {kept} samples in {self.part}; --resume goes on with them",
                file=sys.stderr,
            )

    @property
    def count(self) -> int:
        return len(self.made)

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.backend.decode(ids, skip_special_tokens=False)

    def add(self, request: Request, text: Written) -> None:
        if request.index in self.done:
            return
        record = self._record(request, text)
        if self.stream is not None:
            self.stream.write(json.dumps(record, ensure_ascii=False) + "\n")
            self.stream.flush()
            self.check()
        self.made.append(record)
        if self.ranks.world == 1:
            self._print(record)

    def check(self) -> None:
        """Raise if samples go into a file that nobody will find."""
        if self.held is not None:
            self.held.check(
                f"{self.part} was removed or replaced while samples were written to it; they went "
                "with it: give the command again"
            )

    def _record(self, request: Request, text: Written) -> dict[str, Any]:
        stops = self.job.stop and self.job.template is None
        ended = text.ids[-1] == self.tokenizer.eos and text.steps[-1] is not None
        ids = text.ids[:-1] if stops and ended else text.ids
        more = {} if text.calls is None else {"calls": text.calls}
        return {
            "index": request.index,
            "prompt": request.prompt,
            "text": self.decode(ids),
            "ids": text.ids,
            "steps": text.steps,
            "logp": [None if p is None else round(p, 6) for p in text.logp],
            **more,
            "settings": self.settings,
        }

    def _print(self, record: dict[str, Any]) -> None:
        if self.job.out is not None and not self.job.show:
            return
        if self.job.show and sys.stdout.isatty():
            return  # it stands there already
        if self.job.count > 1 or self.job.prompts is not None:
            print(f"--- {record['index']}")
        text = record["text"]
        print(printable(text) if sys.stdout.isatty() else text, flush=True)

    @contextmanager
    def watching(self, group: Sequence[Request]) -> Iterator[Callable[..., None] | None]:
        """What redraws the text while it is written, for --show on a terminal."""
        if not self.job.show:
            yield None
            return
        with live() as display:
            if display is None:
                yield None
                return

            def watch(ids: list[int], steps: list[int | None], total: int) -> None:
                display(coloured(ids, steps, total, self.decode, group[0].known))

            yield watch

    def merge(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """All records in the order of their numbers; of many processes, the first prints and
        writes them, whole or not at all."""
        if self.ranks.world == 1:
            self.check()
            return records
        records = sorted(records, key=lambda record: record["index"])
        for record in records:
            self._print(record)
        found = {record["index"]: record for record in [*records, *self.earlier]}
        records = [found[index] for index in sorted(found)] if self.ranks.first else []
        if self.job.out is not None and self.ranks.first:
            lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
            self._write_whole(self.job.out, "".join(lines))
        if self.part is not None:
            self.ranks.from_first(None)  # the whole is there before the parts go
            self.part.unlink()
        return records

    def _write_whole(self, out: Path, text: str) -> None:
        """As one process would: a device is written to, and a link of the user's followed."""
        if self.part is not None:
            replace_text(_followed(out), text)
        elif self.whole is not None:
            self.whole.write(text)
            self.whole.flush()


def resumed(
    file: Path, settings: dict[str, Any], requests: Sequence[Request]
) -> list[dict[str, Any]]:
    """The records of read_records; a last one that was cut off is removed from the file."""
    records, whole = read_records(file, settings, requests)
    try:
        os.truncate(file, whole)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ArmdError(f"cannot write {file}: {error.strerror}; name another file") from None
    return records


def read_records(
    file: Path, settings: dict[str, Any], requests: Sequence[Request]
) -> tuple[list[dict[str, Any]], int]:
    """The whole records of a file that was begun with the same settings and prompts, and how many
    bytes they are. A file of anything else is refused."""
    records: list[dict[str, Any]] = []
    whole = 0
    try:
        content = file.read_bytes()
        for line in content.splitlines(keepends=True):
            record = _parsed(line)
            if record is None:
                break
            records.append(record)
            whole += len(line)
        rest = content[whole:]
        if b"\n" in rest or not (rest.startswith(BEGIN) or BEGIN.startswith(rest)):
            raise ArmdError(
                f"{file} is damaged in line {len(records) + 1}, or no file of samples, and stays "
                "as it is; name another, or use --overwrite"
            )
        wanted = json.loads(json.dumps(settings))
        for record in records:
            found = record["settings"] if isinstance(record["settings"], dict) else {}
            same = found.get(DIGEST) == wanted[DIGEST]  # whatever the model is called
            but = {DIGEST: "", "model": ""} if same else {DIGEST: ""}
            if {**wanted, **but} != {**found, **but}:
                raise ArmdError(
                    f"{file} was written with other settings; give those, or --overwrite"
                )
            # earlier records say nothing of config and tokenizer, or nothing at all
            if not f"{wanted[DIGEST]}-".startswith(f"{found.get(DIGEST, wanted[DIGEST])}-"):
                raise ArmdError(
                    f"{file} was written with other weights, config or tokenizer than "
                    f"{wanted['model']} has now; put those back, name another file, or use "
                    "--overwrite"
                )
        asked = {request.index: request for request in requests}
        if not all(_answers(record, asked.get(record["index"])) for record in records):
            raise ArmdError(
                f"{file} was written for other prompts or blanks; give the same ones and "
                "--count, name another file, or use --overwrite"
            )
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise ArmdError(f"cannot read {file}: {error.strerror}; name another file") from None
    return records, whole


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A whole record, or None."""
    try:
        record = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not {"index", "ids", "settings"} <= set(record):
        return None
    if type(record["index"]) is not int or not isinstance(record["ids"], list):
        return None
    return record if all(type(token) is int for token in record["ids"]) else None


def _answers(record: dict[str, Any], request: Request | None) -> bool:
    """Whether a record is of this request: what was given stands in it, in the same places."""
    if request is None:  # of a higher --count, and stays
        return True
    left = len(request.tokens) - len(record["ids"])
    told = zip(request.tokens, request.known, record["ids"], strict=False)
    same = all(token == found for token, known, found in told if known)
    fits = left == 0 if request.whole else left >= 0
    return same and fits and record.get("prompt") == request.prompt


def _followed(out: Path) -> Path:
    """The file that a link of the user's leads to: what is beside it and in its place is ours."""
    return out.resolve() if out.is_symlink() else out


def _open(file: Path) -> Any:
    """The file, to add to it; what is there stays. One process writes to it at a time."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        stream = file.open("a", encoding="utf-8")
        if file.is_file():  # devices have many writers
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return stream
    except BlockingIOError:
        raise ArmdError(f"another process writes to {file}; wait for it, or name another") from None
    except OSError as error:
        raise ArmdError(f"cannot write {file}: {error.strerror}; name another file") from None
