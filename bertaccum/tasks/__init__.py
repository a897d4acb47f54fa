"""Tasks for which a model is trained: their heads, losses and metrics, one file per task."""
