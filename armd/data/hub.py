"""Is the Hugging Face hub there? Asked once, quickly: its client would retry for a minute."""

import os
import socket
from urllib.parse import urlsplit

from ..errors import ArmdError


def hub_reachable(timeout: float = 5.0) -> bool:
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY")):
        return True  # only the proxy knows
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    port = host.port or (80 if host.scheme == "http" else 443)
    try:
        socket.create_connection((host.hostname or "huggingface.co", port), timeout).close()
    except OSError:
        return False
    return True


def require_hub(what: str, instead: str) -> None:
    if not hub_reachable():
        raise ArmdError(f"{what}: the Hugging Face hub is not reachable; {instead}")
