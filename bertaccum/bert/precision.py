"""The Keras policy for the option `precision` on this machine's devices."""

from __future__ import annotations

import tensorflow as tf

from bertaccum.settings import AUTO

# GPUs of this compute capability or higher support bfloat16, which needs no loss scaling.
_BFLOAT16 = (8, 0)


# In 16 bits, oneDNN compiles each shape of a product, which takes longer than a short micro-batch.
# The tensor cores of GPUs need multiples of 8, too.
_MULTIPLE = 8


def length_multiple(dtype: str) -> int:
    """Return the number of which the lengths of padded texts should be multiples.

    Args:
      dtype: Name of the dtype that a model computes in, or of its Keras policy.
    """
    return _MULTIPLE if dtype.endswith("16") else 1


def resolved_precision(name: str) -> str:
    """Return the name of the Keras policy for the option `precision`.

    For `auto`, this is the fastest policy that every GPU supports, and float32 on CPUs, because
    only some CPUs are faster in bfloat16. In float32, GPUs that support TF32 use it for matrix
    products, which is TensorFlow's default.
    """
    if name != AUTO:
        return name
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "float32"
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    least = min(d.get("compute_capability", (0, 0)) for d in details)
    return "mixed_bfloat16" if least >= _BFLOAT16 else "mixed_float16"
