"""Decoding: plan, KV cache, sampling, decode step, and generate, infill, stream."""
