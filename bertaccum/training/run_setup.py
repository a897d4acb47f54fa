"""Everything that a run needs before its first update: decisions, model, data and process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import tf_keras

from bertaccum.config import TrainConfig
from bertaccum.data.run_inputs import RunInputs
from bertaccum.data.token_store import TokenStore
from bertaccum.data.windows import scheduled_updates, updates_between, updates_per_epoch
from bertaccum.distribution.topology import Topology
from bertaccum.distribution.watchdog import Watch
from bertaccum.planning.batch_plan import BatchPlan, PlanResult, Saving, make_plan
from bertaccum.planning.plan_request import PlanRequest
from bertaccum.progress import Progress
from bertaccum.stopping import Stopping
from bertaccum.tasks.task import Task


@dataclass(frozen=True)
class Session:
    """A process that trains: its place among the workers, and whom it hears and tells.

    Args:
      topology: Replicas of the run.
      watch: Watch to which the run reports the activity of this worker.
      stopping: Records requests to stop the run.
      progress: Called during preparations and evaluations.
    """

    topology: Topology
    watch: Watch
    stopping: Stopping
    progress: Progress

    def asked_to_stop(self) -> bool:
        """Return whether this worker was asked to stop."""
        return self.stopping.requested is not None


@dataclass(frozen=True)
class RunSetup:
    """A run that is ready for its first update.

    Args:
      task: Task of the model.
      config: Fully resolved options, as saved in config.yaml.
      request: Request to the planner.
      planned: The planner's answer.
      model: Classifier, built in the scope of the topology's strategy.
      train_store, dev_store: Token stores of train.tsv and dev.tsv.
      session: Session of this process.
      schedule: Learning rate schedule; None for that of the recipe.
    """

    task: Task
    config: TrainConfig
    request: PlanRequest
    planned: PlanResult
    model: tf_keras.Model
    train_store: TokenStore
    dev_store: TokenStore
    session: Session
    schedule: tf_keras.optimizers.schedules.LearningRateSchedule | None = None

    @property
    def inputs(self) -> RunInputs:
        """The model and the data."""
        return self.request.inputs

    def batch(self, micro_batch: int, saving: Saving) -> BatchPlan:
        """Return the batch plan for a micro-batch size and a way to save memory."""
        config, replicas = self.config, self.session.topology.replicas
        return make_plan(config.target_batch, micro_batch, saving, config.cut, replicas)

    @cached_property
    def updates_per_epoch(self) -> int:
        """The number of windows in an epoch."""
        return updates_per_epoch(len(self.train_store), self.config.target_batch)

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
