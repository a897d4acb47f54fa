"""Events of a training run, which its logs record and the command line shows, and its result.

The `kind` of an event names it in the logs and in JSON progress.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bertaccum.data.truncation import Truncation
from bertaccum.options.metrics import is_worse
from bertaccum.planning.plan import BatchPlan
from bertaccum.runs.record import EVALUATED, OUT_OF_MEMORY, UPDATED

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Started:
    """The start or continuation of a run, just before the first update of this process.

    Args:
      folder: Run folder.
      model: Name of the encoder.
      pretrained: Whether training starts from pretrained weights.
      parameters: Number of the model's parameters.
      train_examples, dev_examples: Number of rows in train.tsv and dev.tsv.
      plan: How windows are split into micro-batches.
      why: Why the planner chose this plan; None if the user set the micro-batch size.
      updates: Number of updates of the whole run.
      done: Number of updates completed before this process resumed the run; 0 for a new run.
      over: Hint on how to train further if no updates are left; otherwise empty.
      worker: Number of the worker that sends the event.
      pretrained_pooler: Whether the pretrained weights include the pooler.
      pretrained_run: Name of the run whose best checkpoint provides the weights; None if the
        weights come from elsewhere.
      pretrained_head: Whether that checkpoint also provides the head.
      head_difference: If the head is random although `keep_head` would keep that of the run, what
        differs between the labels of the run and those of the data; otherwise empty.
      best_by: Metric that selects the best checkpoint.
      learning_rate: Peak learning rate.
      default_rate: Whether it is the default for this model.
      truncation: Statistics of the texts in train.tsv that `max_seq_length` truncates; None if
        unknown.
      doubt: Evidence that texts are lowercased although they should not be, or the other way
        round; None without such evidence.
      teacher: Name of the teacher; None without one.
      unlabeled_examples: Number of texts that the model learns only from the teacher.
    """

    kind: ClassVar[str] = "started"
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
    head_difference: str = ""
    best_by: str = "accuracy"
    learning_rate: float = math.nan
    default_rate: bool = False
    truncation: Truncation | None = None
    doubt: str | None = None
    teacher: str | None = None
    unlabeled_examples: int = 0


@dataclass(frozen=True)
class Updated:
    """An update, recorded as a line of `metrics.jsonl`.

    Args:
      update: Number of the update, counted from 1.
      epoch: Number of the epoch, counted from 1.
      loss: Mean loss over the window's examples.
      examples: Number of examples in the window.
      micro_steps: Number of micro-batches in the window, summed over replicas.
      tokens: Number of tokens in the window, excluding padding.
      padded_tokens: Number of tokens in the window, including padding.
      learning_rate: Learning rate of the update.
      grad_norm: Global norm of the mean gradient before clipping.
      seconds: Duration of the update in seconds, excluding the reading of its window.
      examples_per_second: `examples / seconds`.
      skipped: Whether the window was skipped because its gradient was not finite.
      peak_memory_bytes: Peak memory of the device in bytes; None if the device does not report it.
      gradient_noise, gradient_signal: Estimates of the noise and the signal of single examples'
        gradients, from this update alone; None if unknown. See `noise_scale.py`.
      noise_scale: The gradient noise scale, smoothed over the updates so far; None if unknown.
      noise_scales: The same for each group of weights; None unless `noise_scale` is "groups".
    """

    kind: ClassVar[str] = UPDATED
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
    gradient_noise: float | None = None
    gradient_signal: float | None = None
    noise_scale: float | None = None
    noise_scales: dict[str, float | None] | None = None


def check_count(name: str, count: Any) -> None:
    """Raise ValueError if a value of a file, which can have any type, is not a count."""
    if type(count) is not int or not 0 <= count < 2**63:
        raise ValueError(f"{name} is {count!r:.40}, not a number from 0 to 2**63 - 1")


@dataclass(frozen=True)
class Evaluated:
    """An evaluation on dev.tsv, recorded as a line of `eval.jsonl`.

    Each score is also an attribute: `evaluated.accuracy` is `evaluated.scores["accuracy"]`.

    Args:
      update: Number of completed updates.
      best: Whether no earlier evaluation was better by the metric that `best_by` names.
      scores: What the task's `scores` returned, such as `loss`, `accuracy` and `examples`.
    """

    kind: ClassVar[str] = EVALUATED
    update: int
    best: bool
    scores: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        # Copying looks up special methods, and `scores`, before the fields are set.
        if name == "scores" or name.startswith("__") or name not in self.scores:
            raise AttributeError(f"an evaluation has no {name!r}")
        return self.scores[name]

    def is_worse_than(self, other: Evaluated, metric: str) -> bool:
        """Return whether another evaluation of the run is better by `metric`."""
        values = self.scores[metric], other.scores[metric]
        # A log or a checkpoint contains null for NaN.
        one, another = (math.nan if value is None else value for value in values)
        return is_worse(one, another, metric)

    def record(self) -> dict[str, Any]:
        """Return `update`, the scores and `best` in one dict, as in `eval.jsonl`."""
        return {"update": self.update, **self.scores, "best": self.best}

    @staticmethod
    def of(record: dict[str, Any]) -> Evaluated:
        """Return the evaluation of which `record` returned a dict.

        Raises:
          KeyError, TypeError, ValueError: The dict is not a record of an evaluation.
        """
        check_count("update", record["update"])
        scores = {k: v for k, v in record.items() if k not in ("update", "best")}
        return Evaluated(record["update"], record["best"], scores)


@dataclass(frozen=True)
class Finished:
    """The end of a run that has finished; `summary` is the content of `summary.json`."""

    kind: ClassVar[str] = "finished"
    summary: dict[str, Any]


@dataclass(frozen=True)
class OutOfMemory:
    """An update that ran out of memory and is run again, recorded as a line of `metrics.jsonl`.

    Args:
      update: Number of the update, counted from 1. The variables had not been changed.
      out_of_memory: Micro-batch size that was too large.
      micro_batch: Micro-batch size for the repetition and all later updates.
      recompute, offload: What the repetition and all later updates do to save memory; fields of
        `BatchPlan`.
    """

    kind: ClassVar[str] = OUT_OF_MEMORY
    update: int
    out_of_memory: int
    micro_batch: int
    recompute: str
    offload: str = "none"


@dataclass(frozen=True)
class Stopped:
    """The end of a run that a signal stopped early, after its last checkpoint was saved.

    Args:
      update: Number of completed updates.
      signal: Number of the signal.
      folder: Run folder, from which the run can be resumed.
      workers: Number of workers that were stopped.
    """

    kind: ClassVar[str] = "stopped"
    update: int
    signal: int
    folder: Path
    workers: int = 1


Event = Started | Updated | Evaluated | OutOfMemory | Finished | Stopped


@dataclass(frozen=True)
class RunResult:
    """A run that has finished or was stopped.

    Args:
      folder: Run folder; an empty path in a worker that stopped before the run began.
      finished: Whether the run finished. A run that a signal stopped can be resumed.
      updates: Number of completed updates.
      best: Evaluation of the best checkpoint; None if a signal stopped the run before this process
        found one.
      summary: Content of summary.json; None if the run was stopped.
    """

    folder: Path
    finished: bool
    updates: int
    best: Evaluated | None
    summary: dict[str, Any] | None

    def plot(self) -> Figure:
        """Draw the training loss and the dev metric against the number of examples seen.

        Returns:
          A matplotlib figure, which a notebook shows.

        Raises:
          InputError: The run folder is missing or damaged.
        """
        from bertaccum.reporting.notebook import run_figure

        return run_figure(self.folder)

    def _repr_html_(self) -> str:
        from bertaccum.reporting.notebook import run_html

        return run_html(self.folder)


def collect(events: Iterator[Event], callback: Callable[[Event], None] | None) -> RunResult:
    """Consume the events of one run, and return the result.

    Raises:
      BertAccumError: The run failed.
    """
    folder, updates, best = Path(), 0, None
    for event in events:
        if callback is not None:
            callback(event)
        if isinstance(event, Started):
            folder, updates = event.folder, event.done
        elif isinstance(event, Updated):
            updates = event.update
        elif isinstance(event, Evaluated) and event.best:
            best = event
        elif isinstance(event, Stopped):
            return RunResult(event.folder, False, event.update, best, None)
        elif isinstance(event, Finished):
            found = event.summary.get("best_evaluation")
            best = Evaluated.of(found) if found else best
            return RunResult(folder, True, event.summary["updates"], best, event.summary)
    return RunResult(folder, False, updates, best, None)
