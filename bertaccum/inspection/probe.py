"""The process that imports TensorFlow for `bertaccum doctor`, because the import may crash.

It writes a JSON list of the name and the record of each finished stage to stdout, and stops after a
stage that failed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertaccum.errors import reason

_MODULES = ("tensorflow", "tf_keras", "tensorflow_text", "official.nlp.modeling")


def main(folder: str) -> None:
    """Run all stages, with files in an empty folder."""
    stages: dict[str, Callable[[], dict[str, Any]]] = {
        **{module: _importing(module) for module in _MODULES},
        "devices": _devices,
        "rehearsal": lambda: _rehearsal(Path(folder)),
    }
    # Libraries may print, also from C++ code, so the records get a descriptor of their own.
    out = os.fdopen(os.dup(1), "w", buffering=1)  # Each line is written immediately.
    os.dup2(2, 1)
    for stage, run in stages.items():
        try:
            record = run()
        except BaseException as error:  # A broken package can raise anything, even SystemExit.
            record = {"error": f"{type(error).__name__}: {reason(error)}"}
        out.write(json.dumps([stage, record]) + "\n")
        if "error" in record:
            break


def _importing(module: str) -> Callable[[], dict[str, Any]]:
    return lambda: {"version": getattr(importlib.import_module(module), "__version__", None)}


def _devices() -> dict[str, Any]:
    """Return the build of TensorFlow, and the GPUs with memory and compute capability."""
    import tensorflow as tf

    from bertaccum import _tf_compat

    # TF32 products have 11 significant bits, so the rehearsal could not compare weights to 1e-6.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    build = tf.sysconfig.get_build_info()
    gpus = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    limits = _tf_compat.gpu_memory_limits() if gpus else []
    return {
        "build": {name: build.get(name) for name in ("cuda_version", "cudnn_version")},
        "gpus": [
            {
                "name": str(known.get("device_name", "GPU")),
                "compute_capability": ".".join(map(str, known.get("compute_capability", ()))),
                "usable_bytes": limit,
            }
            for known, limit in zip(details, limits, strict=True)
        ],
    }


def _rehearsal(folder: Path) -> dict[str, Any]:
    from bertaccum.inspection.rehearsal import rehearse

    return rehearse(folder)


if __name__ == "__main__":
    main(sys.argv[1])
