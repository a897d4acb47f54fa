"""`reason`: the cause of an error in one readable line."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from bertaccum.errors import reason


def test_reason_omits_operation_names_of_tensorflow(tmp_path: Path) -> None:
    with pytest.raises(tf.errors.NotFoundError) as error:
        tf.io.read_file(str(tmp_path / "absent"))
    assert "{{function_node" in str(error.value) and "[Op:" in str(error.value)
    assert reason(error.value) == f"{tmp_path}/absent; No such file or directory"


def test_reason_of_an_error_without_message_is_its_class() -> None:
    assert reason(RuntimeError()) == "RuntimeError"
