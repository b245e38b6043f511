"""Processes, devices, atomic files, seeds, memory, progress."""
