"""Options of a run that depend on its task: checks, and the weights of the examples."""

from __future__ import annotations

import dataclasses

import numpy as np

from bertaccum.data.run_inputs import RunInputs
from bertaccum.data.token_store import TokenStore
from bertaccum.errors import ConfigError, InputError
from bertaccum.options.commands import HALF, TrainConfig
from bertaccum.tasks.kinds import check_options, make_task
from bertaccum.tasks.labels import Labels
from data_prep.tables.spellings import class_finder, finite_number

BALANCED = "balanced"
# A weighted loss and its gradients must be float32 numbers.
_LARGEST_TOTAL = 1e30


def check_task_options(config: TrainConfig, labels: Labels) -> None:
    """Raise ConfigError if an option does not suit the task, or `class_weight` is not valid."""
    task = make_task(labels)
    if config.best_by not in (None, *task.metrics):
        raise ConfigError(
            f"`best_by` {config.best_by} is not a metric of the task {labels.task}",
            f"choose one of {', '.join(task.metrics)}",
        )
    unused = {"class_weight": None, "label_smoothing": 0.0, "calibrate": False, "thresholds": HALF}
    check_options(task, [name for name, value in unused.items() if getattr(config, name) != value])
    if config.class_weight not in (None, BALANCED):
        named_weights(str(config.class_weight), labels)


def weighted(store: TokenStore, config: TrainConfig, inputs: RunInputs) -> TokenStore:
    """Return the token store of train.tsv with weights multiplied by those of the classes.

    Raises:
      ConfigError: The class weights are not valid.
      InputError: All weights are zero, or they are too large.
    """
    weights = store.weights
    if config.class_weight is not None:
        with np.errstate(over="ignore"):
            weights = weights * class_weights(config.class_weight, inputs.labels, store.labels)
    if (total := float(weights.sum(dtype=np.float64))) > _LARGEST_TOTAL:
        what = f"its weights have the sum {total:.3g}, above {_LARGEST_TOTAL:g}"
        raise InputError(what, "divide them by the same number", path=inputs.tsvs[0])
    if not weights.any():
        raise InputError(
            "every row has weight 0", "raise the weights of some rows", path=inputs.tsvs[0]
        )
    return dataclasses.replace(store, weights=weights)


def class_weights(option: str, labels: Labels, classes: np.ndarray) -> np.ndarray:
    """Return the weight of the class of each example, [examples] float32.

    Args:
      option: The option `class_weight`.
      labels: Labels of the data.
      classes: Class numbers of the examples, [examples].

    Raises:
      ConfigError: The option names no valid weights.
    """
    if option != BALANCED:
        return named_weights(option, labels)[classes]
    counts = np.bincount(classes, minlength=len(labels.values))
    # As in scikit-learn's `class_weight="balanced"`: examples / (classes * examples of the class).
    return (len(classes) / (len(counts) * counts[classes])).astype(np.float32)


def named_weights(option: str, labels: Labels) -> np.ndarray:
    """Return the weight of each class, [classes] float32, by default 1.

    Raises:
      ConfigError: The option is not of the form `NAME=W,NAME=W`, or no weight is above 0.
    """
    weights, find = dict[str, float](), class_finder(labels.names)
    for part in option.split(","):
        label, _, number = part.rpartition("=")
        name = find(label.strip())
        if name is None or name in weights:
            wrong = "is named twice" if name in weights else "is not a class"
            raise ConfigError(
                f"`class_weight` {option}: {label.strip() or part!r} {wrong}",
                f"pass {BALANCED}, or NAME=W for some of the classes {', '.join(labels.names)}",
            )
        weights[name] = _weight(number, option)
    found = [weights.get(name, 1.0) for name in labels.names]
    if not any(found):
        raise ConfigError(f"`class_weight` {option} gives every class weight 0", "raise one")
    return np.array(found, np.float32)


def _weight(number: str, option: str) -> float:
    weight = finite_number(number)
    if weight is None or weight < 0:
        raise ConfigError(
            f"`class_weight` {option}: {number!r} is not a weight", "use a number of at least 0"
        )
    return weight
