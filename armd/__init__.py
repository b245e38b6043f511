"""armd: Auto-Regressive Masked Diffusion language models."""
