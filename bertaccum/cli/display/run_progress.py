"""How a run is going, from its events: what a person looks at while it runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from bertaccum.cli.display import sentences
from bertaccum.sizes import known_size
from bertaccum.training.events import Evaluated, Event, OutOfMemory, Started, Updated

# So much of what is smoothed is what it was before.
_KEPT = 0.95


class Mean:
    """An exponential mean that begins with the first value, not with zero.

    Source: the bias correction of Kingma and Ba 2015, "Adam".
    """

    def __init__(self) -> None:
        self._sum, self._weight = 0.0, 0.0

    def add(self, value: float) -> None:
        """Takes a value in; what is no number is passed over."""
        if math.isfinite(value):
            self._sum = _KEPT * self._sum + (1 - _KEPT) * value
            self._weight = _KEPT * self._weight + (1 - _KEPT)

    @property
    def value(self) -> float:
        """NaN before the first value."""
        return self._sum / self._weight if self._weight else math.nan


class Track:
    """A run's figures, as of its last event.

    Attributes:
      loss: smoothed.
      speed: examples a second, smoothed, evaluations left out.
    """

    def __init__(self, started: Started) -> None:
        self.total, self.begun, self.over = started.updates, started.done, bool(started.over)
        self.best_by = started.best_by
        self.first: Updated | None = None
        self.last: Updated | None = None
        self.evaluated: Evaluated | None = None
        self.out_of_memory = self.skipped = 0
        self.loss, self.speed = Mean(), Mean()
        self._since = math.nan

    def see(self, event: Event) -> None:
        """Takes in what the run says."""
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
        """Updates."""
        return self.last.update if self.last else self.begun

    @property
    def seconds_left(self) -> float | None:
        """By what has been done since the first update, which is traced; None before the second."""
        if self.first is None or self.done == self.first.update:
            return None
        done = self.done - self.first.update
        return (time.monotonic() - self._since) / done * (self.total - self.done)


def follow(track: Track | None, event: Event, note: Callable[[str], None]) -> Track | None:
    """Takes an event in, and says what of it is said at once; a run's first one begins a track.

    There is none where the chief speaks for all, and workers only of what is their own.
    """
    if isinstance(event, Started):
        track = Track(event)
    first = track is None or track.evaluated is None
    if track is not None:
        track.see(event)
    if isinstance(event, Started):
        note(sentences.started(event))
    elif isinstance(event, OutOfMemory):
        note(sentences.out_of_memory(event))
    elif isinstance(event, Evaluated):
        note(sentences.evaluated(event, track.best_by if track else "accuracy", first))
    elif isinstance(event, Updated) and event.skipped:
        note(sentences.skipped(event))
    return track


def progressing(track: Track) -> str:
    """A line in a log: where a run is."""
    last = track.last
    assert last is not None
    parts = [
        f"training: {last.update:,} of {track.total:,}",
        f"loss {last.loss:.4f} ({track.loss.value:.4f} smoothed)",
        f"lr {last.learning_rate:.2g}",
        f"{track.speed.value:.1f} examples/s",
        known_size(last.peak_memory_bytes),
        f"{track.skipped} skipped" if track.skipped else "",
        f"{sentences.duration(track.seconds_left)} left",
    ]
    return "  ".join(filter(None, parts))
