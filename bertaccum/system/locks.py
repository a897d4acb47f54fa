"""Locks on files, which some network file systems lack."""

from __future__ import annotations

import errno
import fcntl
from typing import IO, Any

# For example, on Lustre without the mount option `flock`, and on NFS without its lock service.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def lock(file: IO[Any], wait: bool = True) -> bool:
    """Lock a file until it is closed; return False if its file system has no locks.

    Args:
      file: The file, open for writing: network file systems lock no others.
      wait: Whether to wait until no other process holds the lock.

    Raises:
      BlockingIOError: Another process holds the lock, and `wait` is False.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True
