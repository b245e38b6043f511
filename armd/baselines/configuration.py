"""How large a rival is, and which one."""

from ..model.configuration_armd import ArmdConfig


class BaselineConfig(ArmdConfig):
    """Our sizes, and which rival this is."""

    model_type = "armd-baseline"
    _auto_class = None  # ours ships its code with the weights; a rival needs armd installed

    model: str = "mdlm"
    """A name of baselines.MODELS."""
    block_size: int = 1
    """Of block diffusion: tokens that are denoised together."""
    diffusion_steps: int = 1000
    """Of a discrete-time process."""
