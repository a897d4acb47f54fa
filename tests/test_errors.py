"""Errors are told in a line that a person can read."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from bertaccum.errors import reason


def test_tensorflow_s_message_is_told_without_the_names_of_operations(tmp_path: Path) -> None:
    with pytest.raises(tf.errors.NotFoundError) as error:
        tf.io.read_file(str(tmp_path / "absent"))
    assert "{{function_node" in str(error.value) and "[Op:" in str(error.value)
    assert reason(error.value) == f"{tmp_path}/absent; No such file or directory"


def test_an_error_without_a_message_is_told_by_its_name() -> None:
    assert reason(RuntimeError()) == "RuntimeError"
