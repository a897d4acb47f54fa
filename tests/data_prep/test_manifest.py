"""Manifests are read back; damaged ones and those of other programs are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertaccum.errors import InputError
from bertaccum.system.files import json_text
from data_prep.tables.manifest import is_prepared, read_manifest

OURS = {
    "tool": "bertaccum prepare",
    "source": "s",
    "task": "classification",
    "labels": ["bad", "gut 🙂"],
    "options": {},
    "files": {},
}


def test_manifest_is_read_back(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    (tmp_path / "manifest.json").write_bytes(json_text(OURS).encode())
    assert read_manifest(str(tmp_path)) == OURS


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"tool": "bertacc', "is damaged"),
        (b"\xff", "is damaged"),
        (b"", "is damaged"),
        (b"[1]", "was not written by"),
        (b'{"name": "web app", "icons": []}', "was not written by"),
        (json_text(OURS | {"tool": "other"}).encode(), "was not written by"),
        (b"9" * 5000, "is damaged"),
        (b"[" * 100_000, "is damaged"),
        (json_text(OURS | {"files": {"../notes.txt": ""}}).encode(), "was not written by"),
        (json_text(OURS | {"labels": None}).encode(), "was not written by"),
        (json_text(OURS | {"counts": {"train": {}}}).encode(), "was not written by"),
        (json_text(OURS | {"findings": None}).encode(), "was not written by"),
    ],
)
def test_damaged_or_foreign_manifest_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read_manifest(tmp_path)
    assert caught.value.path == path


def test_files_of_an_interrupted_replacement_are_refused(tmp_path: Path) -> None:
    """They may be a new train.tsv and an old dev.tsv, whose texts may be in the new train.tsv."""
    (tmp_path / "manifest.json.replaced").write_bytes(json_text(OURS).encode())
    for read in (read_manifest, lambda folder: is_prepared(folder / "dev.tsv")):
        with pytest.raises(InputError, match=r"was interrupted while .*; run it again with `over"):
            read(tmp_path)
    assert not is_prepared(tmp_path / "mine.tsv")
    (tmp_path / "manifest.json").write_bytes(json_text(OURS).encode())
    assert read_manifest(tmp_path) == OURS
