"""The host memory that offloading needs."""

from __future__ import annotations

from bertaccum.errors import RunError
from bertaccum.options.offload_rungs import ACCUMULATORS, LADDER, SLOTS
from bertaccum.system.machine_memory import available_bytes
from bertaccum.system.sizes import format_size


def check_host_memory(offload: str, parameters: int, folder: str | None) -> None:
    """Raise RunError if the machine has too little memory for the offloaded tensors.

    Args:
      offload: What is offloaded, one of `OFFLOAD`.
      parameters: Number of weights to train on all replicas of this process.
      folder: Folder that contains the offloaded tensors, or None for memory.
    """
    needed, free = bytes_on_host(state_bytes(parameters), offload), available_bytes()
    if folder is None and needed > free:
        raise RunError(
            f"`offload` {offload} needs {format_size(needed)} of this machine's memory, and"
            f" {format_size(free)} is free",
            "free memory, or set `offload_folder` to a folder on a fast disk",
        )


def state_bytes(parameters: int) -> dict[str, int]:
    """Return the memory in bytes that the optimizer needs to train some weights."""
    return {SLOTS: 8 * parameters, ACCUMULATORS: 4 * parameters}


def bytes_on_device(static_bytes: dict[str, int], offload: str) -> dict[str, int]:
    """Return the memory in bytes of each part of the static memory, 0 if it is offloaded."""
    return static_bytes | dict.fromkeys(LADDER[offload].moved, 0)


def bytes_on_host(static_bytes: dict[str, int], offload: str) -> int:
    """Return the memory in bytes of the parts of the static memory that are offloaded."""
    return sum(static_bytes[part] for part in LADDER[offload].moved)
