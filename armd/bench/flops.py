"""How much arithmetic a pass takes: multiplications and additions of its matrix products."""

from ..baselines import knows_orders, name_of
from ..model.configuration_armd import ArmdConfig
from ..model.prefix import CHUNK


def train_flops(
    config: ArmdConfig, length: int, *, squares: bool = False, extra_rows: float = 0
) -> float:
    """Of training, for each token of a text of `length`: a forward pass, and a backward pass of
    twice that. What is computed again to save memory does not count. Attention counts what a row
    may see; with `squares`, every key there is, as torch's counter does. `extra_rows`: of query
    "neighbor", the query rows that an order needs besides the context rows."""
    if knows_orders(name_of(config)):
        return 3 * _ordered(config, length, squares, extra_rows)
    return 3 * _denoising(config, length, squares)


def forward_flops(config: ArmdConfig, length: int, *, batch: int = 1, extra_rows: float = 0) -> int:
    """Of one forward pass of a model that knows orders, in blocks of one token, head included.
    Causal attention counts as half a square."""
    return round(batch * length * _ordered(config, length, squares=False, extra_rows=extra_rows))


def _ordered(config: ArmdConfig, n: int, squares: bool, extra_rows: float) -> float:
    """Our model and its relatives: a forward pass, for each token."""
    d, p, heads = config.d_model, config.d_pe, config.n_heads * config.d_head
    one_stream = config.query in ("shift", "neighbor")
    two = 0 if one_stream else config.n_two_stream
    query_row = 2 * d * heads + 3 * d * config.d_ff
    layer = query_row + 2 * d * config.n_kv_heads * config.d_head
    weights = (config.n_layers - two) * layer
    if two:
        # query rows need no keys and values; the last layer's context rows need nothing else
        weights += (two - 1) * (layer + query_row) + layer
    seen = n if squares else n / 2
    keys = ((config.n_layers - two) + max(0, 2 * two - 1)) * seen
    prefix = 0
    if config.query == "prefix":
        prefix = min(CHUNK, n) * (p + d) + 2 * p * d * (n > CHUNK)
    extra = extra_rows / n * (config.n_layers * (query_row + 2 * seen * heads) + n * (p + d))
    return 2 * (weights + prefix + extra + 2 * keys * heads + d * config.vocab_size)


def _denoising(config: ArmdConfig, n: int, squares: bool) -> float:
    """A diffusion baseline. Its head reads the masked tokens alone, on average half of them (of
    each block at least one), but all where noise writes any token, and 15 % as BERT is trained.
    Block diffusion has the clean text beside the noisy one. Diffusion on embeddings reads all
    tokens; its matrices from and to that space are small but not nothing."""
    name, d = name_of(config), config.d_model
    layer = 4 * d * d + 3 * d * config.d_ff
    weights, keys = config.n_layers * layer, config.n_layers * n
    read = {"sedd-uniform": 1.0, "bert-mouth": 0.15}.get(name, 0.5)
    if name.startswith("bd3lm"):
        size = config.block_size  # type: ignore[attr-defined]
        clean = (n - 1) // size * size  # nothing looks at the last block when it is clean
        weights += clean / n * ((config.n_layers - 1) * layer + 2 * d * d)
        noisy, among = (n + clean, clean) if squares else ((n + size) / 2, (clean + size) / 2)
        keys = config.n_layers * noisy + (config.n_layers - 1) * among * clean / n
        read = (size + 1) / (2 * size)
    if name == "transformer-xl":
        return _segmented(config, n, squares)
    if name in ("plaid", "diffusion-lm"):
        e = config.d_embedding  # type: ignore[attr-defined]
        # PLAID: logits of the network and of z, and the mean embedding; Diffusion-LM: the rounding
        head = d + 2 * e if name == "plaid" else e
        return 2 * (
            weights + 2 * keys * d + (1 + (name != "plaid")) * d * e + head * config.vocab_size
        )
    return 2 * (weights + 2 * keys * d + read * d * config.vocab_size)


def _segmented(config: ArmdConfig, n: int, squares: bool) -> float:
    """Transformer-XL: keys and values of memory are made again for each segment, and a score takes
    a second product, with the distance."""
    size, most = min(config.segment, n), config.memory  # type: ignore[attr-defined]
    d, starts = config.d_model, range(0, n, size)
    remembered = sum(min(start, most) for start in starts) / n
    layer = 4 * d * d + 3 * d * config.d_ff + remembered * 2 * d * d
    before = sum(min(start, most) * min(size, n - start) for start in starts) / n
    keys = before + (size if squares else size / 2)
    return 2 * (config.n_layers * (layer + 3 * keys * d) + d * config.vocab_size)
