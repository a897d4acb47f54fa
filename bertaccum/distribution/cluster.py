"""Whether the environment describes several workers. Standard library only."""

from __future__ import annotations

import os

# srun sets it for each task; the batch script's own shell has another one.
_SLURM_TASKS = "SLURM_STEP_NUM_TASKS"


def in_slurm_step() -> bool:
    """Return whether this process is one of several tasks that srun started."""
    return int(os.environ.get(_SLURM_TASKS) or 1) > 1


def describes_workers(strategy: str) -> bool:
    """Return whether `strategy` may make this process one of several workers.

    TF_CONFIG may still describe a single one: only TensorFlow reads it in full.
    """
    several = bool(os.environ.get("TF_CONFIG")) or in_slurm_step()
    return several and strategy in ("auto", "multi-worker")
