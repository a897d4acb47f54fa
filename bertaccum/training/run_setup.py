"""Everything that a run needs before its first update: decisions, model, data and process."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tf_keras

from bertaccum.bert.precision import length_multiple
from bertaccum.data.run_inputs import RunInputs
from bertaccum.data.token_store import TokenStore
from bertaccum.data.window_cuts import PRICES, Cut, Prices, make_cut
from bertaccum.data.windows import (
    by_length,
    scheduled_updates,
    shares,
    updates_between,
    updates_per_epoch,
    window_rows,
)
from bertaccum.distribution.topology import Topology
from bertaccum.distribution.watchdog import Watch
from bertaccum.options.commands import TrainConfig
from bertaccum.options.offload_rungs import offloads_sums
from bertaccum.planning.compile_cost import compiled_plan
from bertaccum.planning.measurement import PlanRequest
from bertaccum.planning.plan import BatchPlan, Saving, make_plan
from bertaccum.system.progress import Progress
from bertaccum.system.stopping import Stopping
from bertaccum.tasks.task import Task

# Number of windows from which the shapes of compiled micro-batches are chosen.
_WINDOWS = 64
# Time to compile a shape if it was not measured, in tokens: 5 seconds of a fast GPU.
_COMPILE_TOKENS = 1e6


@dataclass(frozen=True)
class Compilation:
    """Whether steps are compiled, and what decides how windows are cut.

    Args:
      compile: Whether steps are compiled.
      prices: Prices of micro-steps.
      compile_tokens: Time to compile the steps for a shape, in tokens.
      cost: What was measured, as plan.json contains it; None if nothing was.
    """

    compile: bool
    prices: Prices = PRICES
    compile_tokens: float = _COMPILE_TOKENS
    cost: dict[str, Any] | None = None

    def with_numbers(self, values: dict[str, Any]) -> Compilation:
        """Return this with the numbers that `deciding` returned.

        Raises:
          ValueError, TypeError: The values are not those of `deciding`.
        """
        numbers = {name: float(value) for name, value in values.items()}
        if not all(0 < number < math.inf for number in numbers.values()):
            raise ValueError(f"a number is not positive and finite: {values}")
        tokens, prices = numbers.pop("compile_tokens"), Prices(**numbers)
        return dataclasses.replace(self, prices=prices, compile_tokens=tokens)

    def deciding(self) -> dict[str, float]:
        """Return the numbers that decide how windows are cut."""
        return dataclasses.asdict(self.prices) | {"compile_tokens": self.compile_tokens}

    def record(self) -> dict[str, Any]:
        """Return what plan.json contains."""
        values = {
            "prices": dataclasses.asdict(self.prices),
            "compile_tokens": self.compile_tokens,
            "compile_cost": self.cost,
        }
        if self.compile and self.cost:
            values["peak_memory_bytes"] = self.cost["peak_bytes"]
        return values


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
      plan_record: Content of plan.json, without what changes during the run.
      model: Classifier, built in the scope of the topology's strategy.
      train_store, dev_store: Token stores of train.tsv and dev.tsv.
      session: Session of this process.
      compilation: Whether steps are compiled.
      schedule: Learning rate schedule; None for that of the recipe.
    """

    task: Task
    config: TrainConfig
    request: PlanRequest
    plan_record: dict[str, Any]
    model: tf_keras.Model
    train_store: TokenStore
    dev_store: TokenStore
    session: Session
    compilation: Compilation
    schedule: tf_keras.optimizers.schedules.LearningRateSchedule | None = None

    @property
    def inputs(self) -> RunInputs:
        """The model and the data."""
        return self.request.inputs

    def batch(self, micro_batch: int, saving: Saving) -> BatchPlan:
        """Return the batch plan for a micro-batch size and a way to save memory."""
        config, replicas = self.config, self.session.topology.replicas
        plan = make_plan(config.target_batch, micro_batch, saving, config.cut, replicas)
        if not self.compilation.compile or offloads_sums(saving.offload):
            return plan
        store, share = self.train_store, shares(config.target_batch, replicas)[0]
        numbers = range(min(_WINDOWS, self.updates_per_epoch))
        rows = [window_rows(n, len(store), config.target_batch, config.seed)[1] for n in numbers]
        owned = [by_length(store, own)[share[share < len(own)]] for own in rows]
        windows = [store.shapes[own] for own in owned]
        compilation = self.compilation
        return compiled_plan(
            plan,
            windows,
            sum(int(store.lengths(own).sum()) for own in owned),
            store.largest,
            compilation.prices,
            compilation.compile_tokens,
            self.scheduled_updates,
            length_multiple(config.precision),
        )

    def cut(self, plan: BatchPlan) -> Cut:
        """Return the function that splits windows for a plan."""
        largest, prices = self.train_store.largest, self.compilation.prices
        return make_cut(plan.kind_of_cut, largest, prices, plan.shapes or ())

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
