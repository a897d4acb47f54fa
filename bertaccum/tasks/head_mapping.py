"""Heads of fine-tuned classifiers: their outputs in the order of our labels."""

from __future__ import annotations

from bertaccum.bert.model_source import HeadMapping, ModelSource
from bertaccum.errors import ConfigError, InputError
from bertaccum.options.task_names import CLASSIFICATION, PROBLEM_TYPES
from bertaccum.system.phrases import counted
from bertaccum.tasks.labels import Labels

_HINT = "omit `keep_head` for a random head, or rename the labels of the data"


def head_mapping(source: ModelSource, labels: Labels, keep: bool) -> HeadMapping | None:
    """Return how a checkpoint's head becomes the head for some labels; None for a random head.

    Outputs correspond by the names of their classes, whose capitals may differ. If the checkpoint
    has no names, they correspond by number. The head of a run is kept whenever its labels are the
    same.

    Raises:
      ConfigError: The head cannot be kept, because its task or its classes differ.
    """
    try:
        run = None if source.labels is None else Labels(**source.labels)
    except (TypeError, ValueError) as error:
        raise InputError(f"labels.json is damaged ({error})", path=source.name) from None
    if run == labels:
        return HeadMapping(list(range(labels.outputs)))
    if run is not None and keep:
        raise _differ(f"the labels {_listed(run.names)}" if run.names else run.task, labels)
    head = source.head
    if head is None:
        return None
    problem = PROBLEM_TYPES[labels.task]
    if head.problem_type not in (None, problem) or (
        # transformers takes a head with one output for regression unless it says otherwise.
        head.problem_type is None and head.outputs == 1 and labels.task == CLASSIFICATION
    ):
        raise _differ(f"the problem_type {head.problem_type or 'regression'}", labels)
    if head.outputs not in (None, labels.outputs):
        raise _differ(f"{counted(head.outputs, 'output')} {_listed(head.names)}", labels)
    ours = [_folded(name) for name in labels.names]
    theirs = [_folded(name) for name in head.names]
    if not ours or not theirs:
        return HeadMapping(list(range(labels.outputs)), labels.mean, labels.std)
    if sorted(ours) != sorted(theirs) or len({*ours}) < len(ours):
        raise _differ(f"the labels {_listed(head.names)}", labels)
    return HeadMapping([theirs.index(name) for name in ours])


def _folded(name: str) -> str:
    return name.strip().casefold()


def _differ(theirs: str, labels: Labels) -> ConfigError:
    ours = f"{labels.task} {_listed(labels.names)}".strip()
    what = f"the head of `init_checkpoint` has {theirs.strip()}, but the data are {ours}"
    return ConfigError(what, _HINT)


def _listed(names: list[str]) -> str:
    return f"({', '.join(names)})" if names else ""
