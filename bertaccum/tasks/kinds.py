"""The kinds of tasks, each defined in a module of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bertaccum.errors import ConfigError
from bertaccum.task_names import CLASSIFICATION, MULTI_LABEL, REGRESSION
from bertaccum.tasks.classification import Classification
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.multi_label import MultiLabel
from bertaccum.tasks.regression import Regression
from bertaccum.tasks.task import PLAIN, Decoding, Task

_KINDS: dict[str, Callable[[Labels, Decoding, float], Task]] = {
    CLASSIFICATION: Classification,
    REGRESSION: Regression,
    MULTI_LABEL: MultiLabel,
}


def make_task(labels: Labels, decoding: Decoding | None = None, smoothing: float = 0.0) -> Task:
    """Return the task of a dataset.

    Args:
      labels: Labels of the dataset.
      decoding: How logits become predictions; None for temperature 1 and thresholds 0.5.
      smoothing: Label smoothing of the training loss.
    """
    return _KINDS[labels.task](labels, decoding or PLAIN, smoothing)


def check_options(task: Task, used: Iterable[str]) -> None:
    """Raise ConfigError if an option is used that does not suit the task.

    Args:
      task: Task of the data.
      used: Names of those options that suit only some tasks and that are in use.
    """
    for name in used:
        if name not in task.options:
            kind = task.labels.task
            raise ConfigError(f"`{name}` cannot be used with the task {kind}", f"omit `{name}`")
