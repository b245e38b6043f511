"""The one error a user's mistake raises: its message names the fix."""


class ArmdError(ValueError):
    """A mistake the caller can mend. The command line prints the message and exits 2."""


def first_line(error: Exception) -> str:
    """Of what somebody else's error says; its kind, where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]
