"""The device's memory: setting its limit before TensorFlow starts, and measuring its use.

On a CPU, TensorFlow can use the GPUs' allocator (BFC: best fit with coalescing) with a limit. Any
machine can therefore simulate a small GPU: a run that would exceed the memory of the GPU fails on
the CPU with the same error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from bertaccum import _tf_compat
from bertaccum.errors import ConfigError, RunError
from bertaccum.options.cards import Card
from bertaccum.system.sizes import format_size

# Minimum memory with which TensorFlow starts.
MIN_BYTES = 64 * 2**20
# TensorFlow takes about this much of a CPU's limit before `claim_memory` can reserve the rest.
_TAKEN_BYTES = 4 * 2**20
# Variable of the environment that contains the limit of all CPU devices together, in MiB.
_CPU_LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB"
# Memory for the constants that the creation of a variable requires.
_CONSTANTS_BYTES = 2**14
# A CUDA context takes a part of a GPU's memory: about 250 MiB, and 1142 MiB on an H200, where it
# was measured. TensorFlow then leaves some memory free for kernels and for the workspaces of cuBLAS
# and cuDNN (MinSystemMemory in gpu_device.cc): 225 MiB if less than 2 GiB remains, else an amount
# that depends on the compute capability.
_CONTEXT_MIB, _CONTEXT_OF_HOPPER_MIB = 250, 1142
_SMALL_GPU_MIB, _RESERVE_OF_SMALL_MIB = 2048, 225
_RESERVE_MIB = {6: 500, 7: 1050, 8: 1536, 9: 1800}
_limits: list[int] = []
_unclaimed: list[int] = []


def limit_memory(limit_bytes: int | None) -> None:
    """Limit the memory that the devices may allocate: the GPUs, or the CPU if there are none.

    Raises:
      ConfigError: The limit is too small, exceeds the machine's memory, or is set after TensorFlow
        has started.
    """
    announce_limit(limit_bytes)
    claim_memory()


def announce_limit(limit_bytes: int | None, devices: int = 1) -> None:
    """Set the memory limit of each device; it takes effect when TensorFlow starts.

    Args:
      limit_bytes: Limit in bytes, rounded down to MiB; None sets no limit.
      devices: Number of virtual CPU devices; together, they may use `devices` times the limit.
    """
    if limit_bytes is None:
        return
    check_limit(limit_bytes)
    if _limits and _limits[-1] != limit_bytes:
        raise _too_late()
    if not _limits:
        try:
            _limit_gpus(limit_bytes) if gpus() else _limit_cpu(limit_bytes * devices)
        except RuntimeError:
            raise _too_late() from None
        _limits.append(limit_bytes)


def claim_memory() -> None:
    """If a CPU has a limit, start TensorFlow and reserve the memory in one block, as on a GPU."""
    if _unclaimed and not _can_allocate(_unclaimed.pop() - _TAKEN_BYTES):
        raise ConfigError(
            f"cannot reserve {format_size(_limits[-1])} on this machine", "set a lower memory limit"
        )


def peak_memory_bytes() -> int | None:
    """Return the peak memory since `reset_peak_memory` in bytes; None if unknown."""
    # An allocator without statistics reports 0.
    return _counted("peak") or None


def memory_for_tensors(card: Card) -> int:
    """Return the memory in bytes that TensorFlow can allocate on a GPU."""
    major = min(max(card.capability[0], 6), 9)
    context = _CONTEXT_OF_HOPPER_MIB if major == 9 else _CONTEXT_MIB
    free = card.memory_mib - context
    reserve = _RESERVE_OF_SMALL_MIB if free < _SMALL_GPU_MIB else _RESERVE_MIB[major]
    left = (free - reserve) * 2**20
    if left < MIN_BYTES:
        least = MIN_BYTES + (_RESERVE_OF_SMALL_MIB + context) * 2**20
        raise ConfigError(
            f"a GPU of {format_size(card.memory_bytes)} has too little memory left after the CUDA"
            " context",
            f"set `device_memory` to at least {format_size(least)}",
        )
    return left


def check_limit(limit_bytes: int) -> None:
    """Raise ConfigError if a memory limit, in bytes, is too small for TensorFlow to start."""
    if limit_bytes < MIN_BYTES:
        raise ConfigError(
            f"a memory limit of {format_size(limit_bytes)} is too small for TensorFlow to start",
            f"set a limit of at least {format_size(MIN_BYTES)}",
        )


def used_bytes() -> int:
    """Return the memory allocated on the device in bytes; 0 if unknown."""
    return _counted("current")


def total_bytes(devices: int = 1) -> int | None:
    """Return the memory limit in bytes of the smallest of the first `devices` devices.

    For a CPU without a limit, the result is None. On GPUs without a limit, this function starts
    TensorFlow.
    """
    if _limits or not gpus():
        return _limits[-1] if _limits else None
    return min(_tf_compat.gpu_memory_limits()[:devices])


def device_name() -> str:
    """Return the name of the first device, without starting TensorFlow."""
    if not (found := gpus()):
        return "CPU"
    return str(tf.config.experimental.get_device_details(found[0]).get("device_name", "GPU"))


def reset_peak_memory() -> None:
    """Reset the peak memory to the memory that is in use now."""
    if peak_memory_bytes() is not None:
        tf.config.experimental.reset_memory_stats(_device())


def _counted(bytes_in: str) -> int:
    """Return the device's `peak` or `current` memory in bytes; 0 if unknown."""
    try:
        return int(tf.config.experimental.get_memory_info(_device())[bytes_in])
    except ValueError:
        return 0


def gpus() -> list[tf.config.PhysicalDevice]:
    """Return the GPUs that TensorFlow can see, without starting it."""
    return tf.config.list_physical_devices("GPU")


def _device() -> str:
    return "GPU:0" if gpus() else "CPU:0"


def _limit_gpus(limit_bytes: int) -> None:
    # Setting a logical device raises RuntimeError once the devices are in use.
    for gpu in gpus():
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=limit_bytes // 2**20)
        tf.config.set_logical_device_configuration(gpu, [limit])


def _limit_cpu(limit_bytes: int) -> None:
    # Setting the default configuration changes nothing, but raises RuntimeError once the devices
    # are in use.
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()])
    # TensorFlow reads these variables when it starts its devices.
    os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
    os.environ[_CPU_LIMIT] = str(limit_bytes // 2**20)
    _unclaimed.append(limit_bytes)


def _can_allocate(size_bytes: int) -> bool:
    """Return whether a block of this size, rounded down to MiB, can be allocated."""
    mib = min(size_bytes // 2**20, 2**31 - 1)
    try:
        tf.raw_ops.Empty(shape=[mib, 2**20], dtype=tf.uint8)
    except tf.errors.ResourceExhaustedError:
        return False
    return True


def _too_late() -> ConfigError:
    return ConfigError(
        "the memory limit cannot take effect: TensorFlow has already started",
        "set it before TensorFlow is first used",
    )


def memory_is_limited() -> bool:
    """Return whether `announce_limit` or `limit_memory` set a limit."""
    return bool(_limits)


def check_gpu_is_free(consequence: str, hint: str = "") -> None:
    """Raise RunError if this process holds the memory of a GPU that another process would need.

    Without a limit, TensorFlow reserves nearly all of it for the first tensor, until the process
    ends.

    Args:
      consequence: What is not possible then, for the message.
      hint: What the user can do instead of starting a new process.
    """
    if gpus() and not memory_is_limited() and _tf_compat.has_started() and used_bytes():
        raise RunError(
            f"this process already uses the GPU, so {consequence}",
            f"start a new process (in a notebook, restart the kernel){hint}",
        )


def limits_the_host() -> bool:
    """Return whether the host's own tensors count towards the limit, as they do without a GPU."""
    return memory_is_limited() and not gpus()


def variable_if_memory_is_left(create: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
    """Create a variable within `tf.variable_creator_scope`, or raise `ResourceExhaustedError`.

    If nothing of a CPU's limit is left, TensorFlow 2.20 crashes with a segmentation fault when it
    makes a constant, such as the shape of the variable.
    """
    limit = int(os.environ.get(_CPU_LIMIT) or 0) * 2**20
    if limit and limit - used_bytes() < _CONSTANTS_BYTES:
        raise tf.errors.ResourceExhaustedError(None, None, "no memory is left for constants")
    return create(**options)


def disable_fused_matmul() -> None:
    """Disable oneDNN's fused matmul, so that running out of memory raises an error on a CPU.

    TensorFlow 2.20's MklFusedMatMulOp does not check whether its output was allocated, and crashes
    the process with a segmentation fault if it was not.
    """
    if device_name() == "CPU":
        tf.config.optimizer.set_experimental_options({"remapping": False})
