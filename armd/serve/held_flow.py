"""Flow control of a connection whose bytes are parsed in turns."""

from uvicorn.protocols.http.flow_control import FlowControl


class HeldFlow(FlowControl):
    """Flow control of a connection that may hold bytes which are not parsed yet: no more are read
    meanwhile, whoever asks for them."""

    holds = False

    def hold(self) -> None:
        self.holds = True
        self.pause_reading()

    def let_go(self) -> None:
        self.holds = False
        if not self._transport.is_closing():
            self.resume_reading()

    def resume_reading(self) -> None:
        if not self.holds:
            super().resume_reading()
