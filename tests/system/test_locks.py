"""Locks on files, and file systems without them."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from bertaccum.system.locks import lock


def test_locked_file_is_busy_until_it_is_closed(tmp_path: Path) -> None:
    with (tmp_path / "a").open("ab") as one, (tmp_path / "a").open("ab") as two:
        assert lock(one)
        with pytest.raises(BlockingIOError):
            lock(two, wait=False)
        one.close()
        assert lock(two, wait=False)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP])
def test_missing_locks_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(code, os.strerror(code))))
    with (tmp_path / "a").open("ab") as file:
        assert not lock(file)


def test_other_errors_of_locks_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.EIO, "error")))
    with (tmp_path / "a").open("ab") as file, pytest.raises(OSError, match="error"):
        lock(file)
