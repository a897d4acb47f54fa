"""Costs and savings of compiled training steps, measured in a separate process."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertaccum.bert.precision import length_multiple
from bertaccum.data.window_cuts import PRICES, Prices, Shapes, fitting, make_cut
from bertaccum.data.window_shapes import choose_shapes, real_share
from bertaccum.data.windows import scheduled_updates, updates_per_epoch
from bertaccum.distribution.device_memory import device_name
from bertaccum.errors import BertAccumError
from bertaccum.options.commands import TrainConfig
from bertaccum.options.fields import OFF, ON
from bertaccum.options.offload_rungs import offloads_sums
from bertaccum.planning.cost import fit_prices
from bertaccum.planning.measurement import MeasurementProcess, MeasurementRequest, PlanRequest
from bertaccum.planning.plan import BatchPlan, Shape, typical_window, verification_limit
from bertaccum.planning.plan_result import CompileCost, PlanResult
from bertaccum.system.cache import cache_folder, prepare_cache, read_cached, write_cached
from bertaccum.system.progress import Progress, tell

# Compiling is measured, which takes about a minute, in runs that take at least this many seconds.
# On CPUs, compiled steps are rarely faster.
_WORTH_MEASURING = {"CPU": 3600.0, "GPU": 120.0}
# Examples per second of a fast GPU, if no speed was measured.
_FAST = 1000.0
# A micro-step of an example this short takes the time of a micro-step without its tokens.
_SHORT, _SHORT_STEPS = (1, 8), 8
# A window is timed this often, but no more once this many seconds have passed.
_REPEATS, _ENOUGH_SECONDS = 5, 2.0
# Files of the cache for plans that did not fit if compiled. A later process measures them again,
# because more memory may be free then.
_too_large: set[Path] = set()


def compiled_plan(
    plan: BatchPlan,
    windows: Sequence[np.ndarray],
    tokens: int,
    largest: tuple[int, int],
    prices: Prices,
    compile_tokens: float,
    updates: int,
    multiple: int,
) -> BatchPlan:
    """Return a plan with the shapes to compile, and the share of tokens that are not padding.

    Args:
      plan: Plan of the run.
      windows: Shapes of the examples of some windows, each [examples, 2], in ascending order.
      tokens: Number of tokens in these windows without padding.
      largest: Shape of the largest example of the data set.
      prices: Prices of compiled micro-steps.
      compile_tokens: Time to compile a shape, in the unit of `prices`.
      updates: Number of updates of the run.
      multiple: Number of which lengths should be multiples.
    """
    cut, size = plan.kind_of_cut, plan.micro_batch
    shapes = choose_shapes(windows, size, largest, prices, compile_tokens, updates, cut, multiple)
    own_cut = make_cut(cut, largest, prices, shapes)
    share = real_share(windows, tokens, size, own_cut, shapes, prices)
    return dataclasses.replace(plan, shapes=shapes, real_share=round(share, 3))


def should_compile(
    request: PlanRequest,
    result: PlanResult,
    epochs: float,
    max_updates: int | None,
    progress: Progress,
) -> tuple[bool, CompileCost | None]:
    """Return whether a run should compile its steps, and the cost if that was measured.

    If `compile` is auto, steps are compiled if this was measured to save time.

    Raises:
      BertAccumError: Compiling failed, and the options demand it.
    """
    plan, on = result.require_plan(), request.config.compile == ON
    device = "CPU" if device_name() == "CPU" else "GPU"
    chosen = result.examples_per_second is None  # The user chose the plan.
    if request.config.compile == OFF or offloads_sums(plan.offload) or (chosen and device == "CPU"):
        return on, None
    most = math.inf if max_updates is None else max_updates
    if not on:
        examples = result.measured and result.measured.train_examples
        updates = min(epochs * (examples or math.inf) / plan.target_batch, most)
        seconds = updates * plan.target_batch / (result.examples_per_second or _FAST)
        if seconds < _WORTH_MEASURING[device]:
            return False, None
    try:
        cost = compile_cost(request, plan, result.prices or PRICES, progress)
    except BertAccumError as error:  # XLA needs files of CUDA that TensorFlow does without.
        if on:
            raise
        tell(progress, f"steps are not compiled, because {error}")
        return False, None
    if cost is None:
        tell(progress, "micro-batches of this size do not fit in memory if steps are compiled")
        return on, None
    updates = min(scheduled_updates(epochs, cost.updates_per_epoch), most)
    return on or cost.saved_seconds(updates) > 0, cost


def compile_cost(
    request: PlanRequest, plan: BatchPlan, prices: Prices, progress: Progress
) -> CompileCost | None:
    """Measure what compiling costs and saves, or read it from the cache.

    Runs that differ only in their length share the measurement.

    `prices` are those of micro-steps that are not compiled. The result is None if compiled steps do
    not fit in memory.
    """
    parts = [request.digest(), dataclasses.asdict(plan), dataclasses.asdict(prices)]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
    path = cache_folder() / "plans" / f"{key}.compiled.json"
    if (known := read_cached(path, progress)) is not None:
        shapes = tuple((rows, length) for rows, length in known["shapes"])
        return CompileCost(**known | {"prices": Prices(**known["prices"]), "shapes": shapes})
    if path in _too_large:
        return None
    prepare_cache(progress)
    with MeasurementProcess(progress, {}) as process:
        cost = _Measurer(process, request, plan, prices).cost()
    if cost is None:
        _too_large.add(path)
    else:
        write_cached(path, dataclasses.asdict(cost), progress)
    return cost


class _OutOfMemoryError(Exception):
    pass


class _Measurer:
    """Measures windows of a plan with compiled steps and without."""

    def __init__(
        self, process: MeasurementProcess, request: PlanRequest, plan: BatchPlan, prices: Prices
    ) -> None:
        self._process, self._plan, self._prices = process, plan, prices
        limit = request.limit_bytes and verification_limit(request.limit_bytes)
        steps = 2 if plan.accumulates else 1
        self._built = process.build(request.job(plan.offload, limit, steps))
        self._peak = 0.0

    def cost(self) -> CompileCost | None:
        """Return the cost; None if the plan does not fit."""
        if self._built is None:
            return None
        examples, target = self._built["train_examples"], self._plan.target_batch
        per_epoch = updates_per_epoch(examples, target)
        updates = scheduled_updates(TrainConfig.epochs, per_epoch)
        windows = [np.array(window, np.int32) for window in self._built["windows"]]
        largest, size = tuple(self._built["largest"]), self._plan.micro_batch
        window = np.array(typical_window(self._built["windows"]), np.int32)
        try:
            plain = self._steady(self._cut(window, largest, self._prices, ()), None)
            short = self._steady([[_SHORT]], [_SHORT])
            many = 1 + _SHORT_STEPS if self._plan.accumulates else 1
            steps = self._steady([[_SHORT]] * many, [_SHORT] * many)
            full, of_full = [[largest] * size], [(size * largest[0], largest[1])]
            first = self._run(full, of_full)
            longest = self._steady(full, of_full)
            step_seconds = max(steps - short, 0.0) / max(many - 1, 1)
            # The times of small models vary by more than their tokens take.
            tokens_seconds = max(longest - short, 0.1 * longest)
            passages = {largest[1]: tokens_seconds / of_full[0][0]}
            prices, token_seconds = fit_prices(step_seconds, passages, self._prices)
            shape_seconds = max(first - longest, 0.0)
            tokens = sum(int(own.prod(axis=1).sum()) for own in windows)
            multiple = length_multiple(self._built["precision"])
            made_for = largest, prices, shape_seconds / token_seconds, updates, multiple
            plan = compiled_plan(self._plan, windows, tokens, *made_for)
            shapes = plan.shapes or ()
            cut = self._cut(window, largest, prices, shapes)
            compiled = self._steady(cut, self._padded(cut, shapes, prices))
        except _OutOfMemoryError:
            return None
        times = plain, compiled, shape_seconds, token_seconds
        share = plan.real_share or 0.0
        return CompileCost(per_epoch, *times, prices, shapes, share, self._peak)

    def _cut(
        self, window: np.ndarray, largest: Shape, prices: Prices, shapes: Shapes
    ) -> list[list[Shape]]:
        starts = make_cut(self._plan.kind_of_cut, largest, prices, shapes)(
            window, self._plan.micro_batch
        )
        rows = [(int(passages), int(length)) for passages, length in window]
        return [rows[a:b] for a, b in itertools.pairwise(starts)]

    def _padded(self, cut: list[list[Shape]], shapes: Shapes, prices: Prices) -> list[Shape]:
        window = np.concatenate([np.array(part, np.int32) for part in cut])
        ends = np.cumsum([0, *map(len, cut)])
        return [tuple(shape) for shape in fitting(window, ends, shapes, prices).tolist()]

    def _steady(self, cut: list[list[Shape]], padded: list[Shape] | None) -> float:
        """Run a window once to trace and compile it, and return the time of later runs."""
        self._run(cut, padded)
        seconds = [self._run(cut, padded)]
        while len(seconds) < _REPEATS and sum(seconds) < _ENOUGH_SECONDS:
            seconds.append(self._run(cut, padded))
        return statistics.median(seconds)

    def _run(self, cut: list[list[Shape]], padded: list[Shape] | None) -> float:
        measurement = self._process.run(
            MeasurementRequest(cut, *self._plan.saving, self._plan.accumulates, padded=padded)
        )
        if measurement is None:
            raise _OutOfMemoryError
        if padded is not None:
            self._peak = max(self._peak, measurement.peak_bytes)
        return measurement.seconds
