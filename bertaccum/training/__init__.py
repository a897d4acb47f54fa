"""Windows, the update, the loop, checkpoints, evaluation and the run folder."""
