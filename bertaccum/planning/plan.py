"""Batch plans: how a window is split into micro-batches, and which plans a search may choose."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from bertaccum.options.offload_rungs import LADDER, OFFLOAD, OFFLOAD_NONE, offloads_sums
from bertaccum.system.phrases import counted
from bertaccum.system.sizes import format_shapes

# The number of passages of an example, and the number of tokens of the longest one.
Shape: TypeAlias = tuple[int, int]

_MIB = 2**20
# Share of the memory reserved for fragmentation, evaluation and checkpoints.
MARGIN = 0.04
# Memory of the send and receive buffers for summing gradients over replicas, relative to the size
# of the gradients. Measured with two workers: 2.05 to 2.5, whether micro-batches had 1, 2 or 4
# examples.
_ALL_REDUCE_BUFFERS = 2.5


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
        cut = f"{counted(whole, 'micro-batch', 'micro-batches')} of {self.micro_batch}"
        if self.accumulation_steps == 1:
            cut = "one micro-batch, no accumulation"
        elif self.cut == "cost":
            cut = f"micro-batches of {counted(self.micro_batch, 'example')}, more if they are short"
        elif short:
            cut += f" and one of {short}"
        recomputed = ", with recomputation" if self.recompute == "layer" else ""
        if self.replicas > 1:
            cut = f"on {self.replicas} replicas, each in micro-batches of {self.micro_batch}"
        moved = LADDER[self.offload].noun
        offloaded = f", {moved} in host memory" if moved else ""
        shapes = format_shapes(self.shapes or (), self.real_share)
        compiled = f", compiled for {shapes}" if shapes else ""
        examples = counted(self.target_batch, "example")
        return f"{examples} per update: {cut}{recomputed}{offloaded}{compiled}"


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


@dataclass(frozen=True)
class SearchSpace:
    """The candidates of a search, and the limits they must meet.

    Args:
      target_batch: Examples per update.
      sizes: Allowed micro-batch sizes in ascending order.
      savings: Allowed ways to save memory, the fastest first.
      largest: Shape of the largest example; a micro-batch of such examples must fit.
      windows: For each of some windows, the shapes of its examples in ascending order.
      limit_bytes: Memory of the device.
      accumulator_bytes: Memory of the accumulators on the device, which a window of a single
        micro-batch does not need.
      cut: How windows are split, "cost" or "count".
      shared: Whether each window is one replica's share of a larger window; shares always use
        accumulators.
      speed_seconds: Approximate time for measuring the speeds of each way to save memory.
    """

    target_batch: int
    sizes: list[int]
    savings: list[Saving]
    largest: Shape
    windows: list[list[Shape]]
    limit_bytes: float
    accumulator_bytes: float
    cut: str = "count"
    shared: bool = False
    speed_seconds: float = 6.0

    def accumulates(self, plan: BatchPlan) -> bool:
        """Return whether a window of this plan uses accumulators."""
        return plan.accumulates or self.shared

    def plan(self, size: int, saving: Saving) -> BatchPlan:
        """Return the batch plan for a micro-batch size and a way to save memory."""
        return make_plan(self.target_batch, size, saving, self.cut)

    @functools.cached_property
    def typical(self) -> list[Shape]:
        """A window that represents all windows."""
        return typical_window(self.windows)

    @property
    def longest(self) -> int:
        """Tokens of the longest passage."""
        return self.largest[1]

    def all_reduce_bytes(self, saving: Saving, resting_bytes: float) -> float:
        """Return the estimated peak while replicas sum their gradients; 0 for one replica."""
        if not self.shared or offloads_sums(saving.offload):
            return 0.0  # Accumulators on the host are summed in pieces.
        return resting_bytes + _ALL_REDUCE_BUFFERS * self.accumulator_bytes

    @property
    def usable_bytes(self) -> float:
        """The memory limit minus the safety margin."""
        return self.limit_bytes * (1 - MARGIN)


def typical_window(windows: list[list[Shape]]) -> list[Shape]:
    """Return the shapes of the examples of a window that represents all `windows`."""
    shapes = sorted(itertools.chain.from_iterable(windows))
    return shapes[len(windows) // 2 :: len(windows)]


def verification_limit(limit_bytes: float) -> int:
    """Return the memory limit for an update that verifies a plan.

    It excludes half of the safety margin, so that the plan still fits if memory use varies.
    """
    return round(limit_bytes * (1 - MARGIN / 2)) // _MIB * _MIB
