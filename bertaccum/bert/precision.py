"""The Keras policy for the option `precision` on this machine's devices, and layers in a policy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from bertaccum.options.cards import fast_precision
from bertaccum.options.fields import AUTO

FLOAT32 = "float32"

# In 16 bits, oneDNN compiles each shape of a product, which takes longer than a short micro-batch.
# The tensor cores of GPUs need multiples of 8, too.
_MULTIPLE = 8


@contextlib.contextmanager
def building_in(policy: str) -> Iterator[None]:
    """Give the layers that are built in the context a Keras policy, whatever the process's is."""
    import tf_keras  # `bertaccum plan` imports this module, but needs no Keras.

    own = tf_keras.mixed_precision.global_policy()
    tf_keras.mixed_precision.set_global_policy(policy)
    try:
        yield
    finally:
        tf_keras.mixed_precision.set_global_policy(own)


def length_multiple(dtype: str) -> int:
    """Return the number of which the lengths of padded texts should be multiples."""
    return _MULTIPLE if dtype.endswith("16") else 1


def candidate_precisions(name: str) -> list[str]:
    """Return the Keras policies to compare for the option `precision`, the default one first.

    Half precision is not always faster on a GPU that supports it, so `auto` also allows float32.
    """
    default = resolved_precision(name)
    return [default, FLOAT32] if name == AUTO and default != FLOAT32 else [default]


def resolved_precision(name: str) -> str:
    """Return the name of the Keras policy for the option `precision`.

    For `auto`, this is the half precision in which every GPU of this machine is fast:
    mixed_bfloat16 from compute capability 8.0 on, mixed_float16 from 7.0 on. It is float32 if a GPU
    has a lower or unknown capability, and on CPUs, because only some CPUs are faster in bfloat16.
    In float32, GPUs that support TF32 use it for matrix products, which is TensorFlow's default.
    """
    if name != AUTO:
        return name
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return FLOAT32
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    return fast_precision(min(d.get("compute_capability", (0, 0)) for d in details))


def remedy(precision: str) -> str:
    """Return a hint about what to change after a loss or a gradient was not finite."""
    safer = {"mixed_float16": "mixed_bfloat16 or float32", "mixed_bfloat16": "float32"}
    safe = safer.get(resolved_precision(precision))
    return "lower `learning_rate`" + (f", or set `precision` to {safe}" if safe else "")
