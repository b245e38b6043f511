"""httptools' request parser, without upgrades to other protocols."""

from contextlib import suppress
from typing import Any

import httptools

HOP = (b"upgrade", b"http2-settings")
"""Headers, and options of the Connection header, that offer another protocol."""

FEW_CHUNKS, CHUNK = 64, 512
"""What comes at once may have so many chunks, and one more for each CHUNK bytes."""
END = b"\r\n"
"""Two for each chunk."""


def has_many_chunks(data: bytes) -> bool:
    return data.count(END) > 2 * (FEW_CHUNKS + len(data) // CHUNK)


class HttpParser:
    """A server may ignore an offer to switch protocols (RFC 9110, 7.8): Java's HttpClient and
    `curl --http2` send one with each request. httptools takes such a head for the end of HTTP and
    skips the body, which would be read as the next request. So such a head is parsed again without
    the offer; `protocol` ignores callbacks while `should_upgrade` is true."""

    def __init__(self, protocol: Any) -> None:
        self.protocol = protocol
        self._renew()

    def _renew(self) -> None:
        self.parser = httptools.HttpRequestParser(self.protocol)
        with suppress(AttributeError):  # as uvicorn does; before httptools 0.6.3 there is none
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.get_method, self.get_http_version = (
            self.parser.get_method,
            self.parser.get_http_version,
        )
        self.should_upgrade = self.parser.should_upgrade
        self.should_keep_alive = self.parser.should_keep_alive

    def feed_data(self, data: bytes) -> None:
        while True:
            try:
                return self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                data = self._plain_head() + data[stopped.args[0] :]
                self._renew()

    def _plain_head(self) -> bytes:
        """The head that was just parsed, without the offer."""
        parser = self.parser
        line = b"%b %b HTTP/%b" % (
            parser.get_method(),
            self.protocol.url,
            parser.get_http_version().encode(),
        )
        lines = [line]
        for name, value in self.protocol.headers:
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                value = b", ".join(o for o in options if o.lower() not in HOP)
            if name not in HOP:
                lines.append(b"%b: %b" % (name, value))
        if any(b"\r" in one or b"\n" in one for one in lines):
            raise httptools.HttpParserInvalidMethodError("a line break inside of a header")
        return b"\r\n".join([*lines, b"", b""])
