"""Which documents does a file hold? Text, JSON lines and parquet, compressed or not, read as a
stream. Splitting works on bytes, so a message can say where in the file the trouble is."""

import gzip
import io
import json
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from ..errors import ArmdError

COMPRESSED = (".gz", ".xz", ".zst")
FORMATS = (".txt", ".jsonl", ".parquet")
PIECE = 1 << 20


class Document(NamedTuple):
    text: str
    position: int  # bytes of the source read so far: what the progress bar shows


@dataclass(frozen=True)
class Reading:
    """How files are read."""

    documents: str = "file"
    """What a document of a text file is: file, line, blank (paragraphs), or a separating text."""
    field: str = "text"
    """The JSON key or parquet column that holds the text."""
    replace_invalid: bool = False
    """Put U+FFFD where the bytes are no valid UTF-8, instead of stopping."""


def file_format(path: Path) -> str:
    """.txt, .jsonl or .parquet, or what else the name ends in, without its compression. JSON lines
    have other endings, too, as in C4."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    ending = suffixes[-1] if suffixes else ""
    return ".jsonl" if ending in (".json", ".ndjson") else ending


def need_pyarrow(what: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ArmdError(f"{what} needs pyarrow: pip install 'armd[eval]'") from None
    return pyarrow


class XzStreams(io.RawIOBase):
    """All streams of a .xz file, and the zeros between them. (Python's own reader leaves out what
    it cannot read behind the first.)"""

    def __init__(self, raw: IO[bytes]) -> None:
        self.raw, self.packed, self.stream = raw, b"", lzma.LZMADecompressor()
        self.begun = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self.stream.eof:
                self.packed, self.begun = self.stream.unused_data, False
                self.stream = lzma.LZMADecompressor()
            if not self.packed and self.stream.needs_input:
                self.packed = self.raw.read(PIECE)
                if not self.packed and self.begun:
                    raise EOFError("it ends in the middle of a stream")
                if not self.packed:
                    return 0
            if not self.begun:
                self.packed = self.packed.lstrip(b"\0")
                if not self.packed:
                    continue
            self.begun = True
            found = self.stream.decompress(self.packed, len(buffer))
            self.packed = b""
            if found:
                buffer[: len(found)] = found
                return len(found)


def unpacked(path: Path, raw: IO[bytes]) -> IO[bytes]:
    """The bytes of a file, without its compression."""
    match path.suffix.lower():
        case ".gz":
            return cast(IO[bytes], gzip.open(raw))
        case ".xz":
            return cast(IO[bytes], io.BufferedReader(XzStreams(raw)))
        case ".zst":
            arrow = need_pyarrow(f"reading {path.name}")
            return io.BufferedReader(arrow.CompressedInputStream(raw, "zstd"))
    return raw


DOCUMENTS = ("file", "line", "blank")
"""What a document of a text file is; anything else separates documents."""


def whole_pieces(stream: IO[bytes], documents: str) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of every document of a text stream."""
    if documents == "file":
        yield 0, stream.read()
    elif documents == "line":
        offset = 0
        for line in stream:
            yield offset, line.rstrip(b"\r\n")
            offset += len(line)
    elif documents == "blank":
        yield from paragraphs(stream)
    else:
        yield from separated(stream, documents.encode())


def paragraphs(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Runs of lines between blank lines."""
    start, offset, lines = 0, 0, []
    for line in stream:
        if line.strip():
            if not lines:
                start = offset
            lines.append(line)
        elif lines:
            yield start, b"".join(lines).rstrip(b"\r\n")
            lines = []
        offset += len(line)
    if lines:
        yield start, b"".join(lines).rstrip(b"\r\n")


def separated(stream: IO[bytes], separator: bytes) -> Iterator[tuple[int, bytes]]:
    """What stands between separators, without the line ends beside them."""
    start, rest = 0, bytearray()
    while piece := stream.read(PIECE):
        # A separator may lie across the border of two pieces: search again from just before it.
        searched = max(0, len(rest) - len(separator) + 1)
        rest += piece
        begin = 0
        while (end := rest.find(separator, max(begin, searched))) >= 0:
            yield start + begin, bytes(rest[begin:end])
            begin = end + len(separator)
        start += begin
        del rest[:begin]
    yield start, bytes(rest)


def decoded(path: Path, offset: int, data: bytes, *, replace_invalid: bool) -> str:
    """Strict UTF-8, or a message that says where it is not."""
    zero = data.find(b"\0")
    if zero >= 0 and not replace_invalid:
        raise ArmdError(f"{path} is no UTF-8 text: zero byte at offset {offset + zero}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if replace_invalid:
            return data.decode("utf-8", errors="replace")
        raise ArmdError(
            f"{path} is no valid UTF-8 at byte {offset + error.start}; "
            "--replace-invalid puts U+FFFD there"
        ) from None


def text_documents(path: Path, stream: IO[bytes], reading: Reading) -> Iterator[str]:
    strip = reading.documents not in ("file", "line", "blank")
    for offset, data in whole_pieces(stream, reading.documents):
        text = decoded(path, offset, data, replace_invalid=reading.replace_invalid)
        yield text.strip("\r\n") if strip else text


def json_documents(path: Path, stream: IO[bytes], reading: Reading) -> Iterator[str]:
    offset = 0
    for number, line in enumerate(stream, start=1):
        text = decoded(path, offset, line, replace_invalid=reading.replace_invalid)
        offset += len(line)
        if not text.strip():
            continue
        where = f"{path} line {number}"
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:  # a number of 5000 digits, tables in tables
            reason = f"{error}; each line must hold one object"
            raise ArmdError(f"{where} is no JSON: {reason}") from None
        yield field_text(record, where, reading)


def field_text(record: Any, where: str, reading: Reading) -> str:
    """The text of one record, valid Unicode."""
    if not isinstance(record, dict) or reading.field not in record:
        keys = ", ".join(record) if isinstance(record, dict) else type(record).__name__
        raise ArmdError(f"{where} has no field '{reading.field}' (--field), only: {keys}")
    text = record[reading.field]
    if not isinstance(text, str):
        kind = type(text).__name__
        raise ArmdError(f"{where}: field '{reading.field}' is {kind}, not text; set --field")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if not reading.replace_invalid:
            raise ArmdError(
                f"{where}: half a surrogate pair at character {error.start}; "
                "--replace-invalid puts U+FFFD there"
            ) from None
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def parquet_documents(path: Path, raw: IO[bytes], reading: Reading) -> Iterator[str]:
    arrow = need_pyarrow(f"reading {path.name}")
    file = arrow.parquet.ParquetFile(raw)
    names = file.schema_arrow.names
    if reading.field not in names:
        raise ArmdError(f"{path} has no column '{reading.field}' (--field): {', '.join(names)}")
    row = 0
    # few at a time, one by one as text: a file of kilobytes may name one long text in each row
    for batch in file.iter_batches(batch_size=32, columns=[reading.field]):
        for text in batch.column(0):
            row += 1
            yield field_text({reading.field: text.as_py()}, f"{path} row {row}", reading)


def read_documents(path: Path, reading: Reading, *, empty: bool = False) -> Iterator[Document]:
    """The documents of a file, in order; empty ones are left out unless they are asked for."""
    readers = {".jsonl": json_documents, ".parquet": parquet_documents}
    reader = readers.get(file_format(path), text_documents)
    with said_in_a_line(path), path.open("rb") as raw:
        for text in reader(path, unpacked(path, raw), reading):
            if text or empty:
                yield Document(text, raw.tell() if not raw.closed else 0)


@contextmanager
def said_in_a_line(path: Path) -> Iterator[None]:
    """Whatever the readers of packed and parquet files raise becomes an ArmdError."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise ArmdError(f"{path} is damaged or cut short: {error}") from None
    except OSError as error:
        raise ArmdError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        # pyarrow's own errors are ValueErrors; ours are already one line.
        if isinstance(error, ArmdError):
            raise
        raise ArmdError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
