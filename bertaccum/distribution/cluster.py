"""Detecting a description of several workers in the environment. Standard library only."""

from __future__ import annotations

import os

# srun sets this variable for each task; in the batch script's own shell it has another value.
_SLURM_TASKS = "SLURM_STEP_NUM_TASKS"


def in_slurm_step() -> bool:
    """Return whether this process is one of several tasks that srun started."""
    return int(os.environ.get(_SLURM_TASKS) or 1) > 1


def describes_workers(strategy: str) -> bool:
    """Return whether `strategy` may make this process one of several workers.

    TF_CONFIG may also describe a single worker, which only TensorFlow can tell for certain.
    """
    several = bool(os.environ.get("TF_CONFIG")) or in_slurm_step()
    return several and strategy in ("auto", "multi-worker")
