"""Files are read with limits, so that none takes more memory or time than a real one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bertaccum.errors import InputError
from bertaccum.system.files import json_digest, read_json, read_mapping, read_text, sha256


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "-Infinity"])
def test_number_that_is_not_finite_is_not_json(tmp_path: Path, number: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(f'{{"a": [{{"b": {number}}}]}}')
    with pytest.raises(InputError, match=f"a.json: is not valid JSON .{number} is not a finite"):
        read_json(path)
    path.write_text('{"a": [1.5, -2e3, 4]}')
    assert read_json(path) == {"a": [1.5, -2000.0, 4]}


def test_text_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"")
    os.truncate(path, 2**40)
    for read in (read_text, read_json):
        with pytest.raises(InputError, match=r"vocab.txt: has more than 32,768 KiB, so it is not"):
            read(path)
    assert read_mapping(path) is None
    with pytest.raises(InputError, match=r"/dev/zero: has more than 32,768 KiB"):
        read_text(Path("/dev/zero"))
    path.write_text("[PAD]")
    assert read_text(path, 5) == "[PAD]"
    with pytest.raises(InputError, match="has more than"):
        read_text(path, 4)


def test_digest_of_a_json_value_ignores_the_order_of_keys() -> None:
    assert json_digest({"a": 1, "b": {"c": 2, "d": 3}}) == json_digest(
        {"b": {"d": 3, "c": 2}, "a": 1}
    )
    assert json_digest({"a": 1}) != json_digest({"a": 2})


def test_pipe_or_device_has_no_digest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_mapping(tmp_path / "pipe") is None
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(InputError, match="is a pipe or device, but must be a file; save it"):
            sha256(path)
