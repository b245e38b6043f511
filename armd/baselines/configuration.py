"""How large a baseline is, and which one."""

from ..model.configuration_armd import ArmdConfig


class BaselineConfig(ArmdConfig):
    """Our sizes, and which baseline this is."""

    model_type = "armd-baseline"
    _auto_class = None  # ours ships its code with the weights; a baseline needs armd installed

    model: str = "mdlm"
    """A name of baselines.MODELS."""
    block_size: int = 1
    """Of block diffusion: tokens that are denoised together."""
    diffusion_steps: int = 1000
    """Of a discrete-time process."""
    segment: int = 32
    """Of Transformer-XL: tokens that are read together."""
    memory: int = 32
    """Of Transformer-XL: rows that each layer remembers of the segments before."""
    d_embedding: int = 0
    """Of diffusion on embeddings: dimensions of the space that tokens stand in; 0 elsewhere."""
