"""How tokens are drawn: the settings, and the fastest form there is of a draw."""

from ..model.sampling import NOT_FINITE as NOT_FINITE
from ..model.sampling import Sampling as Sampling
from ..native.sample import draw as draw
