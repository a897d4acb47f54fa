"""A fixture of the tests on TensorFlow; those on other backends run without it."""

from __future__ import annotations

from typing import Any

import keras
import pytest


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models compile their steps with XLA only if a test says so.

    Keras does so by default, which takes longer than the few steps of a test.
    """
    # Loading a model compares its method with that of this class.
    trainer = next(one for one in keras.Model.__mro__ if "compile" in vars(one))
    real = trainer.compile

    def compile(model: keras.Model, *arguments: Any, **options: Any) -> None:
        real(model, *arguments, **{"jit_compile": False} | options)

    monkeypatch.setattr(trainer, "compile", compile)
