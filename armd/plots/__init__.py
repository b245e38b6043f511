"""Pictures of runs, orders and streams."""
