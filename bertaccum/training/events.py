"""What a run says as it goes on: the lines of its logs, and what the command line shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertaccum.data.truncation import Truncation
from bertaccum.metrics import is_worse
from bertaccum.planning.batch_plan import BatchPlan


@dataclass(frozen=True)
class Started:
    """The run's folder is there and an update is next.

    Args:
      why: why windows are cut so; None if the user named the micro-batch.
      updates: of the whole run.
      done: of them, in the state that the run is resumed from.
      over: if no updates are left, what would have more made.
      worker: whose event it is.
      pretrained_pooler: whether the pretrained weights include the pooler's.
      pretrained_run: the run whose best checkpoint the weights come from, if they do.
      pretrained_head: whether that checkpoint's head is used.
      best_by: the metric that selects the best checkpoint.
      truncation: what `max_seq_length` cuts off the texts of train.tsv.
    """

    folder: Path
    model: str
    pretrained: bool
    parameters: int
    train_examples: int
    dev_examples: int
    plan: BatchPlan
    why: str | None
    updates: int
    done: int = 0
    over: str = ""
    worker: int = 0
    pretrained_pooler: bool = True
    pretrained_run: str | None = None
    pretrained_head: bool = False
    best_by: str = "accuracy"
    truncation: Truncation | None = None


@dataclass(frozen=True)
class Updated:
    """One update: a line of `metrics.jsonl`.

    Args:
      update: its number, from 1.
      epoch: the epoch it belongs to, from 1.
      loss: mean over the window's examples.
      examples: in the window.
      micro_steps: that the window was cut into.
      tokens: in the window.
      padded_tokens: that were computed, padding included.
      learning_rate: that it was applied with.
      grad_norm: of the mean gradient, before clipping.
      seconds: that it took, data included.
      examples_per_second: `examples / seconds`.
      skipped: the gradient was not finite and the window was dropped.
      peak_memory_bytes: the most that the device had handed out; None where it does not say.
    """

    update: int
    epoch: int
    loss: float
    examples: int
    micro_steps: int
    tokens: int
    padded_tokens: int
    learning_rate: float
    grad_norm: float
    seconds: float
    examples_per_second: float
    skipped: bool
    peak_memory_bytes: int | None


@dataclass(frozen=True)
class Evaluated:
    """One evaluation on dev.tsv: a line of `eval.jsonl`.

    Args:
      update: after which it was made.
      accuracy, loss, matthews_correlation, macro_f1: on all of dev.tsv.
      best: no earlier evaluation was better by the metric of `best_by`.
      examples: in dev.tsv.
      majority_class, majority_accuracy: the most frequent class of dev.tsv, and the accuracy of
        always predicting it.
      only_prediction: the class that was predicted for every example; None if there are several.

    Logs and checkpoints of earlier versions have no field after `best`.
    """

    update: int
    accuracy: float
    loss: float
    matthews_correlation: float
    best: bool
    macro_f1: float | None = None
    examples: int | None = None
    majority_class: str | None = None
    majority_accuracy: float | None = None
    only_prediction: str | None = None

    def is_worse_than(self, other: Evaluated, metric: str) -> bool:
        """Return whether an evaluation of the same run is better by one of `METRICS`."""
        return is_worse(getattr(self, metric), getattr(other, metric), metric)


@dataclass(frozen=True)
class Finished:
    """The run is over; `summary` is what `summary.json` holds."""

    summary: dict[str, Any]


@dataclass(frozen=True)
class OutOfMemory:
    """A window did not fit and is run again, cut smaller: a line of `metrics.jsonl`.

    Args:
      update: the update it belongs to, from 1; nothing of it had been applied.
      out_of_memory: the micro-batch that was too large.
      micro_batch: the one that is used from now on.
      recompute: whether encoder layers recompute from now on.
    """

    update: int
    out_of_memory: int
    micro_batch: int
    recompute: str


@dataclass(frozen=True)
class Stopped:
    """A signal ended the run early; what it did is saved.

    Args:
      update: the last one that was done.
      signal: its number.
      folder: to resume.
      workers: that were stopped.
    """

    update: int
    signal: int
    folder: Path
    workers: int = 1


Event = Started | Updated | Evaluated | OutOfMemory | Finished | Stopped
