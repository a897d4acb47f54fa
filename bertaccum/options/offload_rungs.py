"""The parts of the training state that can be offloaded to host memory."""

from __future__ import annotations

from typing import NamedTuple

# Parts of the optimizer's state, as `static_bytes` in plan.json names them. The slots of AdamW are
# its moments.
SLOTS, ACCUMULATORS = "slots", "accumulators"


class Rung(NamedTuple):
    """The parts of the training state that a plan keeps in host memory."""

    moved: tuple[str, ...]  # The parts that move there.
    noun: str  # These parts, for the description of a plan.
    phrase: str  # The same, for a sentence.
    left: str  # The parts that stay on the device, for a sentence.


OFFLOAD_NONE = "none"
# Each rung keeps less on the device than the one before.
LADDER = {
    OFFLOAD_NONE: Rung((), "", "", "weights, moments and accumulators"),
    "moments": Rung((SLOTS,), "moments", "AdamW's moments", "weights and accumulators"),
    "all": Rung(
        (SLOTS, ACCUMULATORS),
        "moments and accumulators",
        "AdamW's moments and the accumulators",
        "the weights",
    ),
}
OFFLOAD = tuple(LADDER)


def offloads_sums(offload: str) -> bool:
    """Return whether a rung keeps the accumulators in host memory."""
    return ACCUMULATORS in LADDER[offload].moved
