"""How much arithmetic a pass takes: multiplications and additions of its matrix products."""

from .configuration_armd import ArmdConfig
from .prefix import CHUNK


def forward_flops(config: ArmdConfig, length: int, *, batch: int = 1) -> int:
    """Of one forward pass in blocks of one token, head included. A backward pass takes twice that.
    Causal attention counts as half a square."""
    d, n = config.d_model, length
    two = 0 if config.query == "shift" else config.n_two_stream
    feed = 3 * d * config.d_ff
    weights = (config.n_layers - two) * (4 * d * d + feed)
    if two:
        # query rows need no keys and values; the last layer's context rows need nothing else
        weights += (two - 1) * (6 * d * d + 2 * feed) + (4 * d * d + feed)
    attention = (config.n_layers - two) + max(0, 2 * two - 1)
    prefix = 0
    if config.query == "prefix":
        p = config.d_pe
        prefix = min(CHUNK, n) * (p + d) + 2 * p * d * (n > CHUNK)
    each = 2 * weights + 2 * prefix + 2 * n * d * attention + 2 * d * config.vocab_size
    return batch * n * each
