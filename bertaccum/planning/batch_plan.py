"""The batch arithmetic: how a window of `target_batch` examples becomes micro-batches."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from bertaccum.errors import RunError


@dataclass(frozen=True)
class BatchPlan:
    """How each full window is run.

    Args:
      target_batch: examples in one update.
      micro_batch: examples in one forward and backward pass, at most.
      accumulation_steps: micro-steps of a replica in a window of the longest examples.
      replicas: devices that share a window.
      recompute: `layer` if encoder layers recompute their activations, else `none`.
      cut: `cost` if windows are cut where it costs the least, `count` if into equal counts.
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
            cut = f"micro-batches of up to {self.micro_batch} of the longest, more of shorter ones"
        elif short:
            cut = f"{whole} of {self.micro_batch} and one of {short}"
        recomputed = ", with recomputation" if self.recompute == "layer" else ""
        if self.replicas > 1:
            cut = f"on {self.replicas} replicas, each in micro-batches of {self.micro_batch}"
        return f"{self.target_batch} examples an update: {cut}{recomputed}"


def make_plan(
    target_batch: int,
    micro_batch: int,
    recompute: str = "none",
    cut: str = "count",
    replicas: int = 1,
) -> BatchPlan:
    """Derives accumulation_steps."""
    steps = math.ceil(largest_share(target_batch, replicas) / micro_batch)
    return BatchPlan(target_batch, micro_batch, steps, replicas, recompute, cut)


def largest_share(target_batch: int, replicas: int) -> int:
    """Examples of a window that a replica gets, at most."""
    return math.ceil(target_batch / replicas)


def even_micro_batches(target_batch: int) -> list[int]:
    """The sizes worth trying, small ones first: for each number of micro-steps the smallest.

    With any other size as many micro-steps are needed, and more memory.
    """
    return sorted({math.ceil(target_batch / steps) for steps in range(1, target_batch + 1)})


@dataclass(frozen=True)
class PlanResult:
    """What planning found: what `plan.json` holds.

    Args:
      values: everything, in plain numbers.
      cached: it was measured before.
      timed_on: which windows the speeds are those of.
    """

    values: dict[str, Any]
    cached: bool
    timed_on: str

    @staticmethod
    def given(plan: BatchPlan) -> PlanResult:
        """Return a plan that the user named; nothing was measured for it."""
        return PlanResult(dataclasses.asdict(plan) | {"why": None}, cached=False, timed_on="")

    @property
    def plan(self) -> BatchPlan | None:
        """The plan to take; None if nothing fits."""
        if self.values["micro_batch"] is None:
            return None
        return BatchPlan(**{f.name: self.values[f.name] for f in dataclasses.fields(BatchPlan)})

    def of_whole_window(self, target_batch: int, replicas: int) -> PlanResult:
        """Return the plan of the window that several replicas share, from one for a share of it."""
        values = self.values | {"target_batch": target_batch, "replicas": replicas}
        return dataclasses.replace(self, values=values)

    @property
    def why(self) -> str | None:
        """Why this plan, or why none fits; None if the user named it."""
        return self.values["why"]

    def taken(self) -> BatchPlan:
        """The plan.

        Raises:
          RunError: nothing fits; it names what would.
        """
        if self.plan is None:
            raise RunError(str(self.why), "; ".join(self.values["remedies"]))
        return self.plan
