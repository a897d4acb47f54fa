"""Training runs: their updates, checkpoints, events and folders."""
