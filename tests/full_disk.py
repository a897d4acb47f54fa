"""A simulated full disk, which needs no root."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk(room: int = 0) -> Iterator[None]:
    """Make writes of this process fail beyond the first `room` bytes of each file.

    The error is "File too large" instead of "No space left on device".
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python would keep an incomplete file of a module that is imported now.
    compiling, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = compiling
