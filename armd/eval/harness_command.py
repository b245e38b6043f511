"""`armd eval harness ...`: lm_eval's own command line, with --model armd known to it."""

import sys
from collections.abc import Sequence

from ..errors import ArmdError


def names_model(words: Sequence[str]) -> bool:
    """Whether these ask for another kind of model than ours, or for no model at all."""
    options = [word.partition("=")[0] for word in words]
    given = {"--model_args", "-a"} & {*options}
    return not given or bool({"--model", "-M", "--config", "-C"} & {*options})


def harness(words: Sequence[str]) -> None:
    """All words go to lm_eval, of which version 0.4.13 does not look for models in other
    packages."""
    print("armd: loading lm_eval", file=sys.stderr, flush=True)  # which takes a while
    try:
        from .harness import main
    except ImportError as error:
        raise ArmdError(f"no {error.name}: pip install 'armd[eval]'") from None
    sys.argv = ["lm_eval", *words, *([] if names_model(words) else ("--model", "armd"))]
    main()
