"""Which documents are held out? Those whose content hashes below a threshold: so the split is
the same in any order of reading, and equal documents are never on both sides."""

import hashlib
from collections.abc import Iterable

from ..errors import ArmdError

HASH_BYTES = 6
WHOLE = 1 << (8 * HASH_BYTES)


def draw(seed: int, document: bytes) -> int:
    """A number below WHOLE that follows from the seed and the document alone."""
    key = seed.to_bytes(8, "little", signed=True)
    digest = hashlib.blake2b(document, digest_size=HASH_BYTES, key=key).digest()
    return int.from_bytes(digest, "little")


def heldout_threshold(
    texts: Iterable[str], *, seed: int, fraction: float, source: str
) -> tuple[int, str | None]:
    """(threshold, note): a document is held out iff its draw is below the threshold. It is
    `fraction` of WHOLE, moved just as far as both sides need to have a document: only then all
    documents are looked at. The note says that it was moved."""
    threshold = round(fraction * WHOLE)
    lowest, highest, count = WHOLE, -1, 0
    for text in texts:
        number = draw(seed, text.encode())
        count += 1
        lowest, highest = min(lowest, number), max(highest, number)
        if fraction == 0 or lowest < threshold <= highest:
            return threshold, None
    if count == 0:
        raise ArmdError(f"{source} holds no text")
    if lowest == highest:
        raise ArmdError(
            f"{source} is a single document, none is left to hold out: split it with "
            "--documents line or blank, or use --heldout 0"
        )
    few = f"only {count} documents: with --heldout {fraction:g} none would be"
    if lowest >= threshold:
        return lowest + 1, f"{few} held out, so one is"
    return highest, f"{few} left to train on, so one is"
