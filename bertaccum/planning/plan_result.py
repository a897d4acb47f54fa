"""The planner's answer: the chosen plan, the candidates and their costs, as plan.json has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bertaccum.data.window_cuts import Prices, Shapes
from bertaccum.errors import RunError
from bertaccum.planning.plan import BatchPlan

T = TypeVar("T")


@dataclass(frozen=True)
class Candidate:
    """One way to run a window.

    Args:
      plan: Batch plan.
      predicted_peak_bytes: Peak memory that the fitted cost predicts for the longest examples.
      measured_peak_bytes: Measured peak memory for the longest examples, or None.
      examples_per_second: Measured speed, or None.
      fits: Whether the predicted peak is within the usable memory, and no measurement of a
        micro-batch of this size or a smaller one ran out of memory.
    """

    plan: BatchPlan
    predicted_peak_bytes: float
    measured_peak_bytes: float | None
    examples_per_second: float | None
    fits: bool

    @property
    def rate(self) -> float:
        """Examples per second; 0 if they were not measured."""
        return self.examples_per_second or 0.0

    def rounded(self) -> Candidate:
        """Return the candidate with the precision of `plan.json`."""
        peak, rate = self.measured_peak_bytes, self.examples_per_second
        return dataclasses.replace(
            self,
            predicted_peak_bytes=round(self.predicted_peak_bytes),
            measured_peak_bytes=peak and round(peak),
            examples_per_second=rate and round(rate, 3),
        )


@dataclass(frozen=True)
class CompileCost:
    """Costs and savings of compiling for a plan. All times are in seconds.

    Args:
      updates_per_epoch: Number of updates in an epoch.
      window_seconds: Time of a typical window whose steps are not compiled.
      compiled_seconds: Time of this window with compiled steps.
      shape_seconds: Time to compile the steps for one shape of a micro-batch.
      token_seconds: Time per token of a compiled micro-step of short examples.
      prices: Prices of compiled micro-steps, in tokens.
      shapes: Shapes that were chosen for some windows of a run of the usual length.
      real_share: Share of the tokens in these windows that are not padding.
      peak_bytes: Peak memory of compiled steps, in bytes.
    """

    updates_per_epoch: int
    window_seconds: float
    compiled_seconds: float
    shape_seconds: float
    token_seconds: float
    prices: Prices
    shapes: Shapes
    real_share: float
    peak_bytes: float

    @property
    def compile_tokens(self) -> float:
        """The time to compile the steps for one shape, in tokens."""
        return max(self.shape_seconds / self.token_seconds, 1.0)

    def saved_seconds(self, updates: float) -> float:
        """Return the time that compiling saves in this many updates, in seconds."""
        compiling = len(self.shapes) * self.shape_seconds
        return updates * (self.window_seconds - self.compiled_seconds) - compiling


@dataclass(frozen=True)
class MeasuredCosts:
    """Model, device and costs for which the planner chose among candidates.

    Args:
      model: Name of the model.
      parameters: Number of its parameters.
      train_examples: Number of examples in train.tsv, or None if unknown.
      precision: Precision of the measurements.
      device: Name of the device.
      memory_bytes: Memory of the device that a run may use.
      margin_bytes: Part of it that plans leave free.
      longest: Tokens of the longest passage.
      largest_windows: Number of passages of the largest example.
      static_bytes: Memory between updates of each part on the device.
      host_bytes: Host memory of the offloaded parts.
      update_bytes: Peak memory of the optimizer step, by `Saving` as a string.
      example_bytes: Memory of the largest example, by kind of recomputation.
      candidates: The candidates.
    """

    model: str
    parameters: int
    train_examples: int | None
    precision: str
    device: str
    memory_bytes: int
    margin_bytes: int
    longest: int
    largest_windows: int
    static_bytes: dict[str, int]
    host_bytes: int
    update_bytes: dict[str, int]
    example_bytes: dict[str, int]
    candidates: list[Candidate]


# Keys that `plan.json` lacks if they have no value.
_OPTIONAL = (
    *("prices", "learned_limits", "precisions", "compile_cost"),
    *("card", "compiled_examples_per_second"),
)


@dataclass(frozen=True)
class PlanResult:
    """The planner's answer, or a plan that the user chose.

    Args:
      plan: The chosen plan; None if no plan fits.
      measured: Model, device, costs and candidates; None if nothing was measured.
      prices: Prices of the plan's micro-steps; None if they were not measured.
      peak_memory_bytes: Peak memory of a real update of the plan.
      examples_per_second: Measured speed of the plan.
      why: Reason for the plan, or why no plan fits; None if the user chose the plan.
      remedies: If no plan fits, changes of options that would help.
      planning_seconds: Duration of the measurements.
      learned_limits: For each `Saving` as a string, the smallest micro-batch that ran out of memory
        in a run.
      precisions: Speed of the best plan in each precision that was compared.
      compile_cost: Costs of compiling, if the plan's steps are compiled.
      card: Name of the GPU for which speeds were calculated; None if they were measured.
      compiled_examples_per_second: Calculated speed of the plan with compiled steps, if they fit.
      cached: Whether the measurements came from the cache.
      timed_on: Description of the windows on which the speeds were measured.
    """

    plan: BatchPlan | None
    measured: MeasuredCosts | None = None
    prices: Prices | None = None
    peak_memory_bytes: float | None = None
    examples_per_second: float | None = None
    why: str | None = None
    remedies: list[str] = field(default_factory=list)
    planning_seconds: float = 0.0
    learned_limits: dict[str, int] = field(default_factory=dict)
    precisions: dict[str, float | None] = field(default_factory=dict)
    compile_cost: CompileCost | None = None
    card: str | None = None
    compiled_examples_per_second: float | None = None
    cached: bool = False
    timed_on: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """The content of `plan.json`."""
        values = dataclasses.asdict(self)
        plan = values.pop("plan") or dict.fromkeys(f.name for f in dataclasses.fields(BatchPlan))
        measured = values.pop("measured")
        if measured is None:
            return {**plan, "why": self.why}
        measured["candidates"] = [row.pop("plan") | row for row in measured["candidates"]]
        del values["cached"], values["timed_on"]
        known = {key: value for key, value in values.items() if value or key not in _OPTIONAL}
        return measured | plan | known

    @staticmethod
    def from_values(values: Mapping[str, Any], timed_on: str) -> PlanResult:
        """Return the result of measurements that the cache contains as `values`."""
        candidates = [
            _pick(Candidate, row, plan=_pick(BatchPlan, row)) for row in values["candidates"]
        ]
        return _pick(
            PlanResult,
            values,
            plan=None if values["micro_batch"] is None else _pick(BatchPlan, values),
            measured=_pick(MeasuredCosts, values, candidates=candidates),
            prices=Prices(**values["prices"]) if "prices" in values else None,
            cached=True,
            timed_on=timed_on,
        )

    def of_whole_window(self, target_batch: int, replicas: int) -> PlanResult:
        """Convert this result, which is for one replica's share, to one for the whole window."""
        share = self.require_plan()
        plan = dataclasses.replace(share, target_batch=target_batch, replicas=replicas)
        return dataclasses.replace(self, plan=plan)

    def require_plan(self) -> BatchPlan:
        """Return the chosen plan.

        Raises:
          RunError: No plan fits; the hint of the error names option changes that would help.
        """
        if self.plan is None:
            raise RunError(str(self.why), "; ".join(self.remedies))
        return self.plan

    def _repr_html_(self) -> str:
        from bertaccum.reporting.notebook import plan_html

        return plan_html(self.values, str(self.plan or "no plan fits"))


def _pick(kind: type[T], values: Mapping[str, Any], **others: Any) -> T:
    """Build a dataclass from the values that have the names of its fields."""
    values = {**values, **others}
    names = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: values[name] for name in names if name in values})
