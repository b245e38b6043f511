"""Verbs that belong to no other room: generate, demo, quantize and verify."""
