"""Training: recipe, curriculum, loop, checkpoint, export."""
