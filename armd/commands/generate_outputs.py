"""Records: each text as it is done, on the screen and in the file of samples."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArmdError
from .terminal_view import coloured, live

if TYPE_CHECKING:
    from ..data.tokenizer import TextTokenizer
    from ..runtime.processes import ProcessGroup
    from .generate import Written
    from .generate_inputs import Request
    from .generate_options import Writing


class Records:
    """Writes each record out at once, so that an interrupt keeps what was done. Of many processes,
    each writes a file of its own, and the first puts them together in the end."""

    def __init__(
        self, job: Writing, settings: dict[str, Any], tokenizer: TextTokenizer, ranks: ProcessGroup
    ) -> None:
        self.job, self.settings, self.tokenizer, self.ranks = job, settings, tokenizer, ranks
        self.made: list[dict[str, Any]] = []
        self.part = job.out
        if job.out is not None and ranks.world > 1:
            self.part = job.out.with_name(f"{job.out.name}.rank{ranks.rank}")
        self.stream = None if self.part is None else _open(self.part)

    def __enter__(self) -> Records:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self.stream is not None:
            self.stream.close()
        if kind is KeyboardInterrupt and self.part is not None:
            print(f"armd: kept {self.count} samples in {self.part}", file=sys.stderr)

    @property
    def count(self) -> int:
        return len(self.made)

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.backend.decode(ids, skip_special_tokens=False)

    def add(self, request: Request, text: Written) -> None:
        record = self._record(request, text)
        self.made.append(record)
        if self.stream is not None:
            self.stream.write(json.dumps(record, ensure_ascii=False) + "\n")
            self.stream.flush()
        if self.ranks.world == 1:
            self._print(record)

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
        print(record["text"], flush=True)

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
            return records
        records = sorted(records, key=lambda record: record["index"])
        for record in records:
            self._print(record)
        if self.job.out is not None and self.part is not None:
            if self.ranks.first:
                aside = self.job.out.with_name(f".{self.job.out.name}.{os.getpid()}")
                lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
                aside.write_text("".join(lines), "utf-8")
                aside.replace(self.job.out)
            self.ranks.from_first(None)  # the whole is there before the parts go
            self.part.unlink()
        return records


def _open(file: Path) -> Any:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("w", encoding="utf-8")
    except OSError as error:
        raise ArmdError(f"cannot write {file}: {error.strerror}; name another file") from None
