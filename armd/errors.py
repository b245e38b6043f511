"""What a user's mistake raises; importable without torch."""

from .model.errors import ArmdError as ArmdError
