"""The one error a user's mistake raises: its message names the fix."""


class ArmdError(ValueError):
    """A mistake the caller can mend. The command line prints the message and exits 2."""
