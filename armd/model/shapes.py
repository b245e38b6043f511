"""Shapes in signatures: jaxtyping's, or plain tensors where it is not installed, because an
exported model must load with torch and transformers alone."""

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:

        class _AnyShape:
            def __class_getitem__(cls, item):
                return item[0]

        Bool = Float = Int = _AnyShape

__all__ = ["Bool", "Float", "Int", "Tensor"]
