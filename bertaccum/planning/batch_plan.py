"""Batch arithmetic: how a window of `target_batch` examples is split into micro-batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bertaccum.errors import RunError
from bertaccum.options.offload_rungs import LADDER, OFFLOAD, OFFLOAD_NONE, offloads_sums
from bertaccum.system.sizes import format_shapes


class Saving(NamedTuple):
    """A way to save memory of the device, which does not change the updates.

    Args:
      recompute: Recomputation of the encoder layers' activations, "none" or "layer".
      offload: What is kept in host memory, one of `OFFLOAD`.
    """

    recompute: str = "none"
    offload: str = OFFLOAD_NONE

    def is_less_than(self, other: Saving) -> bool:
        """Return whether another way to save memory does all of this one, and more."""
        kinds = self.recompute == "none" or other.recompute == self.recompute
        return kinds and {*LADDER[self.offload].moved} <= {*LADDER[other.offload].moved}

    def more(self) -> Saving | None:
        """Return the next way to save memory, which takes more time; None after the last one."""
        if self.recompute == "none":
            return self._replace(recompute="layer")
        return self.offloading_more()

    def offloading_more(self) -> Saving | None:
        """Return the way to save memory that offloads the next part; None after the last one."""
        left = OFFLOAD[OFFLOAD.index(self.offload) + 1 :]
        return self._replace(offload=left[0]) if left else None

    def __str__(self) -> str:
        offloaded = f", offload {self.offload}" if self.offload != OFFLOAD_NONE else ""
        return f"{self.recompute}{offloaded}"


NOTHING_SAVED = Saving()


@dataclass(frozen=True)
class BatchPlan:
    """How a full window is split into micro-batches.

    Args:
      target_batch: Number of examples per update.
      micro_batch: Number of examples in one forward and backward pass; with `cut` "cost", there may
        be more if they are short.
      accumulation_steps: Number of micro-steps that a replica needs for its share of a window if
        all examples have the maximum length; with `cut` "cost", a window may take fewer or more.
      replicas: Number of devices that share a window.
      recompute: Recomputation of the encoder layers' activations, "none" or "layer".
      cut: How windows are split: "count" into micro-batches of `micro_batch` examples; "cost" in
        the fastest way that does not need more memory than "count".
      offload: What is kept in host memory, one of `OFFLOAD`.
      shapes: Rows and lengths to which micro-batches are padded, for which steps are compiled;
        None if they are not compiled.
      real_share: Share of the tokens that are not padding; None if steps are not compiled.
    """

    target_batch: int
    micro_batch: int
    accumulation_steps: int
    replicas: int = 1
    recompute: str = "none"
    cut: str = "count"
    offload: str = OFFLOAD_NONE
    shapes: Sequence[tuple[int, int]] | None = None
    real_share: float | None = None

    @property
    def saving(self) -> Saving:
        """The way in which the plan saves memory."""
        return Saving(self.recompute, self.offload)

    @property
    def accumulates(self) -> bool:
        """Whether a replica's share of a window uses accumulators.

        A single micro-batch does not need them. However, its gradients would all be on the device
        at the same time, and accumulators on the host are not.
        """
        return self.accumulation_steps > 1 or self.replicas > 1 or offloads_sums(self.offload)

    @property
    def kind_of_cut(self) -> str:
        """How windows are split; without accumulators, a window must stay a single micro-batch."""
        return self.cut if self.accumulates else "count"

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
        moved = LADDER[self.offload].noun
        offloaded = f", {moved} in host memory" if moved else ""
        shapes = format_shapes(self.shapes or (), self.real_share)
        compiled = f", compiled for {shapes}" if shapes else ""
        return f"{self.target_batch} examples per update: {cut}{recomputed}{offloaded}{compiled}"


def make_plan(
    target_batch: int,
    micro_batch: int,
    saving: Saving = NOTHING_SAVED,
    cut: str = "count",
    replicas: int = 1,
) -> BatchPlan:
    """Return a batch plan, with `accumulation_steps` computed from the other fields.

    Args:
      target_batch, micro_batch, cut, replicas: Arguments of `BatchPlan`.
      saving: Its recomputation and offloading.
    """
    steps = math.ceil(largest_share(target_batch, replicas) / micro_batch)
    recompute, offload = saving
    return BatchPlan(target_batch, micro_batch, steps, replicas, recompute, cut, offload)


def largest_share(target_batch: int, replicas: int) -> int:
    """Return the largest number of examples of a window that any replica gets."""
    return math.ceil(target_batch / replicas)


def even_micro_batches(target_batch: int) -> list[int]:
    """Return the micro-batch sizes worth trying, in ascending order.

    For each number of micro-steps, the list contains the smallest size that suffices. Any other
    size needs as many micro-steps as a listed one, but more memory.
    """
    return sorted({math.ceil(target_batch / steps) for steps in range(1, target_batch + 1)})


@dataclass(frozen=True)
class PlanResult:
    """The planner's answer.

    Args:
      values: Content of `plan.json`.
      cached: Whether the measurements came from the cache.
      timed_on: Description of the windows on which the speeds were measured.
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
        """The chosen plan; None if no plan fits."""
        if self.values["micro_batch"] is None:
            return None
        return BatchPlan(**{f.name: self.values[f.name] for f in dataclasses.fields(BatchPlan)})

    def of_whole_window(self, target_batch: int, replicas: int) -> PlanResult:
        """Convert this result, which is for one replica's share, to one for the whole window."""
        values = self.values | {"target_batch": target_batch, "replicas": replicas}
        return dataclasses.replace(self, values=values)

    @property
    def why(self) -> str | None:
        """The reason for the plan, or why no plan fits; None if the user chose the plan."""
        return self.values["why"]

    def taken(self) -> BatchPlan:
        """Return the chosen plan.

        Raises:
          RunError: No plan fits; the hint of the error names option changes that would help.
        """
        if self.plan is None:
            raise RunError(str(self.why), "; ".join(self.values["remedies"]))
        return self.plan
