"""What is said of a run, in sentences, and where lines go."""

from __future__ import annotations

import dataclasses
import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from bertaccum.files import json_text
from bertaccum.sizes import format_size

if TYPE_CHECKING:
    from bertaccum.display.track import Track
    from bertaccum.training.events import (
        Evaluated,
        OutOfMemory,
        Started,
        Stopped,
        Updated,
    )
    from bertaccum.training.predicting import Prediction


# With fewer examples, one is more than 3 % of the accuracy.
_FEW = 30
_NAMED_CLASSES = 5
# Said before the first update.
TRACING = "tracing the update, which takes a while, and once"


def from_here(path: Path) -> Path:
    """A path as it is seen from the current folder, if it is in there."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def note(text: str, stream: TextIO | None = None) -> None:
    """Write a line to stderr, or to the stream that stands in for it."""
    # A single write, so that lines of different threads do not mix.
    print(f"{text}\n", end="", file=stream or sys.stderr, flush=True)


def result(text: str) -> None:
    """A line of results on stdout."""
    print(text, flush=True)


def result_json(values: dict[str, Any], indent: int | None = 2) -> None:
    """Results for machines, on stdout."""
    result(json_text(values, indent).rstrip())


def prediction(found: Prediction, as_json: bool) -> None:
    """Prints class, probability and text, on a line; or all of it as a record."""
    if as_json:
        result_json(dataclasses.asdict(found), indent=None)
    else:
        on_a_line = " ".join(found.text.split())
        result(f"{found.label}\t{found.probabilities[found.label]:.4f}\t{on_a_line}")


def small_dev(manifest: dict[str, Any]) -> str | None:
    """That dev.tsv is too small to tell a good model; None if it is not."""
    counts = manifest["counts"]["dev"]
    rows, lacking = counts["rows"], [n for n, count in counts["classes"].items() if not count]
    if rows >= _FEW and not lacking:
        return None
    line = f"note: dev.tsv has {rows:,} row{'s' * (rows != 1)}"
    if lacking:
        left_out = len(lacking) - _NAMED_CLASSES
        more = f" and {left_out:,} more" if left_out > 0 else ""
        line += f" and none of {', '.join(lacking[:_NAMED_CLASSES])}{more}"
    else:
        line += f", each {1 / rows:.0%} of its accuracy"
    return f"{line}; raise --dev-fraction"


def started(event: Started) -> str:
    """What a run is about to do."""
    weights = "pretrained" if event.pretrained else "random weights, not pretrained"
    weights += "" if event.pretrained_pooler else " but for the pooler, which is random"
    resumed = f"going on after update {event.done:,}\n" if event.done else ""
    if event.over:
        resumed = f"finished already, at update {event.done:,}; for more, {event.over}\n"
    return (
        f"{event.model}: {event.parameters:,} parameters, {weights}\n"
        f"{event.train_examples:,} examples to train on, {event.dev_examples:,} for dev\n"
        f"{event.plan}; {event.updates:,} updates\n"
        f"why so: {event.why}\n"
        f"{resumed}run folder: {event.folder}"
    )


def progressing(track: Track) -> str:
    """A line in a log: where a run is."""
    last = track.last
    assert last is not None
    parts = [
        f"training: {last.update:,} of {track.total:,}",
        f"loss {last.loss:.4f} ({track.smoothed_loss:.4f} smoothed)",
        f"lr {last.learning_rate:.2g}",
        f"{track.examples_per_second:.1f} examples/s",
        *([format_size(last.peak_memory_bytes)] if last.peak_memory_bytes else []),
        *([f"{track.skipped} skipped"] if track.skipped else []),
    ]
    return "  ".join([*parts, f"{duration(track.seconds_left)} left"])


def duration(seconds: float | None) -> str:
    """As 0:01:04."""
    return "?" if seconds is None else str(datetime.timedelta(seconds=round(seconds)))


def skipped(event: Updated) -> str:
    """That a window was dropped."""
    return f"update {event.update}: skipped, the gradient was not finite"


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


def stopped(event: Stopped, again: bool = False) -> str:
    """That a run was stopped, and how to go on: `again` by the same command."""
    if again or event.workers > 1:
        how = "the same command, started again, goes on from there"
    else:
        how = f"go on from there with `bertaccum train --resume {event.folder}`"
    return f"stopped by a signal after update {event.update:,}; {how}"


def finished(s: dict[str, Any], folder: str) -> str:
    """A run's results, out of its summary."""
    peak = s["peak_memory_bytes"]
    peak = [f"peak memory         {format_size(peak)}"] if peak else []
    early = ", stopped early: it got no better" if s["stopped_early"] else ""
    return "\n".join(
        [
            f"run folder          {folder}",
            f"updates             {s['updates']:,} ({s['examples']:,} examples){early}",
            f"best dev accuracy   {s['best_dev_accuracy']:.4f} (update {s['best_update']:,})",
            f"final dev accuracy  {s['final_dev_accuracy']:.4f}",
            f"speed               {s['examples_per_second']:.1f} examples/s",
            *peak,
            f"time                {s['total_seconds']:.0f} s",
        ]
    )


def exported(values: dict[str, Any]) -> str:
    """Where a model was written."""
    return f"{values['folder']}: written, {format_size(values['bytes'])}"
