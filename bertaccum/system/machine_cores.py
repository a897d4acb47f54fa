"""The processor cores that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return their number; on Linux, taskset and containers can reduce it."""
    if hasattr(os, "sched_getaffinity"):  # Not on macOS and Windows.
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
