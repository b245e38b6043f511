"""Options of `armd reproduce --scale paper`."""

from dataclasses import dataclass

DATA = "lambada,wikitext2,ptb,wikitext103,lm1b"


@dataclass(frozen=True)
class PaperOptions:
    """Options of the paper's own study."""

    yes: bool = False
    """Scale paper: start, having seen the plan."""
    texts: str = DATA
    """Scale paper: what is scored, as --data of armd eval ppl: names, or name=PATH."""
    judge: str = "gpt2-large"
    """Scale paper: the judge of samples."""
    gpus: int = 8
    """Scale paper, for the plan: how many devices train a run."""
    gpu: str = "h100"
    """Scale paper, for the plan: their kind, as in armd plan."""
    utilisation: float = 0.4
    """Scale paper, for the plan: share of their peak that training is taken to reach."""
    dollars: float = 2.5
    """Scale paper, for the plan: price of a device for an hour; an assumption."""
