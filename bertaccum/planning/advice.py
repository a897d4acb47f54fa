"""Reasons for a plan, and option changes that would help if no plan fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bertaccum.bert.presets import PRESET_CONFIGS, USUAL
from bertaccum.options.adapting import LORA
from bertaccum.options.offload_rungs import ACCUMULATORS, LADDER, OFFLOAD, SLOTS, offloads_sums
from bertaccum.planning.cost import MemoryCost
from bertaccum.planning.plan import Saving, SearchSpace
from bertaccum.planning.plan_result import Candidate
from bertaccum.system.sizes import format_size

# Advice never proposes a shorter `max_seq_length` than this.
_SHORTEST = 16
# The reason why no plan chooses adapters by itself.
_LESS = "trains adapters instead of whole layers"
# The parameter counts of presets exclude biases, but the model's own count includes them. A preset
# must therefore be clearly smaller than the model to count as smaller.
_CLEARLY_SMALLER = 0.9


def reason_for(chosen: Candidate, candidates: Sequence[Candidate], shared: bool) -> str:
    """Return the reason for a choice among candidates."""
    if shared and chosen.plan.accumulation_steps == 1:
        return "each replica's whole share of a window fits"
    whole = [c for c in candidates if c.plan.accumulation_steps == 1 and c.fits]
    if chosen.plan.accumulation_steps == 1:
        timed = any(c.rate for c in candidates if c.plan != chosen.plan)
        untimed = "; smaller micro-batches were not timed"
        untimed = "" if timed or chosen.plan.micro_batch == 1 else untimed
        return f"the whole update fits: no accumulation is needed{untimed}"
    speed = f"{chosen.rate:.1f} examples/s"
    if whole and whole[0].rate and not shared:
        better = "are faster" if chosen.rate > whole[0].rate else "need less memory"
        return (
            f"the whole update fits, but smaller micro-batches {better}: {speed}"
            f" instead of {whole[0].rate:.1f}"
        )
    fitting = [c for c in candidates if c.fits]
    if any(c.rate > chosen.rate for c in fitting):
        return f"it needs the least memory of those that fit and are about as fast: {speed}"
    return f"the fastest of the {len(fitting)} candidates that fit: {speed}"


def reason_nothing_fits(space: SearchSpace, least: float | None) -> str:
    """Return why no candidate fits, given the lowest predicted peak; None if unknown."""
    size, usable, (windows, longest) = min(space.sizes), space.usable_bytes, space.largest
    many = "one example" if size == 1 else f"a micro-batch of {size}"
    tokens = f"{windows} windows of {longest} tokens" if windows > 1 else f"{longest} tokens"
    if least is None:
        takes = "exceeds the memory"
    elif least <= usable:
        takes = f"should take {format_size(least)}, but ran out of memory in a real update"
    else:
        takes = f"takes at least {format_size(least)}"
    return (
        f"nothing fits: {many} of {tokens} {takes};"
        f" {format_size(usable)} is usable after the safety margin"
    )


@dataclass(frozen=True)
class Size:
    """The size of a model; activation memory is proportional to layers times hidden size."""

    parameters: int
    activations: int


def preset_sizes() -> dict[str, Size]:
    usual = ((name, PRESET_CONFIGS[name]) for name in USUAL)
    return {n: Size(c.parameters, c.num_hidden_layers * c.hidden_size) for n, c in usual}


@dataclass(frozen=True)
class Adapters:
    """The memory for training low-rank adapters instead of whole layers.

    Args:
      state_bytes: Memory of their moments and accumulators.
      halved_bytes: Memory that frozen weights save in a 16-bit dtype.
    """

    state_bytes: int
    halved_bytes: int

    def proposals(self, peak: float, replaced: float) -> list[tuple[str, float]]:
        """Return options, each with the predicted peak memory.

        Args:
          peak: Peak memory with whole layers.
          replaced: The part of it that their moments and accumulators take.
        """
        left = peak - replaced + self.state_bytes
        return [
            (f"`adapt` {LORA}", left),
            (f"`adapt` {LORA} and `frozen_dtype` bfloat16", left - self.halved_bytes),
        ]

    def instead_of_offloading(self, peak: float, usable: float) -> str:
        """Return a remark about a plan that offloads the state; empty if adapters do not fit.

        Args:
          peak: Peak memory of the plan, of which little is moments and accumulators.
          usable: Memory that a plan may use.
        """
        for option, needed in self.proposals(peak, 0.0):
            if needed <= usable:
                size = format_size(needed)
                return f"; {option} should fit without offloading (about {size}), but {_LESS}"
        return ""


@dataclass(frozen=True)
class MemoryShortage:
    """A run that does not fit in memory.

    Args:
      costs: Memory cost for each way to save memory that could be measured.
      space: Candidates that the options allow, and the largest example.
      usable_bytes: Memory that a plan may use.
      bytes_of: Memory of the `parameters`, `slots` (AdamW's moments) and `accumulators`.
      halved: Whether the accumulators have a 16-bit dtype.
      adapters: Memory for training low-rank adapters instead; None if the options forbid them.
    """

    costs: Mapping[Saving, MemoryCost]
    space: SearchSpace
    usable_bytes: float
    bytes_of: Mapping[str, int]
    halved: bool
    adapters: Adapters | None = None

    @property
    def micro_batch(self) -> int:
        """The smallest micro-batch size that the options allow."""
        return self.space.sizes[0]


def remedies(shortage: MemoryShortage, own: Size, presets: Mapping[str, Size]) -> list[str]:
    """Return option changes with which the run would fit, each with its predicted peak memory.

    Args:
      shortage: The run that does not fit.
      own: Size of its model.
      presets: Sizes of the models to propose, keyed by name.
    """
    s = shortage
    proposals: list[tuple[str, float]] = []
    for saving in s.costs.keys() - set(s.space.savings):
        peak = s.costs[saving].peak_bytes(s.micro_batch, s.space.longest)
        proposals.append((f"`recompute` {saving.recompute}", peak))
    if not s.costs:
        # The update itself ran out of memory, so only the memory between updates is known.
        cost = MemoryCost(sum(s.bytes_of.values()), sum(s.bytes_of.values()), 0.0, 0.0)
    else:
        cost = min(s.costs.values(), key=lambda c: c.peak_bytes(s.micro_batch, s.space.longest))
        length = _length_that_fits(cost, s)
        if length:
            proposals.append((f"`max_seq_length` {length}", cost.peak_bytes(s.micro_batch, length)))
        fewer = ((n, _with_windows(cost, s, n)) for n in range(s.space.largest[0] - 1, 0, -1))
        proposals += [(f"`windows` {n}", peak) for n, peak in fewer if peak <= s.usable_bytes][:1]
    if s.micro_batch > 1 and s.costs:
        proposals.append(("`micro_batch` 1", cost.peak_bytes(1, s.space.longest)))
    peak = cost.peak_bytes(s.micro_batch, s.space.longest)
    offloaded = s.space.savings[-1].offload
    if not s.halved and not offloads_sums(offloaded):
        saved = s.bytes_of["accumulators"] / 2
        proposals.append(("`accumulator_dtype` bfloat16", peak - saved))
    for offload in OFFLOAD[OFFLOAD.index(offloaded) + 1 :]:
        left = peak - sum(s.bytes_of[name] for name in LADDER[offload].moved)
        proposals.append((f"`offload` {offload}", left))
    if s.adapters is not None:
        state = s.bytes_of[SLOTS] + s.bytes_of[ACCUMULATORS]
        fitting = [p for p in s.adapters.proposals(peak, state) if p[1] <= s.usable_bytes]
        proposals += [(f"{option}, which {_LESS}", left) for option, left in fitting[:1]]
    for name, size in sorted(presets.items(), key=lambda item: -item[1].parameters):
        if size.parameters < _CLEARLY_SMALLER * own.parameters:
            proposals.append((f"`model` {name}", _scaled(cost, s, own, size)))
            if proposals[-1][1] <= s.usable_bytes:
                break
    return [
        f"use {what} (about {format_size(peak)})"
        for what, peak in proposals
        if peak <= s.usable_bytes
    ]


def _length_that_fits(cost: MemoryCost, s: MemoryShortage) -> int | None:
    """Return the longest sequence length of the form 2**n or 3 * 2**n that fits, or None."""
    lengths = (n * 2**k for k in range(3, 9) for n in (2, 3))
    shorter = (n for n in lengths if _SHORTEST <= n < s.space.longest)
    fitting = (n for n in shorter if cost.peak_bytes(s.micro_batch, n) <= s.usable_bytes)
    return max(fitting, default=None)


def _with_windows(cost: MemoryCost, s: MemoryShortage, windows: int) -> float:
    """Return the predicted peak memory if texts have at most this many windows."""
    examples = s.micro_batch * cost.example_bytes(s.space.longest) * windows / s.space.largest[0]
    return max(cost.update_bytes, cost.static_bytes + examples)


def _scaled(cost: MemoryCost, s: MemoryShortage, own: Size, other: Size) -> float:
    """Estimate the peak memory with a model of size `other` from that with the run's model."""
    weights = other.parameters / own.parameters
    examples = s.micro_batch * cost.example_bytes(s.space.longest)
    activations = examples * other.activations / own.activations
    return max(cost.update_bytes * weights, cost.static_bytes * weights + activations)
