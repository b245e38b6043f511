"""Evaluation: the field's protocols by name, generated text judged, every figure reproducible."""
