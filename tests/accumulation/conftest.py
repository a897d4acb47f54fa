"""Fixtures of the tests of accumulation."""

from __future__ import annotations

from typing import Any

import pytest
import tf_keras


@pytest.fixture
def built_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build the optimizer of each model of known inputs before its training step is traced.

    TensorFlow traces a function twice if its first trace creates variables, and tracing takes most
    of the time of these tests. Models of unknown inputs still build theirs while traced.
    """
    real = tf_keras.Model.make_train_function

    def make_train_function(model: tf_keras.Model, force: bool = False) -> Any:
        if model.built and hasattr(model.optimizer, "build"):
            model.optimizer.build(model.trainable_variables)
        return real(model, force)

    monkeypatch.setattr(tf_keras.Model, "make_train_function", make_train_function)
