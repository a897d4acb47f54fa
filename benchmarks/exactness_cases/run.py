"""One process of trainings: jobs as JSON on stdin, their results as JSON lines in a file.

    python -m exactness_cases.run with_bertaccum float64 RESULTS <<< '[["optimizer", 0, "local"]]'

A job is a training's name, a case's number and a placement, the same for all jobs, which is set
up before TensorFlow starts. What a training raises is its result.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from exactness_cases.cases import Case, all_cases
from exactness_cases.training import NotSupportedError, weights_of


def make_strategy(placement: str) -> Any:
    """The strategy, or something in whose scope nothing changes."""
    count, _, of = placement.partition(" ")
    if of == "workers":
        return tf.distribute.MultiWorkerMirroredStrategy()
    if of != "replicas":
        return None
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * int(count)
    tf.config.set_logical_device_configuration(cpu, logical)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(int(count))])


def result(train: Callable[[Case], Any], case: Case, strategy: Any) -> dict[str, Any]:
    """The trained weights, or what was raised instead."""
    try:
        with strategy.scope() if strategy else contextlib.nullcontext():
            return {"weights": weights_of(train(case))}
    except NotSupportedError as error:
        return {"not_supported": str(error)}
    except Exception as error:
        return {"error": type(error).__name__, "message": gist(error)}


def gist(error: Exception) -> str:
    """One line: the first, or after AutoGraph's account of the user's code the last."""
    lines = str(error).strip().splitlines() or [""]
    return lines[-1 if lines[0] == "in user code:" else 0].strip()


def main(framework: str, dtype: str, results: Path) -> None:
    jobs = json.load(sys.stdin)
    cases = all_cases()
    strategy = make_strategy(jobs[0][2])
    module = importlib.import_module(f"exactness_cases.{framework}")
    module.keras.backend.set_floatx(dtype)
    with results.open("a") as file:
        for training, number, _ in jobs:
            case = cases[number]
            module.keras.backend.clear_session()  # takes the policy of Keras 3 with it
            policy = "mixed_float16" if case.mixed else dtype
            module.keras.mixed_precision.set_global_policy(policy)
            outcome = result(module.TRAININGS[training], case, strategy)
            file.write(json.dumps(outcome) + "\n")
            file.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
