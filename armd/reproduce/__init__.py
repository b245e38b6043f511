"""The paper's experiments in miniature: every model in the same trainer, on the same text."""
