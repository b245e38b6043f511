"""How long a test waits for an event before it gives up: long enough for the slowest machine. Tests
never wait for a fixed time where they can wait for an event."""

PATIENCE = 900.0
