"""Heads of fine-tuned classifiers: their outputs in the order of our labels."""

from __future__ import annotations

import dataclasses

from bertaccum.bert.model_source import FineTunedHead, HeadMapping, ModelSource
from bertaccum.errors import ConfigError, InputError
from bertaccum.options.task_names import CLASSIFICATION, PROBLEM_TYPES, REGRESSION
from bertaccum.system.phrases import counted
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.task import PLAIN, Decoding

_OWNER = "the head of `init_checkpoint`"
_HINT = "omit `keep_head` for a random head, or rename the labels of the data"


def head_mapping(source: ModelSource, labels: Labels, keep: bool) -> HeadMapping | None:
    """Return how a checkpoint's head becomes the head for some labels; None for a random head.

    Outputs correspond by the names of their classes, whose capitals may differ. If the checkpoint
    has no names, they correspond by number. The head of a run is also kept without `keep` if its
    labels are exactly the same.

    Raises:
      ConfigError: The head cannot be kept, because its task or its classes differ.
    """
    run = _labels_of_run(source)
    if run == labels:
        return HeadMapping(list(range(labels.outputs)))
    if run is not None:
        return _of_run(run, labels) if keep else None
    return None if source.head is None else _mapping(source.head, labels)


def head_difference(source: ModelSource, labels: Labels) -> str:
    """Return what differs between the labels of a run and some that its head suits with `keep`.

    The result is empty if nothing differs, if the head does not suit, or if there is no run.
    """
    if (run := _labels_of_run(source)) is None:
        return ""
    try:
        mapping = _of_run(run, labels)
    except ConfigError:
        return ""
    differences = {
        "the order of the classes": mapping.rows != list(range(labels.outputs)),
        "the spelling of the classes": (run.names, run.values) != (labels.names, labels.values),
        "the unit of the scores": (run.mean, run.std) != (labels.mean, labels.std),
        "the number of texts of an example": run.pairs != labels.pairs,
    }
    return next((what for what, differs in differences.items() if differs), "")


def teacher_mapping(source: ModelSource, labels: Labels, teacher: str) -> HeadMapping:
    """Return how the outputs of a teacher become those of a model with some labels.

    Args:
      source: The teacher, a run or a checkpoint with a head.
      teacher: Its name in errors.

    Raises:
      ConfigError: The task or the classes of the teacher differ.
    """
    owner, hint = f"`teacher` {teacher}", "choose a teacher of the same task and classes"
    run, head = _labels_of_run(source), source.head
    if run is None:
        assert head is not None
        return _mapping(head, labels, owner, hint)
    if run.pairs != labels.pairs:
        kinds = ["single texts", "pairs of texts"]
        what = f"{owner} reads {kinds[run.pairs]}, but the data are {kinds[labels.pairs]}"
        raise ConfigError(what, "choose another teacher")
    return _of_run(run, labels, owner, hint)


def kept_decoding(source: ModelSource, head: HeadMapping | None) -> Decoding:
    """Return how the logits of a run become predictions, for the outputs that `head` maps."""
    if source.decoding is None or head is None:
        return PLAIN
    try:
        decoding = Decoding(**source.decoding)
        of_labels = decoding.thresholds and [decoding.thresholds[row] for row in head.rows]
    except (IndexError, TypeError, ValueError) as error:
        raise InputError(f"decoding.json is damaged ({error})", path=source.name) from None
    return dataclasses.replace(decoding, thresholds=of_labels)


def _of_run(run: Labels, labels: Labels, owner: str = _OWNER, hint: str = _HINT) -> HeadMapping:
    """Return how the outputs of a run's head become those of some labels, as `_mapping` does."""
    problem = PROBLEM_TYPES.get(run.task, run.task)
    mapping = _mapping(FineTunedHead(run.outputs, run.names, problem), labels, owner, hint)
    if run.task == REGRESSION:  # Both models predict standardized numbers.
        return HeadMapping([0], (labels.mean - run.mean) / run.std, labels.std / run.std)
    return mapping


def _labels_of_run(source: ModelSource) -> Labels | None:
    """Return the labels of a run; None for other checkpoints."""
    try:
        return None if source.labels is None else Labels(**source.labels)
    except (TypeError, ValueError) as error:
        raise InputError(f"labels.json is damaged ({error})", path=source.name) from None


def _mapping(
    head: FineTunedHead, labels: Labels, owner: str = _OWNER, hint: str = _HINT
) -> HeadMapping:
    """Return how the outputs of a head become those of some labels.

    Args:
      owner, hint: What has the head, and advice, for errors.
    """
    problem = PROBLEM_TYPES.get(labels.task, labels.task)
    if head.problem_type not in (None, problem) or (
        # transformers takes a head with one output for regression unless it says otherwise.
        head.problem_type is None and head.outputs == 1 and labels.task == CLASSIFICATION
    ):
        named = head.problem_type or "regression"
        raise _differ(f"the problem_type {named}", labels, owner, hint)
    if head.outputs not in (None, labels.outputs):
        theirs = f"{counted(head.outputs, 'output')} {_listed(head.names)}"
        raise _differ(theirs, labels, owner, hint)
    if head.names == labels.names or not labels.names or not head.names:
        return HeadMapping(list(range(labels.outputs)), labels.mean, labels.std)
    ours = [_folded(name) for name in labels.names]
    theirs_folded = [_folded(name) for name in head.names]
    if sorted(ours) != sorted(theirs_folded) or len({*ours}) < len(ours):
        raise _differ(f"the labels {_listed(head.names)}", labels, owner, hint)
    return HeadMapping([theirs_folded.index(name) for name in ours])


def _folded(name: str) -> str:
    return name.strip().casefold()


def _differ(theirs: str, labels: Labels, owner: str = _OWNER, hint: str = _HINT) -> ConfigError:
    ours = f"{labels.task} {_listed(labels.names)}".strip()
    return ConfigError(f"{owner} has {theirs.strip()}, but the data are {ours}", hint)


def _listed(names: list[str]) -> str:
    return f"({', '.join(names)})" if names else ""
