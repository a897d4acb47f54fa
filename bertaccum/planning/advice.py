"""What would help where nothing fits, with numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bertaccum.planning.memory_cost import MemoryCost
from bertaccum.sizes import format_size

# Shorter sequences than these are not worth proposing.
_SHORTEST = 16
# A preset's parameters are counted without biases.
_CLEARLY_SMALLER = 0.9


@dataclass(frozen=True)
class Size:
    """A model's size, as far as its memory goes.

    Args:
      parameters: of all of it.
      activations: layers times hidden size.
    """

    parameters: int
    activations: int


@dataclass(frozen=True)
class Situation:
    """A run that does not fit.

    Args:
      costs: by kind of recomputation; a kind that could not be measured is not there.
      recompute: the kinds that were allowed.
      longest: tokens of the longest example.
      micro_batch: the smallest number of examples that was allowed.
      usable_bytes: what there is.
      bytes_of: of `parameters`, `slots` and `accumulators`.
      offloaded: the slots are not on the device.
      halved: the accumulators are of a short type.
    """

    costs: Mapping[str, MemoryCost]
    recompute: list[str]
    longest: int
    micro_batch: int
    usable_bytes: float
    bytes_of: Mapping[str, int]
    offloaded: bool
    halved: bool


def remedies(situation: Situation, own: Size, presets: Mapping[str, Size]) -> list[str]:
    """What would fit, each with the peak it would then have; what would not is left out."""
    s = situation
    proposals: list[tuple[str, float]] = []
    if "layer" not in s.recompute and "layer" in s.costs:
        proposals.append(
            ("`recompute` layer", s.costs["layer"].peak_bytes(s.micro_batch, s.longest))
        )
    if not s.costs:
        # Not even the update could be measured: what is there at rest is all that is known.
        cost = MemoryCost(sum(s.bytes_of.values()), sum(s.bytes_of.values()), 0.0, 0.0)
    else:
        cost = min(s.costs.values(), key=lambda c: c.peak_bytes(s.micro_batch, s.longest))
        length = _length_that_fits(cost, s)
        if length:
            proposals.append((f"`max_seq_length` {length}", cost.peak_bytes(s.micro_batch, length)))
    if s.micro_batch > 1 and s.costs:
        proposals.append(("`micro_batch` 1", cost.peak_bytes(1, s.longest)))
    peak = cost.peak_bytes(s.micro_batch, s.longest)
    if not s.halved:
        saved = s.bytes_of["accumulators"] / 2
        proposals.append(("`accumulator_dtype` bfloat16", peak - saved))
    if not s.offloaded:
        proposals.append(("on a GPU `offload_optimizer`", peak - s.bytes_of["slots"]))
    for name, size in sorted(presets.items(), key=lambda item: -item[1].parameters):
        if size.parameters < _CLEARLY_SMALLER * own.parameters:
            proposals.append((f"`model` {name}", _scaled(cost, s, own, size)))
            if proposals[-1][1] <= s.usable_bytes:
                break
    return [
        f"{what} (about {format_size(peak)})" for what, peak in proposals if peak <= s.usable_bytes
    ]


def _length_that_fits(cost: MemoryCost, s: Situation) -> int | None:
    """The longest power of two, or half of one more, that fits."""
    lengths = sorted({n * 2**k for k in range(3, 9) for n in (2, 3)}, reverse=True)
    fitting = [
        n
        for n in lengths
        if _SHORTEST <= n < s.longest and cost.peak_bytes(s.micro_batch, n) <= s.usable_bytes
    ]
    return fitting[0] if fitting else None


def _scaled(cost: MemoryCost, s: Situation, own: Size, other: Size) -> float:
    """The peak with a model of another size, by proportion."""
    weights = other.parameters / own.parameters
    examples = s.micro_batch * cost.example_bytes(s.longest)
    activations = examples * other.activations / own.activations
    return max(cost.update_bytes * weights, cost.static_bytes * weights + activations)
