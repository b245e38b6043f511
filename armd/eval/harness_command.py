"""`armd eval harness ...`: lm_eval's own command line, with --model armd known to it."""

import sys
from collections.abc import Sequence

from ..errors import ArmdError


def harness(words: Sequence[str]) -> None:
    """All words go to lm_eval, of which version 0.4.13 does not look for models in other
    packages."""
    print("armd: loading lm_eval", file=sys.stderr, flush=True)  # which takes a while
    try:
        from .harness import main
    except ImportError as error:
        raise ArmdError(f"no {error.name}: pip install 'armd[eval]'") from None
    sys.argv = ["lm_eval", *words]
    main()
