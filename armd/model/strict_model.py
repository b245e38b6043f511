"""Loading a saved model: from safetensors alone, and every weight must fit."""

from typing import Any

from safetensors import SafetensorError
from transformers import PreTrainedModel

from .errors import ArmdError


class StrictModel(PreTrainedModel):
    """A model of transformers that is never loaded in part."""

    @classmethod
    def from_pretrained(cls, source: Any, *args: Any, **kwargs: Any) -> Any:
        """As transformers', but a folder that does not fit is an error."""
        wants_info = kwargs.pop("output_loading_info", False)
        kwargs |= {"use_safetensors": True, "output_loading_info": True}
        try:
            model, info = super().from_pretrained(source, *args, **kwargs)  # type: ignore[misc]
        except (SafetensorError, KeyError) as error:
            raise ArmdError(f"{source} is damaged ({error}); copy or export it again") from error
        except OSError as error:
            raise ArmdError(
                f"cannot load {source} ({first_line(error)}); give a folder that holds config.json "
                "and model.safetensors (pickled weights are never opened)"
            ) from error
        except RuntimeError as error:
            raise ArmdError(
                f"{source} does not fit its own config.json: {first_line(error)}"
            ) from error
        wrong = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
        if wrong:
            raise ArmdError(
                f"{source} holds other weights than its config.json asks for, such as {wrong[0]}; "
                "was it made by another model, or saved only in part?"
            )
        return (model, info) if wants_info else model


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
