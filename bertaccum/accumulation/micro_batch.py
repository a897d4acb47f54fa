"""The size of the present micro-batch, told by a model to whatever optimizer its step uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# Each replica is traced in a thread of its own, which a context variable tells apart.
_SIZE: ContextVar[Any] = ContextVar("micro_batch_size", default=None)


@contextmanager
def micro_batch(size: Any) -> Iterator[None]:
    """Inside, gradients are of a mean over `size` examples, this replica's."""
    token = _SIZE.set(size)
    try:
        yield
    finally:
        _SIZE.reset(token)


def resize(size: Any) -> None:
    """Corrects the size, if there is a micro-batch."""
    if _SIZE.get() is not None:
        _SIZE.set(size)


def size() -> Any:
    """What the innermost `micro_batch` said; None outside."""
    return _SIZE.get()
