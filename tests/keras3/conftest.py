"""Fixtures of the tests of accumulation with Keras 3 on TensorFlow, not on other backends."""

from __future__ import annotations

from typing import Any

import keras
import pytest


@pytest.fixture(autouse=True)
def built_optimizers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Build the optimizer of each model of known inputs before its training step is traced.

    TensorFlow traces a function twice if its first trace creates variables, and tracing takes most
    of the time of these tests. Models of unknown inputs, and all models of test_tensorflow.py,
    still build theirs while traced.
    """
    if request.module.__name__ == "test_tensorflow":
        return
    real = keras.Model.make_train_function

    def make_train_function(model: keras.Model, force: bool = False) -> Any:
        if model.built and not model.run_eagerly and model.optimizer is not None:
            model.optimizer.build(model.trainable_variables)
        return real(model, force)

    monkeypatch.setattr(keras.Model, "make_train_function", make_train_function)
