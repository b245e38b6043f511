"""The clients that measure servers say what is wrong in a line."""

import asyncio
from pathlib import Path

import pytest

from armd.bench.faults import bench_faults
from armd.bench.http_client import Recorder
from armd.bench.load import Load, put_load
from armd.errors import ArmdError


@pytest.mark.parametrize(
    "url", ["localhost", "http://localhost/", ":8000", "a:b", "a:²", "a:99999"]
)
def test_an_address_is_a_host_and_a_port(url: str) -> None:
    with pytest.raises(ArmdError, match="is no host and port"):
        asyncio.run(put_load(Load(url)))


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"seed": 0}', '{"seed": 0, "found": [1]}'],
)
def test_counts_of_another_kind_are_named(content: str, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    file.write_text(content)
    none = dict.fromkeys(("kills", "disks", "folders", "commands", "requests", "owners", "cuts"), 0)
    with pytest.raises(ArmdError, match="holds no counts of armd bench faults"):
        bench_faults(**none, json=file)
    assert file.read_text() == content


def test_a_refusal_in_parts_is_one_refusal() -> None:
    async def refused() -> None:
        line = Recorder()
        line.data_received(b"HTTP/1.1 429 Too Many Requests\r\n")
        line.data_received(b"content-length: 2\r\n\r\n{}")
        await line.over

    with pytest.raises(ConnectionError, match="429"):
        asyncio.run(refused())
