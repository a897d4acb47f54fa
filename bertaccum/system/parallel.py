"""A function of many items, called in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from bertaccum.system.machine import usable_cores

Item = TypeVar("Item")
Result = TypeVar("Result")


def parallel(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield the result of `function` for each item in order; use all cores.

    Items are taken only when a core needs one, so that few of them are in memory.
    """
    workers, waiting = usable_cores(), deque[Future[Result]]()
    with ThreadPoolExecutor(workers) as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
