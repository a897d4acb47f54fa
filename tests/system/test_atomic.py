"""Atomic writing: after an interruption, the files of a folder are all old or all new."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from full_disk import full_disk
from preparing import contents
from waiting import in_a_minute

from bertaccum.errors import RunError
from bertaccum.system.atomic import new_file, new_files, new_folder, write_bytes
from bertaccum.system.temporary_paths import remove_abandoned, scratch_folder

OLD = {"a": b"old", "b": b"old", "mark": b"old"}
NEW = {"a": b"new", "c": b"new", "mark": b"new"}


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).write_bytes(data)


def publish(folder: Path) -> None:
    with new_files(folder, "mark", ["a", "b"]) as temporary:
        write(temporary, NEW)


def fill(folder: Path, name: str) -> None:
    with new_folder(folder, existing="refuse") as temporary:
        (temporary / name).write_bytes(b"new")


def test_missing_parent_folders_are_created(tmp_path: Path) -> None:
    publish(tmp_path / "x" / "y")
    assert contents(tmp_path / "x" / "y") == NEW
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["y"]


def test_only_named_files_are_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    write(folder, OLD | {"notes": b"mine"})
    publish(folder)
    assert contents(folder) == NEW | {"notes": b"mine"}
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_interrupted_write_keeps_the_old_files(tmp_path: Path, error: type[BaseException]) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    write(folder, OLD)
    with pytest.raises(error), new_files(folder, "mark", ["a", "b"]) as temporary:
        (temporary / "a").write_bytes(b"half")
        raise error
    assert contents(folder) == OLD
    assert list(tmp_path.iterdir()) == [folder]


def test_files_are_on_disk_before_they_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed, appeared, sync = set[int](), list[str](), os.fsync

    def synced(descriptor: int) -> None:
        flushed.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    for name in ("rename", "replace"):
        true = getattr(Path, name)

        def moved(path: Path, target: Path, true: Any = true) -> Any:
            assert all(part.stat().st_ino in flushed for part in [path, *path.rglob("*")])
            appeared.append(target.name)
            return true(path, target)

        monkeypatch.setattr(Path, name, moved)
    write_bytes(tmp_path / "file", b"new")
    with new_folder(tmp_path / "folder") as folder:
        (folder / "part").write_bytes(b"new")
    assert appeared == ["file", "folder"]


@pytest.mark.parametrize("renames", range(4))
def test_marker_exists_only_in_a_complete_set_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    """Interrupt the replacement of the files after each number of renames."""
    folder, replace, left = tmp_path / "out", Path.replace, [renames]
    folder.mkdir()
    write(folder, OLD)

    def stopping(self: Path, target: Path) -> Path:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", stopping)
    with pytest.raises(KeyboardInterrupt):
        publish(folder)
    found = contents(folder)
    assert found == OLD if renames == 0 else "mark" not in found
    assert renames == 0 or found["mark.replaced"] == b"old"
    assert list(tmp_path.iterdir()) == [folder]
    monkeypatch.undo()
    publish(folder)
    assert contents(folder) == NEW


def test_marker_stays_if_no_file_can_be_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    write(folder, {"mark": b"old"})
    for name in "ac":  # A file cannot replace a folder.
        (folder / name).mkdir()
    with pytest.raises(RunError, match="out: cannot be written"):
        publish(folder)
    assert (folder / "mark").read_bytes() == b"old"
    assert sorted(path.name for path in folder.iterdir()) == ["a", "c", "mark"]


@pytest.mark.parametrize("making", [publish, partial(fill, name="a")])
def test_existing_folder_is_written_from_within(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, making: Callable[[Path], None]
) -> None:
    """The folder may be a mount point, and the user may not be allowed to write to its parent."""
    folder, mkdir = tmp_path / "out", Path.mkdir
    folder.mkdir()

    def only_within(path: Path, *arguments: Any, **options: Any) -> None:
        assert path == tmp_path or path.is_relative_to(folder)
        mkdir(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", only_within)
    making(folder)
    assert (folder / "a").read_bytes() == b"new"
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_new_folder_does_not_add_to_files_that_appear_meanwhile(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="Directory not empty"),
        new_folder(tmp_path, existing="refuse") as temporary,
    ):
        write(temporary, NEW)
        write(tmp_path, OLD)
    assert contents(tmp_path) == OLD


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_file_system_may_be_unable_to_flush_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Shared folders of virtual machines answer so; errors of files and others are real."""
    sync = os.fsync

    def limited(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) == folders:
            raise OSError(code, os.strerror(code))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", limited)
    folders = True
    fill(tmp_path / "folder", "a")
    publish(tmp_path / "out")
    assert contents(tmp_path / "out") == NEW
    folders = False
    with pytest.raises(OSError, match=os.strerror(code)):
        fill(tmp_path / "other", "a")
    folders, code = True, errno.EIO
    with pytest.raises(OSError, match=os.strerror(code)):
        fill(tmp_path / "other", "a")


def test_unwritable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RunError, match="cannot be written"):
        publish(tmp_path / "file" / "out")


def test_folder_that_another_process_finishes_first_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rename = tmp_path / "store", Path.rename

    def late(written: Path, target: Path) -> Path:
        folder.mkdir()
        write(folder, OLD)
        return rename(written, target)

    monkeypatch.setattr(Path, "rename", late)
    with new_folder(folder, existing="keep") as temporary:
        write(temporary, NEW)
    assert contents(folder) == OLD and list(tmp_path.iterdir()) == [folder]


KILLED = """
import os, signal, sys
from pathlib import Path
from typing import Any
from bertaccum.system import atomic, temporary_paths
where = temporary_paths if sys.argv[1] == "scratch_folder" else atomic
with getattr(where, sys.argv[1])(Path("out")) as half:
    if sys.argv[1] != "new_file":
        (half / "part").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", [new_file, new_folder, scratch_folder])
def test_next_writer_removes_what_a_killed_process_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    code = [sys.executable, "-c", KILLED, kind.__name__]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(code, env=environment).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".out-")
    others = {".out-0123456789", ".other-0123456789ab", "out-0123456789ab"}
    for name in others:
        (tmp_path / name).write_bytes(b"mine")
    with kind(Path("out")), kind(Path("out")):
        # The first of the two is still being written.
        assert len(list(tmp_path.glob(".out-????????????"))) == 2 and not left.exists()
    done = {"out"} if kind is not scratch_folder else set()
    assert {path.name for path in tmp_path.iterdir()} == others | done


def test_every_abandoned_entry_is_removed_and_none_is_waited_for(tmp_path: Path) -> None:
    """A named pipe would wait for its writer, and a link cannot be locked."""
    (tmp_path / ".out-000000000000").symlink_to("nowhere")
    os.mkfifo(tmp_path / ".out-111111111111")
    (tmp_path / ".out-222222222222").write_bytes(b"half")
    (tmp_path / ".out-333333333333").mkdir()
    os.mkfifo(tmp_path / ".other-111111111111")
    with in_a_minute():
        write_bytes(tmp_path / "out", b"new")
        link, other = ".out-000000000000", ".other-111111111111"
        assert {path.name for path in tmp_path.iterdir()} == {"out", link, other}
        with scratch_folder(tmp_path / "held") as held:
            remove_abandoned(tmp_path)
            assert {path.name for path in tmp_path.iterdir()} == {"out", link, held.name}


def test_error_on_a_full_disk_names_the_final_file(tmp_path: Path) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    with full_disk(), pytest.raises(OSError, match="File too large") as failed:
        write_bytes(file, b"new")
    assert failed.value.filename == str(file)
    too_large = pytest.raises(OSError, match="File too large")
    with full_disk(), too_large as failed, new_folder(folder) as temporary:
        write_bytes(temporary / "part", b"new")
    assert failed.value.filename == str(folder)
    # An error of reading another file keeps the name of that file.
    with pytest.raises(FileNotFoundError) as missing, new_folder(folder):
        (tmp_path / "other").read_bytes()
    assert missing.value.filename == str(tmp_path / "other")
    assert list(tmp_path.iterdir()) == []


def test_folder_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with (
        pytest.raises(RunError, match=r"out: cannot be written \(Directory not empty"),
        new_files(folder, "mark", ["a", "b"]) as temporary,
    ):
        write(temporary, NEW)
        folder.mkdir()
        write(folder, OLD)
    assert contents(folder) == OLD and list(tmp_path.iterdir()) == [folder]


def test_replaced_link_leaves_its_target_and_no_files(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir()
    write(target, OLD)
    link.symlink_to(target)
    for _ in range(2):
        with new_folder(link) as temporary:
            write(temporary, NEW)
    assert contents(link) == NEW and contents(target) == OLD
    assert sorted(tmp_path.iterdir()) == [link, target] and not link.is_symlink()
