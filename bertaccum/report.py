"""How the command line shows things: progress on stderr, results on stdout.

On a terminal progress is a live bar, elsewhere a line now and then. rich is imported
when something is shown, not when the program starts.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bertaccum.files import json_text
from bertaccum.sizes import format_size

if TYPE_CHECKING:
    from rich.progress import TaskID

    from bertaccum.training.events import (
        Evaluated,
        Finished,
        OutOfMemory,
        Started,
        Stopped,
        Updated,
    )
    from bertaccum.training.planner import Report

# Seconds between lines where there is no terminal.
_LINE_SECONDS = 10.0


def note(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr, flush=True)


def result(text: str) -> None:
    """A line of results on stdout."""
    print(text, flush=True)


def result_json(values: dict[str, Any]) -> None:
    """Results for machines, on stdout."""
    result(json_text(values).rstrip())


class Progress:
    """Shows how far long work is; a context manager, and the callback that the library gets."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        console = Console(stderr=True)
        self._live = console.is_terminal
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[detail]}", markup=False),
            console=console,
            disable=not self._live,
        )
        self._tasks: dict[str, TaskID] = {}
        # When each was first reported, and how much of it was done by then.
        self._first: dict[str, tuple[float, int]] = {}
        self._last_line = 0.0

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Gives the terminal back."""
        self._bars.stop()

    def __call__(self, what: str, done: int, total: int | None, detail: str = "") -> None:
        """Says that `done` of `total` (if that is known) of `what` is through."""
        if self._live:
            if what not in self._tasks:
                self._tasks[what] = self._bars.add_task(what, total=total, detail=detail)
            self._bars.update(self._tasks[what], completed=done, total=total, detail=detail)
            return
        now = time.monotonic()
        self._first.setdefault(what, (now, done))
        if now - self._last_line >= _LINE_SECONDS:
            self._last_line = now
            parts = [f"{what}: {done:,}" + (f" of {total:,}" if total else "")]
            parts += [detail] if detail else []
            parts += self._time_left(what, done, total, now)
            note("  ".join(parts))

    def _time_left(self, what: str, done: int, total: int | None, now: float) -> list[str]:
        start, before = self._first[what]
        if total is None or done == before:
            return []
        return [f"{(now - start) / (done - before) * (total - done):.0f} s left"]

    def note(self, text: str) -> None:
        """A line above the bars."""
        if self._live:
            self._bars.console.print(text, highlight=False, soft_wrap=True, markup=False)
        else:
            note(text)


def started(event: Started) -> str:
    """What a run is about to do."""
    weights = "pretrained" if event.pretrained else "random weights, not pretrained"
    resumed = f"going on after update {event.done:,}\n" if event.done else ""
    return (
        f"{event.model}: {event.parameters:,} parameters, {weights}\n"
        f"{event.train_examples:,} examples to train on, {event.dev_examples:,} for dev\n"
        f"{event.plan}; {event.updates:,} updates\n"
        f"why so: {event.why}\n"
        f"{resumed}run folder: {event.folder}"
    )


def updated(event: Updated) -> str:
    """The figures beside the progress bar."""
    skipped = "  skipped: the gradient was not finite" if event.skipped else ""
    return f"loss {event.loss:.4f}  {event.examples_per_second:.1f} examples/s{skipped}"


def evaluated(event: Evaluated) -> str:
    """One line an evaluation."""
    best = "  (best so far)" if event.best else ""
    return f"update {event.update}: dev accuracy {event.accuracy:.4f}, loss {event.loss:.4f}{best}"


def out_of_memory(event: OutOfMemory) -> str:
    """That a window did not fit, and what is done about it."""
    how = "with recomputation, " if event.out_of_memory == event.micro_batch else ""
    return (
        f"update {event.update}: out of memory with micro-batches of {event.out_of_memory};"
        f" running it again {how}in micro-batches of {event.micro_batch}"
    )


def stopped(event: Stopped) -> str:
    """That a run was stopped, and how to go on."""
    if event.workers > 1:
        how = "the same command, started again, goes on from there"
    else:
        how = f"go on from there with `bertaccum train --resume {event.folder}`"
    return f"stopped by a signal after update {event.update:,}; {how}"


def finished(event: Finished, folder: str) -> str:
    """A run's results."""
    s = event.summary
    peak = s["peak_memory_bytes"]
    peak = [f"peak memory         {format_size(peak)}"] if peak else []
    return "\n".join(
        [
            f"run folder          {folder}",
            f"updates             {s['updates']:,} ({s['examples']:,} examples)",
            f"best dev accuracy   {s['best_dev_accuracy']:.4f} (update {s['best_update']:,})",
            f"final dev accuracy  {s['final_dev_accuracy']:.4f}",
            f"speed               {s['examples_per_second']:.1f} examples/s",
            *peak,
            f"time                {s['total_seconds']:.0f} s",
        ]
    )


def evaluation(values: dict[str, Any]) -> None:
    """Prints the tables of `bertaccum eval`."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout, highlight=False, markup=False)
    console.print(f"{values['examples']:,} examples of {values['data']}", soft_wrap=True)
    for name in ("accuracy", "loss", "matthews_correlation"):
        console.print(f"{name.replace('_', ' '):22}{values[name]:.4f}")
    scores = Table("class", "precision", "recall", "F1", "examples")
    for row in values["classes"]:
        figures = (f"{row[key]:.4f}" for key in ("precision", "recall", "f1"))
        scores.add_row(row["name"], *figures, f"{row['examples']:,}")
    console.print(scores)
    names = [row["name"] for row in values["classes"]]
    confusion = Table("label \\ predicted", *names)
    for name, counts in zip(names, values["confusion_matrix"], strict=True):
        confusion.add_row(name, *(f"{count:,}" for count in counts))
    console.print(confusion)


def compared(values: dict[str, Any]) -> None:
    """Prints what `bertaccum compare` found: a column a run."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout, highlight=False, markup=False)
    names = [row["run"] for row in values["runs"]]
    columns = [compared_run(row, values["equal_mean_examples"]) for row in values["runs"]]
    table = Table("run", *names)
    for fact in columns[0]:
        table.add_row(fact, *(column[fact] for column in columns))
    console.print(table)
    console.print(
        f"final loss: mean over the last {values['smooth']:,} examples; noise: standard deviation"
        " around the running mean over as many",
        soft_wrap=True,
    )
    if values["differences"]:
        table = Table("differs", *names)
        for option, each in values["differences"].items():
            table.add_row(option, *("" if value is None else str(value) for value in each))
        console.print(table)
    for path in values["figures"]:
        console.print(f"{path}: written", soft_wrap=True)


def compared_run(row: dict[str, Any], size: int) -> dict[str, str]:
    """A run's facts as they are shown; nothing for what it has not."""

    def number(name: str, form: str = ".4f") -> str:
        return "" if row[name] is None else format(row[name], form)

    cut = [row[name] for name in ("micro_batch", "accumulation_steps", "replicas")]
    several = (cut[2] or 1) > 1
    return {
        "status": row["status"],
        "model": row["model"],
        "target batch": f"{row['target_batch']:,}",
        "micro-batch x steps": " x ".join(str(part or "?") for part in cut[: 2 + several]),
        "updates": f"{row['updates']:,}",
        "examples seen": f"{row['examples']:,}",
        "final loss": number("final_loss"),
        "noise": number("noise"),
        f"noise of means over {size:,}": number("noise_of_equal_means"),
        "final dev accuracy": number("final_dev_accuracy"),
        "best dev accuracy": number("best_dev_accuracy"),
        "time": f"{row['seconds']:,.0f} s",
        "peak memory": format_size(row["peak_memory_bytes"]) if row["peak_memory_bytes"] else "",
    }


def planned(found: Report, path: str) -> None:
    """Prints what `bertaccum plan` found."""
    from rich.console import Console
    from rich.table import Table

    values = found.values
    console = Console(file=sys.stdout, highlight=False, markup=False)
    for line in plan_heading(values):
        console.print(line, soft_wrap=True)
    table = Table(
        "micro-batch x steps x replicas", "recompute", "predicted", "measured", "examples/s", "fits"
    )
    for row in values["candidates"]:
        taken = all(row[key] == values[key] for key in ("micro_batch", "recompute"))
        table.add_row(
            f"{row['micro_batch']} x {row['accumulation_steps']} x {row['replicas']}"
            f" = {row['target_batch']}" + (" *" if taken else ""),
            row["recompute"],
            format_size(row["predicted_peak_bytes"]),
            format_size(row["measured_peak_bytes"]) if row["measured_peak_bytes"] else "",
            f"{row['examples_per_second']:.1f}" if row["examples_per_second"] else "",
            "yes" if row["fits"] else "no",
        )
    console.print(table)
    kept = ", measured before" if found.cached else f", {values['planning_seconds']:.0f} s"
    if found.plan is not None:
        console.print(f"* {found.plan}: {values['why']}", soft_wrap=True)
        if values["peak_memory_bytes"]:
            console.print(f"peak of its real update: {format_size(values['peak_memory_bytes'])}")
    console.print(f"{path}: written{kept}", soft_wrap=True)


def plan_heading(values: dict[str, Any]) -> list[str]:
    """What the memory is and what is always in it."""
    parts = ", ".join(f"{k} {format_size(v)}" for k, v in values["static_bytes"].items() if v)
    examples = [
        f"{format_size(v)} an example of {values['longest']} tokens"
        + (" with recomputation" if kind == "layer" else "")
        for kind, v in values["example_bytes"].items()
    ]
    return [
        f"{values['model']}: {values['parameters']:,} parameters, {values['precision']}",
        f"{values['device']}, {format_size(values['memory_bytes'])},"
        f" of which {format_size(values['margin_bytes'])} are left free",
        f"always in use: {parts}",
        "micro-batches: " + ", ".join(examples),
    ]


def prepared(folder: str, manifest: dict[str, Any], unchanged: bool) -> None:
    """Prints what `bertaccum prepare` wrote."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout, highlight=False, markup=False)
    done = "is there already, unchanged" if unchanged else "written"
    console.print(f"{folder}: {done}", soft_wrap=True)
    console.print(f"source: {manifest['source']}", soft_wrap=True)
    table = Table("split", "rows", *manifest["labels"])
    for split, counts in manifest["counts"].items():
        per_class = (f"{count:,}" for count in counts["classes"].values())
        table.add_row(split, f"{counts['rows']:,}", *per_class)
    console.print(table)
