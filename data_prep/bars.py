"""A stand-in for tqdm that reports to a callback, for libraries that draw their own bars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bertaccum.progress import Progress


class ReportingBar:
    """What tensorflow-datasets uses of a tqdm bar.

    Args:
      progress: called at every change.
      doings: what to report, by how the bar's description starts; a bar that
        is not among them reports nothing.
      iterable: what the bar is drawn around, if anything.
      desc: the bar's description.
      total: the expected final count.
    """

    def __init__(
        self,
        progress: Progress,
        doings: Mapping[str, str],
        iterable: Iterable[Any] = (),
        *,
        desc: str = "",
        total: int | None = None,
        **_: Any,  # tqdm's looks
    ) -> None:
        self._progress, self._iterable = progress, iterable
        known = (doing for start, doing in doings.items() if desc.startswith(start))
        self._doing = next(known, None)
        self._done, self._total = 0, total

    def __iter__(self) -> Iterator[Any]:
        for item in self._iterable:
            yield item
            self.update()

    def __enter__(self) -> ReportingBar:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, done: int = 1) -> None:
        """Counts on by `done`."""
        self._done += done
        if self._doing is not None:
            self._progress(self._doing, self._done, self._total or None)

    def update_total(self, more: int = 1) -> None:
        """Expects `more` than before."""
        self._total = (self._total or 0) + more
