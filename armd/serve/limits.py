"""The limits of a server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of the server."""

    slots: int = 8
    """Sequences decoded together."""
    queue: int = 64
    """Sequences that may wait for a slot."""
    max_body: int = 1 << 20
    """Bytes of a request."""
    timeout: float = 120.0
    """Seconds after which a request returns its partial text."""
    threads: int | None = None
    """CPU threads of a forward pass; None: by the size of the model."""
    step_tokens: int = 256
    """Tokens that a decode step may draw in one sequence: all requests wait for the same step."""
