"""A cache folder that cannot be written is replaced, and the user is told once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from full_disk import full_disk
from small import Notes

from bertaccum.system import cache
from bertaccum.system.atomic import new_folder
from bertaccum.system.cache import (
    cache_folder,
    cached_folder,
    evict,
    read_cached,
    seal,
    write_cached,
)
from bertaccum.system.progress import silent


@pytest.fixture
def blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Block the cache folder by a file; return the file. No test before told about it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(cache.tempfile, "tempdir", None)
    monkeypatch.setattr(cache, "_told", set())
    monkeypatch.setenv(cache._TEMPORARY, "")
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "file/cache"))
    return tmp_path / "file"


def make(folder: Path, contents: str = "stored") -> None:
    with new_folder(folder) as temporary:
        (temporary / "a").write_text(contents)
        seal(temporary, folder)


def stored(name: str, progress: Notes) -> Path:
    return cached_folder(cache_folder() / "tokens" / name, make, progress)


PLACES = {
    "below a file": "{blocked}/cache",
    "a file": "{blocked}",
    "in no file system": "/proc/.cache/bertaccum",
    "home of nobody": "~nobody-has-this-name/.cache",
}


@pytest.mark.parametrize("place", PLACES)
def test_folder_that_cannot_be_written_is_replaced_and_told_once(
    blocked: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("BERTACCUM_CACHE", PLACES[place].format(blocked=blocked))
    progress = Notes()
    folder = stored("one", progress)
    assert (folder / "a").read_text() == "stored"
    assert folder.is_relative_to(blocked.parent / "temporary")
    assert stored("one", progress) == folder  # Found, not made again.
    path = cache_folder() / "plans/p.json"
    write_cached(path, {"size": 3}, progress)
    assert read_cached(path, progress) == {"size": 3}
    evict(path)
    assert read_cached(path, progress) is None
    (line,) = progress.lines
    assert "so nothing new is cached; set BERTACCUM_CACHE" in line
    assert ("no home folder" in line) == ("nobody" in place)
    assert blocked.read_text() == "mine"


def test_full_disk_replaces_the_cache(
    blocked: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    progress = Notes()
    path = cache_folder() / "plans/p.json"
    with full_disk():
        write_cached(path, {"size": 3}, progress)  # Nothing can be written anywhere.
    assert read_cached(path, progress) is None
    assert "cannot be written (File too large)" in progress.lines[0]
    assert list((tmp_path / "cache/plans").iterdir()) == []


def test_plans_are_not_kept_if_there_is_no_temporary_folder_either(
    blocked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_found() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(cache.tempfile, "gettempdir", none_found)
    progress = Notes()
    for name in ("one", "two"):
        write_cached(cache_folder() / "plans" / name, {"size": 3}, progress)
    assert len(progress.lines) == 1
    with pytest.raises(OSError, match="No usable temporary"):
        stored("one", progress)


def test_what_a_read_only_cache_contains_is_used(
    blocked: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    plan, before = cache_folder() / "plans/p.json", stored("before", Notes())
    write_cached(plan, {"size": 3}, silent)

    def read_only(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    progress = Notes()
    after = cached_folder(
        cache_folder() / "tokens/after",
        lambda path: read_only(path) if tmp_path / "cache" in path.parents else make(path),
        progress,
    )
    assert (after / "a").read_text() == "stored"
    assert (stored("before", progress), read_cached(plan, progress)) == (before, {"size": 3})
    assert len(progress.lines) == 1


def test_error_about_another_file_is_not_one_of_the_cache(blocked: Path, tmp_path: Path) -> None:
    def fail(_: Path) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "mine.tsv"))

    with pytest.raises(OSError, match=r"mine\.tsv"):
        cache._made(tmp_path / "x", fail, silent, True)
    assert not os.environ[cache._TEMPORARY]


def test_removed_file_does_not_replace_the_cache(
    blocked: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another process may have removed it."""
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    progress = Notes()

    def read(path: Path) -> None:
        path.with_suffix(".part").read_bytes()

    with pytest.raises(FileNotFoundError):
        cached_folder(cache_folder() / "tokens/x", read, progress)
    assert progress.lines == [] and not os.environ[cache._TEMPORARY]


SCRIPT = """
import sys
from bertaccum.system.cache import cache_folder, prepare_cache, write_cached
prepare_cache(lambda line, *_: print(line))
write_cached(cache_folder() / "p.json", {}, lambda line, *_: print(line))
print(*open(sys.argv[1]))
"""


def test_temporary_folder_ends_with_the_process(blocked: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, blocked], capture_output=True, text=True, check=True
    )
    assert done.stdout.count("nothing new is cached") == 1 and done.stdout.endswith("mine\n")
    assert list((blocked.parent / "temporary").iterdir()) == []
