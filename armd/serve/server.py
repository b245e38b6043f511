"""The HTTP server: one way to run uvicorn, for `armd serve` and for the benches."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn

from ..errors import ArmdError
from .connections import LimitedProtocol
from .log_limit import once_per_second

if TYPE_CHECKING:
    from .service import Service

DRAIN_SECONDS, DRAIN_TICKS = 0.2, 4
"""After a signal the server listens for so long, in so many ticks of its loop at least."""
LAST_SECONDS, LAST_TICKS = 1.0, 50
"""After a second signal, what was cut has at most so long to be sent."""
ACCEPTED = 32
"""New connections that an iteration of the event loop accepts. uvloop accepts one for each handle
of a listening socket, and an iteration serves a request of each connection that has one: behind
hundreds of connections that ask without end, newcomers would wait for an iteration each."""


class Server(uvicorn.Server):
    """uvicorn's server, which says when it listens, and stops the engine first."""

    def __init__(
        self,
        service: Service,
        app: Any,
        *,
        grace: float = 0.0,
        ready: Callable[[], None] | None = None,
        log_level: str = "warning",
    ) -> None:
        config = uvicorn.Config(
            app,
            log_level=log_level,
            access_log=False,
            timeout_graceful_shutdown=int(grace) + 5,
            server_header=False,
            proxy_headers=False,  # whoever connects is the client, whatever the headers say
            http=LimitedProtocol,
            ws="none",  # whatever is installed: such connections would pass by the checks
        )
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(once_per_second)
        self.service, self.grace, self.ready = service, grace, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        handles = [made for opened in sockets or () for made in (opened, *copies(opened))]
        await super().startup(handles or None)
        # uvicorn knows SIGINT and SIGTERM; under nohup SIGHUP stays ignored
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            signal.signal(signal.SIGHUP, self.handle_exit)
        if self.started and self.ready is not None:
            self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for _ in range(DRAIN_TICKS):  # clients that connected before the signal are still answered
            if not self.force_exit:
                await asyncio.sleep(DRAIN_SECONDS / DRAIN_TICKS)
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn leaves all to be cancelled, with tracebacks
            for _ in range(LAST_TICKS):  # the texts that were cut are on their way
                if self.server_state.tasks:
                    await asyncio.sleep(LAST_SECONDS / LAST_TICKS)
            await self.lifespan.shutdown()

    def handle_exit(self, sig: int, frame: Any) -> None:
        # not uvicorn's own, which would kill the process with the same signal in the end
        again = self.should_exit
        self.service.stop(0.0 if again else self.grace)
        self.should_exit, self.force_exit = True, again


def listening(host: str, port: int) -> socket.socket:
    """A socket at the address, taken before the model is loaded: a mistake shows at once."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, proto)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen()  # until then another server may bind it too
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArmdError(
            f"cannot listen at {host}:{port} ({reason}); is another server there? "
            "name another --port, or --port 0 for a free one"
        ) from None
    return made


def copies(opened: socket.socket) -> list[socket.socket]:
    """More handles of a listening socket, where the event loop takes one connection at each."""
    if not type(asyncio.get_running_loop()).__module__.startswith("uvloop"):
        return []  # asyncio's own takes all that wait
    return [opened.dup() for _ in range(ACCEPTED - 1)]


@contextmanager
def in_thread(service: Service, *, log_level: str = "warning") -> Iterator[int]:
    """The service at a free port of this machine, in a thread of this process."""
    from .app import make_app

    with listening("127.0.0.1", 0) as opened:
        server = Server(service, make_app(service), log_level=log_level)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield opened.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(20)
            service.engine.stop()
            service.engine.join(10)
