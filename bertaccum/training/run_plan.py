"""Everything about a run that is decided before its first update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from bertaccum.config import TrainConfig
from bertaccum.data.run_inputs import RunInputs
from bertaccum.data.windows import updates_between, updates_per_epoch
from bertaccum.planning.batch_plan import BatchPlan, PlanResult, make_plan
from bertaccum.planning.plan_request import PlanRequest
from bertaccum.settings import save_interval


@dataclass(frozen=True)
class RunPlan:
    """The options of a run, resolved once.

    Args:
      config: the options; nothing in them is left to derive. They are what config.yaml holds.
      request: what the planner was asked.
      planned: what it answered.
      replicas: devices that share a window.
      train_examples: number of rows of train.tsv.
    """

    config: TrainConfig
    request: PlanRequest
    planned: PlanResult
    replicas: int
    train_examples: int

    @property
    def inputs(self) -> RunInputs:
        """Model and data."""
        return self.request.inputs

    @property
    def first_batch(self) -> BatchPlan:
        """How windows are cut at first; running out of memory cuts them smaller."""
        return self.batch(int(self.config.micro_batch), self.config.recompute)

    def batch(self, micro_batch: int, recompute: str) -> BatchPlan:
        """Return how windows are cut with other micro-batches."""
        config = self.config
        return make_plan(config.target_batch, micro_batch, recompute, config.cut, self.replicas)

    @cached_property
    def updates_per_epoch(self) -> int:
        """Number of windows in an epoch."""
        return updates_per_epoch(self.train_examples, self.config.target_batch)

    @cached_property
    def scheduled_updates(self) -> int:
        """Number of updates that the learning-rate schedule is for."""
        # Rounded first: 0.1 epochs of 30 updates are 3, though 0.1 * 30 is a little more.
        return max(math.ceil(round(self.config.epochs * self.updates_per_epoch, 6)), 1)

    @property
    def last_update(self) -> int:
        """Number of the run's last update.

        The schedule does not depend on `max_updates`: stopping early changes no update.
        """
        return min(self.scheduled_updates, self.config.max_updates or self.scheduled_updates)

    @property
    def updates_between_evaluations(self) -> int:
        """The evaluation interval."""
        return updates_between(self.config.eval_every, self.updates_per_epoch)

    @property
    def save_interval(self) -> tuple[int | None, float | None]:
        """The interval between checkpoints, in updates or in seconds; the other one is None."""
        return save_interval(self.config.save_every)
