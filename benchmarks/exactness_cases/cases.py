"""The cases to train: optimizers, models, examples and micro-batches. Imports only NumPy."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

STOP_AFTER = 6  # Micro-steps: in the middle of the second window.
FEATURES, WORDS, TOKENS = 6, 10, 5
POSITIONS = (1, 2, 3, 4)

# With these learning rates, eight updates of each optimizer change the weights by a few percent.
LEARNING_RATES = {
    "Adadelta": 1.0,
    "Adafactor": 0.01,
    "Adagrad": 0.05,
    "Adam": 0.01,
    "AdamW": 0.01,
    "Adamax": 0.01,
    "Ftrl": 0.05,
    "Lion": 0.01,
    "Nadam": 0.01,
    "RMSprop": 0.01,
    "SGD": 0.05,
}
# Optimizers that only Keras 3 has.
KERAS_3_LEARNING_RATES = {"Lamb": 0.01, "Muon": 0.01}

# Each option is strong enough to show in the weights, except clipping with Lion, which uses only
# the signs of gradients.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "LR schedule": {"schedule": True},
    "weight decay": {"options": {"weight_decay": 0.1}},
    "global clip": {"options": {"global_clipnorm": 0.1}},
    "per-variable clip": {"options": {"clipnorm": 0.1}},
    "EMA": {"options": {"use_ema": True, "ema_momentum": 0.9}},
}


class NotSupportedError(Exception):
    """Raised if a framework lacks an optimizer or does not accept an option.

    The message is the entry of the table; the cause, if any, is the framework's exception.
    """


@dataclass(frozen=True)
class Case:
    """One training of at least eight updates.

    Attributes:
      row: Row of the summary table.
      detail: Distinguishes the cases of a row; empty if the optimizer does.
      optimizer: Name of the optimizer in Keras.
      options: Options of the optimizer.
      schedule: Whether the learning rate decays over updates.
      examples: Number of examples of an epoch, which are never shuffled.
      micro: Sizes of a window's micro-batches. The last window of an epoch may be shorter.
      epochs: Number of epochs.
      model: `dense`, `embedding`, `regularized` or, with a target for each token that is not
        masked, `tags`.
      sample_weights: Whether examples are weighted.
      overflow: Number, counted from 1, of the micro-batch in the second window that has an
        infinite target; 0 for none.
      loss_scale: Whether a `LossScaleOptimizer` wraps the optimizer.
      mixed: Whether the policy is `mixed_float16`.
      accumulator_dtype: Type of the accumulators, or None for the default.
      placement: `local`, or the number of replicas or workers, such as `2 replicas`.
      stop: How training is stopped and resumed in mid-window: `checkpoint` or `save`; empty if it
        is not stopped.
    """

    row: str
    detail: str = ""
    optimizer: str = "Adam"
    options: dict[str, Any] = field(default_factory=dict)
    schedule: bool = False
    examples: int = 64
    micro: tuple[int, ...] = (4, 4, 4, 4)
    epochs: int = 2
    model: str = "dense"
    sample_weights: bool = False
    overflow: int = 0
    loss_scale: bool = False
    mixed: bool = False
    accumulator_dtype: str | None = None
    placement: str = "local"
    stop: str = ""

    @property
    def key(self) -> str:
        return f"{self.row} / {self.detail or self.optimizer}"

    @property
    def window(self) -> int:
        return sum(self.micro)

    @property
    def sizes_vary(self) -> bool:
        """Return whether micro-batches differ in size, or the last window is shorter."""
        unequal = len(set(self.micro)) > 1 or self.model == "tags"
        return unequal or self.examples % self.window > 0

    def bound(self, dtype: str) -> float | None:
        """Return the largest relative difference allowed, or None if there is no bound."""
        if self.accumulator_dtype:
            return None
        return 1e-12 if dtype == "float64" else 1e-6

    def allows(self, dtype: str) -> bool:
        """Return whether the case applies to models of this type.

        Mixed precision and narrow accumulators apply to float32 only.
        """
        return dtype == "float32" or not (self.mixed or self.accumulator_dtype)


def all_cases(keras_3: bool = False) -> list[Case]:
    """Return the cases of all frameworks, or those of Keras 3, which has more optimizers."""
    optimizers = [*LEARNING_RATES, *(KERAS_3_LEARNING_RATES if keras_3 else ())]
    grid = [
        Case(row, optimizer=optimizer, **options)
        for row, options in VARIANTS.items()
        for optimizer in optimizers
    ]
    return grid + special_cases()


def special_cases() -> list[Case]:
    # Windows with an overflow are dropped, so these cases train for one more epoch.
    scaled = [
        Case("loss scale, overflow", f"position {p}", overflow=p, loss_scale=True, epochs=3)
        for p in POSITIONS
    ]
    mixed = [
        Case("mixed_float16, overflow", f"position {p}", overflow=p, mixed=True, epochs=3)
        for p in POSITIONS
    ]
    narrow = [Case(f"{t} accumulators", accumulator_dtype=t) for t in ("bfloat16", "float16")]
    placed = [Case(p, placement=p) for p in ("2 replicas", "4 replicas", "2 workers")]
    return [
        Case("ragged micro-batches (6, 6, 4)", micro=(6, 6, 4)),
        Case("partial window (2 of 4)", examples=56),
        Case("60 of 64 examples", examples=60, micro=(8, 8, 8, 8), epochs=4),
        # In Keras 3, sparse Adam squares the gradients of a repeated token before it sums them, so
        # even its large batch is wrong. SGD squares nothing.
        Case("embedding gradients, Adam", model="embedding"),
        Case("embedding gradients, SGD", model="embedding", optimizer="SGD"),
        Case("masked tokens, SGD", model="tags", optimizer="SGD"),
        Case("regularizers", model="regularized"),
        Case("sample weights", sample_weights=True),
        *scaled,
        # The mean gradient of a micro-batch may overflow although that of its window does not.
        Case("mixed_float16, no overflow", mixed=True, epochs=3),
        *mixed,
        *narrow,
        *placed,
        Case("resume mid-window", stop="checkpoint"),
        Case("save and reload", stop="save"),
    ]


def windows(case: Case) -> list[list[slice]]:
    """Return the rows of each micro-batch, for each window of an epoch."""
    cuts = []
    for begin in range(0, case.examples, case.window):
        ends = np.minimum(begin + np.cumsum((0, *case.micro)), case.examples).tolist()
        cuts.append([slice(a, b) for a, b in itertools.pairwise(ends) if a < b])
    return cuts


def data(case: Case, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return features or token ids, targets, and sample weights or None."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(64, FEATURES))
    targets = np.sin(features @ rng.normal(size=(FEATURES, 1))) + rng.normal(size=(64, 1)) / 4
    weights = rng.uniform(0.1, 2, 64)
    # The vocabulary is small, so that a micro-batch repeats some words and lacks others.
    tokens = rng.integers(0, WORDS, (64, TOKENS)).astype(np.int32)
    if case.overflow:
        targets[case.window + sum(case.micro[: case.overflow - 1]) + 1] = np.inf
    if case.model == "tags":
        # Texts of the first half have one to three tokens, the others up to five.
        lengths = rng.integers(1, np.where(np.arange(64) % 16 < 8, 3, TOKENS), endpoint=True)
        tokens = np.where(np.arange(TOKENS) < lengths[:, None], 1 + tokens % (WORDS - 1), 0)
        tokens = tokens.astype(np.int32)
        targets = targets[:, None] + np.sin(tokens)[:, :, None]
    inputs = tokens if case.model in ("embedding", "tags") else features.astype(dtype)
    rows = slice(case.examples)
    return (
        inputs[rows],
        targets[rows].astype(dtype),
        weights[rows].astype(dtype) if case.sample_weights else None,
    )


def start_weights(shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Return start weights, none near zero, so that relative differences are meaningful."""
    rng = np.random.default_rng(1)
    return [rng.choice([-1, 1], shape) * rng.uniform(0.2, 0.6, shape) for shape in shapes]
