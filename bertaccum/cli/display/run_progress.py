"""The progress of a run, computed from its events and displayed while it runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from bertaccum.cli.display import sentences
from bertaccum.system.sizes import known_size
from bertaccum.training.events import Evaluated, Event, OutOfMemory, Started, Updated

# Decay of the exponential moving averages.
_KEPT = 0.95


class Mean:
    """An exponential moving average whose first values are not biased towards zero.

    Source: the bias correction of Kingma and Ba 2015, "Adam".
    """

    def __init__(self) -> None:
        self._sum, self._weight = 0.0, 0.0

    def add(self, value: float) -> None:
        """Add a value; NaN and infinity are ignored."""
        if math.isfinite(value):
            self._sum = _KEPT * self._sum + (1 - _KEPT) * value
            self._weight = _KEPT * self._weight + (1 - _KEPT)

    @property
    def value(self) -> float:
        """The current average; NaN before the first value."""
        return self._sum / self._weight if self._weight else math.nan


class RunStatistics:
    """The current statistics of a run; `speed` (examples per second) excludes evaluations."""

    def __init__(self, started: Started) -> None:
        self.total, self.begun, self.over = started.updates, started.done, bool(started.over)
        self.best_by = started.best_by
        self.first: Updated | None = None
        self.last: Updated | None = None
        self.evaluated: Evaluated | None = None
        self.out_of_memory = self.skipped = 0
        self.loss, self.speed = Mean(), Mean()
        self._since = math.nan

    def update(self, event: Event) -> None:
        """Update the numbers with an event of the run."""
        if isinstance(event, Updated):
            if self.first is None:
                self.first, self._since = event, time.monotonic()
            self.last = event
            self.loss.add(event.loss)
            self.speed.add(event.examples_per_second)
            self.skipped += event.skipped
        elif isinstance(event, Evaluated):
            self.evaluated = event
        elif isinstance(event, OutOfMemory):
            self.out_of_memory += 1

    @property
    def done(self) -> int:
        """The number of finished updates."""
        return self.last.update if self.last else self.begun

    @property
    def seconds_left(self) -> float | None:
        """The estimated remaining time in seconds; None before the second update.

        The estimate excludes the first update, which includes tracing.
        """
        if self.first is None or self.done == self.first.update:
            return None
        done = self.done - self.first.update
        return (time.monotonic() - self._since) / done * (self.total - self.done)


def follow(
    statistics: RunStatistics | None, event: Event, note: Callable[[str], None]
) -> RunStatistics | None:
    """Return the updated statistics, and report an event that the user must see immediately.

    A `Started` event begins new statistics. The view of a worker other than the chief receives no
    `Started` event, so its statistics stay None.
    """
    if isinstance(event, Started):
        statistics = RunStatistics(event)
    first = statistics is None or statistics.evaluated is None
    if statistics is not None:
        statistics.update(event)
    if isinstance(event, Started):
        for line in sentences.started(event).splitlines():
            note(line)
    elif isinstance(event, OutOfMemory):
        note(sentences.out_of_memory(event))
    elif isinstance(event, Evaluated):
        note(sentences.evaluated(event, statistics.best_by if statistics else "accuracy", first))
    elif isinstance(event, Updated) and event.skipped:
        note(f"update {event.update}: skipped, because the gradient was not finite")
    return statistics


def progress_line(statistics: RunStatistics) -> str:
    """Return a line that describes the progress of a run."""
    last, left = statistics.last, statistics.seconds_left
    assert last is not None
    parts = [
        f"training: {last.update:,} of {statistics.total:,}",
        f"loss {last.loss:.4f} ({statistics.loss.value:.4f} smoothed)",
        f"lr {last.learning_rate:.2g}",
        f"{statistics.speed.value:,.1f} examples/s",
        known_size(last.peak_memory_bytes),
        f"{statistics.skipped} skipped" if statistics.skipped else "",
        f"{sentences.duration(left)} left" if left is not None else "",
    ]
    return "  ".join(filter(None, parts))
