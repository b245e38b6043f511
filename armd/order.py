"""Public name of the orders: `armd.order.strided(...)`."""

from .model.order import *  # noqa: F403
