"""Tables of plans and of the GPUs to plan for, on stdout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bertaccum.cli.display.sentences import duration, result_json, with_flags
from bertaccum.cli.display.table_fitting import print_line, print_paths, show
from bertaccum.reporting.candidates import candidate_cells
from bertaccum.system.phrases import counted
from bertaccum.system.sizes import format_size

if TYPE_CHECKING:
    from bertaccum.options.cards import Card
    from bertaccum.planning.plan_result import MeasuredCosts, PlanResult

# Number of examples whose time is printed if the data set is not known.
_USUAL_EXAMPLES = 10_000


def print_plan(result: PlanResult, path: str, show_all: bool = True) -> None:
    """Print the result of `bertaccum plan`; without `show_all`, few of the candidates."""
    assert result.measured is not None
    for line in plan_heading(result.measured):
        print_line(line)
    saving = "recompute", "offload"
    head = ("micro-batch", "steps", *saving, "predicted", "measured", "examples/s", "fits")
    values = result.values
    candidates = values["candidates"]
    rows = candidates if show_all else neighbors(candidates, values)
    show(
        head,
        [[*candidate_cells(row, values).values()] for row in rows],
        least=("predicted", "steps", *saving, "measured"),
    )
    if left_out := len(candidates) - len(rows):
        print_line(f"… {counted(left_out, 'more candidate')}; --all prints them")
    if result.plan is not None:
        print_line(f"* {result.plan}")
        print_line(f"reason: {with_flags(str(result.why))}")
        if result.peak_memory_bytes:
            print_line(f"peak memory of a real update: {format_size(result.peak_memory_bytes)}")
        _print_speed(result, result.measured.train_examples)
    took = f"{result.planning_seconds:.0f} s"
    print_line(f"measurements: {'from the cache' if result.cached else took}")
    print_paths([path])


def neighbors(rows: list[dict[str, Any]], plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the chosen candidate, those next to it, and the fastest one of each other saving.

    If no candidate fits, this is the one that needs the least memory for each saving.
    """
    by_saving: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        by_saving.setdefault((row["recompute"], row["offload"]), []).append(row)
    chosen = plan["recompute"], plan["offload"]
    found = []
    for saving, own in by_saving.items():
        if saving == chosen:
            at = [row["micro_batch"] for row in own].index(plan["micro_batch"])
            found += own[max(at - 1, 0) : at + 2]
        else:
            fitting = [row for row in own if row["fits"]] or own[:1]
            found.append(max(fitting, key=lambda row: row["examples_per_second"] or 0.0))
    return found


def _print_speed(result: PlanResult, examples: int | None) -> None:
    """Print how the speed is known, and how long an epoch takes."""
    how = "measured" if result.card is None else f"calculated for the {result.card}, not measured,"
    print_line(f"examples/s: {how} on {result.timed_on}")
    if not result.examples_per_second:
        return
    number = examples or _USUAL_EXAMPLES
    epoch, takes = ("an epoch of ", "takes") if examples else ("", "take")
    some = f"{epoch}{counted(number, 'example')}"
    print_line(f"{some} {takes} {duration(number / result.examples_per_second)} (h:mm:ss)")
    if compiled := result.compiled_examples_per_second:
        print_line(
            f"with compiled steps: at least {compiled:,.1f} examples/s, calculated; `bertaccum"
            " train` measures on the GPU whether compiling saves time"
        )


def print_cards(cards: Iterable[Card], as_json: bool) -> None:
    """Print the known GPUs as a table, or a JSON record for each of them."""
    if as_json:
        for card in cards:
            result_json(dataclasses.asdict(card) | {"precision": card.precision}, indent=None)
        return
    head = ("name", "GPU", "memory", "capability", "float32", "half", "precision")
    rows = [
        [
            *(card.name, card.title, format_size(card.memory_bytes)),
            ".".join(map(str, card.capability)),
            *(f"{rate:.3g} TFLOP/s" for rate in (card.float32, card.half)),
            card.precision,
            *(f"{rate:,.4g} GB/s" for rate in (card.bandwidth, card.bus)),
        ]
        for card in cards
    ]
    show((*head, "bandwidth", "bus"), rows, least=("GPU", "precision", "bus"))


_STATIC = {
    "parameters": "parameters",
    "slots": "optimizer slots",
    "accumulators": "gradient accumulators",
}


def plan_heading(costs: MeasuredCosts) -> list[str]:
    """Return the lines above the table: model, device, static memory and memory per example."""
    static = {name: format_size(size) for name, size in costs.static_bytes.items() if size}
    if "embeddings" in static:
        static["parameters"] += f" (embeddings {static['embeddings']})"
    parts = ", ".join(
        f"{label} {static[name]}" for name, label in _STATIC.items() if name in static
    )
    on_host = f"; in host memory: {format_size(costs.host_bytes)}" if costs.host_bytes else ""
    windows = f"{costs.largest_windows} windows of " if costs.largest_windows > 1 else ""
    examples = [
        f"{format_size(size)} per example of {windows}{costs.longest} tokens"
        + (" with recomputation" if kind == "layer" else "")
        for kind, size in costs.example_bytes.items()
    ]
    return [
        f"{costs.model}: {costs.parameters:,} parameters, {costs.precision}",
        f"{costs.device}, {format_size(costs.memory_bytes)},"
        f" of which {format_size(costs.margin_bytes)} is left free",
        f"always in use: {parts}{on_host}",
        "micro-batches: " + ", ".join(examples),
    ]
