"""The C kernels and the packed weights that they read."""
