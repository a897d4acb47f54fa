"""A Keras 3 optimizer whose public attributes are those of an optimizer inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from bertaccum.accumulation.contract import Delegation

_OWN_ATTRIBUTES = ("name", "built", "inner_optimizer", "accumulation_steps")


class DelegatingOptimizer(Delegation, keras.optimizers.Optimizer):
    """A Keras 3 optimizer with the attributes, methods and iterations of an inner one.

    Public attributes that bertaccum's own classes do not define are those of the inner optimizer,
    when they are read and when they are set.

    Args:
      inner: The optimizer that updates the variables, or a `LossScaleOptimizer` around it.
      name: Name of this optimizer.
    """

    built: bool

    def __init__(self, inner: keras.optimizers.Optimizer, name: str) -> None:
        # Like Keras' own wrapper, LossScaleOptimizer, which has no learning rate of its own either.
        super().__init__(learning_rate=0.0, name=name)
        self._settings_changed = False
        # From here on, other public attributes are those of the inner optimizer.
        for setting in [one for one in vars(self) if one not in _OWN_ATTRIBUTES and one[0] != "_"]:
            del self.__dict__[setting]
        self.inner_optimizer = inner

    def _is_own(self, name: str) -> bool:
        """Return whether a public attribute is one of this class, not of the inner optimizer."""
        classes = type(self).__mro__
        own = classes[: classes.index(keras.optimizers.Optimizer)]
        # Keras' constructor sets attributes before there is an inner optimizer.
        return (
            name in _OWN_ATTRIBUTES
            or "inner_optimizer" not in vars(self)
            or name in vars(self)
            or any(name in vars(one) for one in own)
        )

    def _owners(self) -> Sequence[Any]:
        inner = self.inner_optimizer
        scaled = isinstance(inner, keras.optimizers.LossScaleOptimizer)
        return [inner.inner_optimizer, inner] if scaled else [inner]

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or self._is_own(name):
            return super().__getattribute__(name)
        return getattr(self._owner(name), name)

    def _note_change(self) -> None:
        """Remember that functions which were compiled before contain an old setting."""
        self._settings_changed = True
        self.__dict__.pop("_flushed", None)

    def settings_changed(self) -> bool:
        """Return whether a setting has changed since the last call of this method."""
        changed, self._settings_changed = self._settings_changed, False
        return changed

    @property
    def iterations(self) -> Any:
        """Number of updates."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        """Learning rate of the next update."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner_optimizer.learning_rate = learning_rate
        if callable(learning_rate):
            self._note_change()

    def finalize_variable_values(self, var_list: Any) -> None:
        """Overwrite variables with their moving averages, if the inner optimizer has them."""
        self.inner_optimizer.finalize_variable_values(var_list)
