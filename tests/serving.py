"""A server for the tests: a tiny random model that writes bytes, in a thread of this process."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from eval_models import tiny_armd, tokenizer
from patience import PATIENCE
from transformers import PreTrainedTokenizerFast

from armd.data.chat_template import ChatTemplate
from armd.native import packed as fast
from armd.serve.app import make_app
from armd.serve.server import Server, listening
from armd.serve.service import Limits, Service

EOS = 256


@dataclass(frozen=True)
class Running:
    service: Service
    port: int
    server: Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def model(self):
        return self.service.model

    def at_rest(self) -> None:
        """All slots are free, nothing waits."""
        engine = self.service.engine
        for _ in range(1000):
            if len(engine.pool.free) > engine.slots and not engine.active and not engine.waiting:
                return
            time.sleep(0.02)
        raise AssertionError("a slot is stuck")


def writer(**changes):
    """The model: 256 bytes and an EOS."""
    return fast.pack(tiny_armd(vocab_size=257, d_model=32, n_layers=2, **changes))


def chat_template() -> ChatTemplate:
    """One that bytes can write: role, colon, content, a line each, then "answer:". It takes all the
    time it is given if a content is "slow"."""
    found = object.__new__(ChatTemplate)
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer().backend)
    theirs.chat_template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}\n"
        "{% if m.content == 'slow' %}"
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
        "{% endif %}{% endfor %}answer:"
    )
    found.take(theirs)
    return found


@contextmanager
def running(
    model=None, *, grace: float = 0.0, api_key: str | None = None, chat=None, **limits
) -> Iterator[Running]:
    model, limits = writer() if model is None else model, Limits(**limits)
    service = Service(model, tokenizer(), name="tiny", parameters=7, limits=limits, chat=chat)
    opened = listening("127.0.0.1", 0)
    server = Server(service, make_app(service, api_key=api_key), grace=grace)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield Running(service, opened.getsockname()[1], server)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        service.engine.stop()
        assert service.engine.join(PATIENCE) and not thread.is_alive()
        opened.close()


def sent_until_nobody_reads(line: socket.socket, more: bytes) -> int:
    """Bytes that the server and the kernel's buffers take."""
    line.settimeout(0.5)
    sent = 0
    with suppress(TimeoutError):
        while sent < 1 << 29:
            sent += line.send(more)
    return sent
