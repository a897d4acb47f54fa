"""Tasks that a model is trained for: their heads, losses and metrics, one file per task."""
