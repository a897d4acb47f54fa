"""Decisions that a run makes before its first update."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from bertaccum.config import TrainConfig
from bertaccum.data.run_inputs import RunInputs
from bertaccum.data.windows import scheduled_updates, updates_between, updates_per_epoch
from bertaccum.planning.batch_plan import BatchPlan, PlanResult, Saving, make_plan
from bertaccum.planning.plan_request import PlanRequest

if TYPE_CHECKING:
    import tf_keras


@dataclass(frozen=True)
class RunPlan:
    """The resolved options of a run.

    Args:
      config: Fully resolved options, as saved in config.yaml.
      request: Request to the planner.
      planned: The planner's answer.
      replicas: Number of devices that share a window.
      train_examples: Number of rows in train.tsv.
      schedule: Learning rate schedule; None for that of the recipe.
    """

    config: TrainConfig
    request: PlanRequest
    planned: PlanResult
    replicas: int
    train_examples: int
    schedule: tf_keras.optimizers.schedules.LearningRateSchedule | None = None

    @property
    def inputs(self) -> RunInputs:
        """The model and the data."""
        return self.request.inputs

    def batch(self, micro_batch: int, saving: Saving) -> BatchPlan:
        """Return the batch plan for a micro-batch size and a way to save memory."""
        config = self.config
        return make_plan(config.target_batch, micro_batch, saving, config.cut, self.replicas)

    @cached_property
    def updates_per_epoch(self) -> int:
        """The number of windows in an epoch."""
        return updates_per_epoch(self.train_examples, self.config.target_batch)

    @cached_property
    def scheduled_updates(self) -> int:
        """The number of updates that the learning rate schedule covers."""
        return scheduled_updates(self.config.epochs, self.updates_per_epoch)

    @property
    def last_update(self) -> int:
        """The number of the run's last update.

        The schedule does not depend on `max_updates`, so stopping early changes no update.
        """
        limit = self.config.max_updates
        return self.scheduled_updates if limit is None else min(self.scheduled_updates, limit)

    @property
    def updates_between_evaluations(self) -> int:
        """The evaluation interval, in updates."""
        return updates_between(self.config.eval_every, self.updates_per_epoch)
