"""The kinds of tasks, each defined in a module of its own."""

from __future__ import annotations

from collections.abc import Iterable

from bertaccum.errors import ConfigError
from bertaccum.task_names import CLASSIFICATION, MULTI_LABEL, REGRESSION
from bertaccum.tasks.classification import Classification
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.multi_label import MultiLabel
from bertaccum.tasks.regression import Regression
from bertaccum.tasks.task import PLAIN, Decoding, Task

_KINDS: dict[str, type[Classification] | type[Regression] | type[MultiLabel]] = {
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


def check_options(task: str, used: Iterable[str]) -> None:
    """Raise ConfigError if an option is used that does not suit the kind of task.

    Args:
      task: Kind of task.
      used: Names of those options that suit only some tasks and that are in use.
    """
    for name in used:
        if name not in _KINDS[task].options:
            raise ConfigError(f"`{name}` cannot be used with the task {task}", f"omit `{name}`")


def metrics_of(task: str) -> tuple[str, ...]:
    """Return the metrics that can select the best checkpoint; the first is the default."""
    return _KINDS[task].metrics
