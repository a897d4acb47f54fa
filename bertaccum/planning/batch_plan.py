"""Batch arithmetic: how a window of `target_batch` examples becomes micro-batches."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from bertaccum.errors import RunError


@dataclass(frozen=True)
class BatchPlan:
    """How a full window is split into micro-batches.

    Args:
      target_batch: Number of examples per update.
      micro_batch: Number of examples in one forward and backward pass; with `cut` "cost", it may be
        higher for short examples.
      accumulation_steps: Number of micro-steps of a replica in a window of the longest examples.
      replicas: Number of devices that share a window.
      recompute: Recomputation of the encoder layers' activations, "none" or "layer".
      cut: How windows are split: "count" for equal sizes, "cost" for the fastest split that needs
        no more memory.
    """

    target_batch: int
    micro_batch: int
    accumulation_steps: int
    replicas: int = 1
    recompute: str = "none"
    cut: str = "count"

    def __str__(self) -> str:
        whole, short = divmod(self.target_batch, self.micro_batch)
        cut = f"{whole} micro-batches of {self.micro_batch}"
        if self.accumulation_steps == 1:
            cut = "one micro-batch, no accumulation"
        elif self.cut == "cost":
            cut = f"micro-batches of {self.micro_batch} examples, more if they are short"
        elif short:
            cut = f"{whole} micro-batches of {self.micro_batch} and one of {short}"
        recomputed = ", with recomputation" if self.recompute == "layer" else ""
        if self.replicas > 1:
            cut = f"on {self.replicas} replicas, each in micro-batches of {self.micro_batch}"
        return f"{self.target_batch} examples per update: {cut}{recomputed}"


def make_plan(
    target_batch: int,
    micro_batch: int,
    recompute: str = "none",
    cut: str = "count",
    replicas: int = 1,
) -> BatchPlan:
    """Return a batch plan with its `accumulation_steps` derived.

    Args:
      target_batch, micro_batch, recompute, cut, replicas: Arguments of `BatchPlan`.
    """
    steps = math.ceil(largest_share(target_batch, replicas) / micro_batch)
    return BatchPlan(target_batch, micro_batch, steps, replicas, recompute, cut)


def largest_share(target_batch: int, replicas: int) -> int:
    """Return the largest number of examples of a window that one replica gets."""
    return math.ceil(target_batch / replicas)


def even_micro_batches(target_batch: int) -> list[int]:
    """Return the micro-batch sizes worth trying, in ascending order.

    These are the smallest sizes for each number of micro-steps. Any other size needs as many
    micro-steps as one of them, and more memory.
    """
    return sorted({math.ceil(target_batch / steps) for steps in range(1, target_batch + 1)})


@dataclass(frozen=True)
class PlanResult:
    """The planner's answer.

    Args:
      values: Content of `plan.json`.
      cached: Whether the measurements came from the cache.
      timed_on: Which windows the speeds were measured on.
    """

    values: dict[str, Any]
    cached: bool
    timed_on: str

    @staticmethod
    def given(plan: BatchPlan) -> PlanResult:
        """Return the result for a plan that the user chose, without measurements."""
        return PlanResult(dataclasses.asdict(plan) | {"why": None}, cached=False, timed_on="")

    @property
    def plan(self) -> BatchPlan | None:
        """Return the chosen plan; None if nothing fits."""
        if self.values["micro_batch"] is None:
            return None
        return BatchPlan(**{f.name: self.values[f.name] for f in dataclasses.fields(BatchPlan)})

    def of_whole_window(self, target_batch: int, replicas: int) -> PlanResult:
        """Return the plan for a whole window, given this plan for one replica's share of it."""
        values = self.values | {"target_batch": target_batch, "replicas": replicas}
        return dataclasses.replace(self, values=values)

    @property
    def why(self) -> str | None:
        """Return why this plan was chosen, or why none fits; None if the user chose it."""
        return self.values["why"]

    def taken(self) -> BatchPlan:
        """Return the chosen plan.

        Raises:
          RunError: Nothing fits; the error proposes changes that would.
        """
        if self.plan is None:
            raise RunError(str(self.why), "; ".join(self.values["remedies"]))
        return self.plan
