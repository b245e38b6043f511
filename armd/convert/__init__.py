"""Pretrained models of the Llama family into ours, and back: sources, layout, files, adapters."""
