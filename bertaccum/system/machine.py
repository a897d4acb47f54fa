"""The memory and the processor cores of the machine."""

from __future__ import annotations

import os
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")


def machine_bytes() -> int:
    """Return the machine's memory in bytes, or this process's control group limit if lower."""
    import psutil

    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int((_GROUP / "memory.max").read_text()))
    except (OSError, ValueError):  # The file is missing, or contains `max`.
        return total


def available_bytes() -> int:
    """Return the machine's available memory in bytes, or its control group's if lower."""
    import psutil

    available = int(psutil.virtual_memory().available)
    try:
        limit, used = (int((_GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        stat = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        # The kernel frees the contents of files that were not read lately.
        return min(available, limit - used + int(stat["inactive_file"]))
    except (OSError, ValueError, KeyError):
        return available


def usable_cores() -> int:
    """Return the number of usable cores; on Linux, taskset and containers can reduce it."""
    if hasattr(os, "sched_getaffinity"):  # Not on macOS and Windows.
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
