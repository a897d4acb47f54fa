"""The arithmetic that `precision` means on the device that is here."""

from __future__ import annotations

import tensorflow as tf

from bertaccum.settings import AUTO

# From this compute capability on, GPUs have bfloat16, which needs no loss scale.
_BFLOAT16 = (8, 0)


def resolved_precision(name: str) -> str:
    """A Keras policy's name: the one given, or for `auto` the fastest that the device has.

    A GPU's float32 products are made in TF32 where it has that, which is TensorFlow's own
    default. A CPU keeps to float32: only some of them are faster in bfloat16.
    """
    if name != AUTO:
        return name
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "float32"
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    least = min(d.get("compute_capability", (0, 0)) for d in details)
    return "mixed_bfloat16" if least >= _BFLOAT16 else "mixed_float16"
