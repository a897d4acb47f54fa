"""The device's memory: limiting it before TensorFlow starts, and what was used of it.

TensorFlow can give CPU tensors out of the same kind of allocator (BFC: best fit, with
coalescing) that GPUs have, with a limit. So a small GPU can be rehearsed on any machine: what
does not fit there fails here, with the same error.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import tensorflow as tf

from bertaccum import _tf_compat
from bertaccum.errors import ConfigError
from bertaccum.sizes import format_size

# Below it, TensorFlow itself does not start.
LEAST_BYTES = 64 * 2**20
# Of a CPU's limit, what is taken before we can reserve the rest.
_TAKEN_BYTES = 4 * 2**20
# What a CUDA context takes of a GPU, about; and what TensorFlow then leaves for kernels and the
# workspaces of cuBLAS and cuDNN: its own rule (MinSystemMemory in gpu_device.cc), below 2 GiB
# and above for cards of compute capability 6, such as the GTX 1050 Ti. Of newer ones it leaves
# 1050 to 1800 MiB.
CONTEXT_BYTES = 250 * 2**20
SMALL_GPU_BYTES = 2 * 2**30
RESERVE_OF_SMALL_BYTES = 225 * 2**20
RESERVE_BYTES = 500 * 2**20
_GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_limits: list[int] = []
_unclaimed: list[int] = []


def limit_memory(limit_bytes: int | None) -> None:
    """Sets the most that the first device, a GPU if there is one, may hand out.

    Args:
      limit_bytes: rounded down to MiB; None sets no limit.

    Raises:
      ConfigError: too small, more than there is, or TensorFlow has started already.
    """
    announce_limit(limit_bytes)
    claim_memory()


def announce_limit(limit_bytes: int | None, devices: int = 1) -> None:
    """Sets the limit of each device, for TensorFlow to heed when it starts.

    Args:
      limit_bytes: as for `limit_memory`, which does this and `claim_memory`.
      devices: that the CPU is cut into; what they may hand out, they have in common.
    """
    if limit_bytes is None:
        return
    check_limit(limit_bytes)
    if _limits and _limits[-1] != limit_bytes:
        raise _too_late()
    if not _limits:
        try:
            _limit_gpus(limit_bytes) if _gpus() else _limit_cpu(limit_bytes * devices)
        except RuntimeError:
            raise _too_late() from None
        _limits.append(limit_bytes)


def claim_memory() -> None:
    """Starts TensorFlow and sees that there is what the limit of a CPU allows.

    In one piece, as a GPU has it, and not in pieces as the need grows.
    """
    if _unclaimed and not _can_have(_unclaimed.pop() - _TAKEN_BYTES):
        raise ConfigError(
            f"this machine has no {format_size(_limits[-1])} for a memory limit", "set a lower one"
        )


def peak_memory_bytes() -> int | None:
    """The most that the device has handed out since `reset_peak_memory`; None if unknown."""
    # Allocators that do not count, or have not yet, say 0.
    return _counted("peak") or None


def memory_for_tensors(gpu_bytes: int) -> int:
    """What TensorFlow can hand out on a GPU of this size.

    Raises:
      ConfigError: that is next to nothing.
    """
    free = gpu_bytes - CONTEXT_BYTES
    left = free - (RESERVE_OF_SMALL_BYTES if free < SMALL_GPU_BYTES else RESERVE_BYTES)
    if left < LEAST_BYTES:
        least = LEAST_BYTES + RESERVE_OF_SMALL_BYTES + CONTEXT_BYTES
        raise ConfigError(
            f"a GPU of {format_size(gpu_bytes)} has no memory left after the CUDA context",
            f"name at least {format_size(least)}",
        )
    return left


def check_limit(limit_bytes: int) -> None:
    """Raises ConfigError for a limit that TensorFlow cannot start in."""
    if limit_bytes < LEAST_BYTES:
        raise ConfigError(
            f"a memory limit of {format_size(limit_bytes)} is too small to start in",
            f"allow at least {format_size(LEAST_BYTES)}",
        )


def machine_bytes() -> int:
    """All memory that this process may use: the machine's, or its control group's."""
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(_GROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # There is no such file, or it says `max`.
        return total


def available_bytes() -> int:
    """Memory of this machine that nobody uses now."""
    return int(psutil.virtual_memory().available)


def used_bytes() -> int:
    """What the device has handed out now; 0 where it does not say."""
    return _counted("current")


def total_bytes(devices: int = 1) -> int | None:
    """The most that each of the first devices may hand out: as much as the smallest of them.

    None for a CPU without limit. Starts TensorFlow.
    """
    if _limits or not _gpus():
        return _limits[-1] if _limits else None
    return min(_tf_compat.gpu_memory_limits()[:devices])


def device_name() -> str:
    """What the first device is; does not start TensorFlow."""
    gpus = _gpus()
    if not gpus:
        return "CPU"
    return str(tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU"))


def reset_peak_memory() -> None:
    """Starts the measurement of the peak again, at what is in use now."""
    if peak_memory_bytes() is not None:
        tf.config.experimental.reset_memory_stats(_device())


def _counted(bytes_in: str) -> int:
    """What the device says of its `peak` or `current` bytes; 0 where it says nothing."""
    try:
        return int(tf.config.experimental.get_memory_info(_device())[bytes_in])
    except ValueError:
        return 0


def _gpus() -> list[tf.config.PhysicalDevice]:
    return tf.config.list_physical_devices("GPU")


def _device() -> str:
    return "GPU:0" if _gpus() else "CPU:0"


def _limit_gpus(limit_bytes: int) -> None:
    # Raises RuntimeError once the devices are in use.
    for gpu in _gpus():
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=limit_bytes // 2**20)
        tf.config.set_logical_device_configuration(gpu, [limit])


def _limit_cpu(limit_bytes: int) -> None:
    # Changes nothing, but raises RuntimeError once the devices are in use.
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()])
    # Read when TensorFlow starts its devices.
    os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
    os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(limit_bytes // 2**20)
    _unclaimed.append(limit_bytes)


def _can_have(size_bytes: int) -> bool:
    """Whether so much, to a MiB, can be handed out in one piece; it is not touched."""
    mib = min(size_bytes // 2**20, 2**31 - 1)
    try:
        tf.raw_ops.Empty(shape=[mib, 2**20], dtype=tf.uint8)
    except tf.errors.ResourceExhaustedError:
        return False
    return True


def _too_late() -> ConfigError:
    return ConfigError(
        "the memory limit comes too late: TensorFlow has started",
        "set it before anything else is done with TensorFlow",
    )


def survive_lack_of_memory() -> None:
    """Forgoes oneDNN's products fused with what follows: they do not look for their memory.

    TensorFlow 2.20's MklFusedMatMulOp goes on with an output that could not be allocated, and
    the process dies of a segmentation fault.
    """
    if device_name() == "CPU":
        tf.config.optimizer.set_experimental_options({"remapping": False})
