"""A training run: its steps, checkpoints, events and folder."""
