"""Detects whether the environment describes several workers."""

from __future__ import annotations

import os

# srun sets this variable to the number of tasks. In the shell of the batch script itself, it has
# another value.
_SLURM_TASKS = "SLURM_STEP_NUM_TASKS"


def in_slurm_step() -> bool:
    """Return whether this process is one of several tasks that srun started."""
    return int(os.environ.get(_SLURM_TASKS) or 1) > 1


def describes_workers(strategy: str) -> bool:
    """Return whether `strategy` may make this process one of several workers.

    If TF_CONFIG is set, the answer is True, although TF_CONFIG may describe a single worker. Only
    TensorFlow can tell for certain.
    """
    several = bool(os.environ.get("TF_CONFIG")) or in_slurm_step()
    return several and strategy in ("auto", "multi-worker")
