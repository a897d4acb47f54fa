"""Batch plans: how a window is split into micro-batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
      recompute, offload: See `Saving`.
      cut: How windows are split: "count" into micro-batches of `micro_batch` examples; "cost" in
        the fastest way that does not need more memory than "count".
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
    """Return a batch plan whose `accumulation_steps` follow from the other fields."""
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
