"""The host memory that offloading needs."""

from __future__ import annotations

from bertaccum.errors import RunError
from bertaccum.machine_memory import available_bytes
from bertaccum.offload_names import OFFLOAD_ALL, OFFLOAD_MOMENTS
from bertaccum.sizes import format_size


def check_host_memory(offload: str, parameters: int, folder: str | None) -> None:
    """Raise RunError if the machine has too little memory for what is offloaded.

    Args:
      offload: What is offloaded, one of `OFFLOAD`.
      parameters: Number of weights to train on all replicas of this process.
      folder: Folder that contains what is offloaded, or None for memory.
    """
    needed, free = offloaded_bytes(offload, parameters), available_bytes()
    if folder is None and needed > free:
        raise RunError(
            f"`offload` {offload} needs {format_size(needed)} of this machine's memory, and"
            f" {format_size(free)} is free",
            "free memory, or set `offload_folder` to a folder on a fast disk",
        )


def offloaded_bytes(offload: str, parameters: int) -> int:
    """Return the host memory in bytes that moments and accumulators of some weights take."""
    return {OFFLOAD_MOMENTS: 8, OFFLOAD_ALL: 12}.get(offload, 0) * parameters
