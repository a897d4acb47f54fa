"""The memory and the processor of the machine."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

# Where control groups are mounted, and the file that names those of this process.
_MOUNT, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# In each version, a control group's files with its limit and its used memory in bytes, and the
# entry of memory.stat for the contents of files that were not read lately.
_VERSION_1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
_VERSION_2 = "memory.max", "memory.current", "inactive_file"


def machine_bytes() -> int:
    """Return the machine's memory in bytes, or the lowest limit of this process's control groups.

    The limits of all groups around the process's own count, as those of a Slurm job do.
    """
    import psutil

    return min([int(psutil.virtual_memory().total), *(limit for limit, _ in _limits())])


def available_bytes() -> int:
    """Return the machine's available memory in bytes, or its control groups' if lower."""
    import psutil

    return min([int(psutil.virtual_memory().available), *(free for _, free in _limits())])


def _limits() -> Iterator[tuple[int, int]]:
    """Yield the limit and the available memory of each control group with a limit, in bytes."""
    for folder, (limit_file, used_file, inactive) in _groups():
        # A file is missing, or contains `max`.
        with contextlib.suppress(OSError, ValueError, KeyError):
            limit, used = (int((folder / name).read_text()) for name in (limit_file, used_file))
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            # The kernel frees the contents of files that were not read lately.
            yield limit, limit - used + int(stat[inactive])


def _groups() -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Yield the folders of this process's control groups for memory, and the names in them."""
    with contextlib.suppress(OSError):
        for line in os.fsdecode(_OWN.read_bytes()).splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                root, names = _MOUNT, _VERSION_2
            elif "memory" in controllers.split(","):
                root, names = _MOUNT / "memory", _VERSION_1
            else:
                continue
            # In a container, the path may be missing: the mount is then the process's own group.
            own = root / path.lstrip("/")
            yield from ((one, names) for one in (own, *own.parents) if one.is_relative_to(root))


def usable_cores() -> int:
    """Return the number of usable cores; on Linux, taskset and containers can reduce it."""
    if hasattr(os, "sched_getaffinity"):  # Not on macOS and Windows.
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def enable_onednn() -> None:
    """Let TensorFlow use oneDNN on each x86 processor, if it has not been imported.

    TensorFlow does so by default only on processors with the instructions VNNI. On others, such as
    AMD's before Zen 4, oneDNN made training up to 1.2 times as fast.
    """
    if platform.machine().lower() in ("x86_64", "amd64"):  # The user can set it.
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
