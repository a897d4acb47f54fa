"""The batch arithmetic: how a window of `target_batch` examples becomes micro-batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bertaccum.config import AUTO

# Until memory is measured: what a 4 GB card held in the original program.
LARGEST_AUTO_MICRO_BATCH = 8


@dataclass(frozen=True)
class Plan:
    """How each full window is run.

    Args:
      target_batch: examples in one update.
      micro_batch: examples in one forward and backward pass, at most.
      accumulation_steps: micro-steps in a window.
      replicas: devices that share a window.
    """

    target_batch: int
    micro_batch: int
    accumulation_steps: int
    replicas: int = 1

    def __str__(self) -> str:
        whole, short = divmod(self.target_batch, self.micro_batch)
        cut = f"{whole} micro-batches of {self.micro_batch}"
        if self.accumulation_steps == 1:
            cut = "one micro-batch, no accumulation"
        elif short:
            cut = f"{whole} of {self.micro_batch} and one of {short}"
        return f"{self.target_batch} examples an update: {cut}"


def make_plan(target_batch: int, micro_batch: int | str) -> Plan:
    """Derives accumulation_steps; `auto` takes the largest divisor of the target up to 8."""
    if isinstance(micro_batch, str):
        assert micro_batch == AUTO
        candidates = range(1, min(target_batch, LARGEST_AUTO_MICRO_BATCH) + 1)
        micro_batch = max(size for size in candidates if target_batch % size == 0)
    return Plan(target_batch, micro_batch, math.ceil(target_batch / micro_batch))
