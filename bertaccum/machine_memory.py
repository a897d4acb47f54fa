"""The memory of the machine. This module needs only psutil."""

from __future__ import annotations

from pathlib import Path

import psutil

_GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def machine_bytes() -> int:
    """Return the machine's memory in bytes, or this process's control group limit if lower."""
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(_GROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # The file is missing, or contains `max`.
        return total


def available_bytes() -> int:
    """Return the machine's available memory in bytes."""
    return int(psutil.virtual_memory().available)
