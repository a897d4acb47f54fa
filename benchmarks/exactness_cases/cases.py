"""The grid: what is trained, on which examples, cut how. Knows numpy only, and no framework."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

STOP_AFTER = 6  # micro-steps: in the middle of the second window
FEATURES, WORDS, TOKENS = 6, 10, 5
POSITIONS = (1, 2, 3, 4)

# Learning rates at which eight updates of each optimizer move the weights by some percent.
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

# All strong enough to show in the weights; only Lion, which takes signs, does not feel a clip.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "LR schedule": {"schedule": True},
    "weight decay": {"options": {"weight_decay": 0.1}},
    "global clip": {"options": {"global_clipnorm": 0.1}},
    "per-variable clip": {"options": {"clipnorm": 0.1}},
    "EMA": {"options": {"use_ema": True, "ema_momentum": 0.9}},
}


class NotSupportedError(Exception):
    """An optimizer that is not there, or an argument that it refuses."""


@dataclass(frozen=True)
class Case:
    """One training: eight updates or more.

    Attributes:
      row: of the summary table; `detail` tells its cases apart.
      optimizer: its name in Keras.
      options: of the optimizer.
      schedule: let the learning rate decay over updates.
      examples: of an epoch, in order, never shuffled.
      micro: sizes of a window's micro-batches; the last window of an epoch may be shorter.
      model: `dense`, `embedding` or `regularised`.
      overflow: the micro-batch, from 1, of the second window that has an infinite target.
      loss_scale: `LossScaleOptimizer` around the optimizer, or what `mixed_float16` makes.
      accumulator_dtype: of the accumulators, where that can be chosen.
      placement: replicas and workers.
      stop: how the training is stopped in mid-window, and gone on with.
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
        """Whether some micro-batch weighs less than others, or some window has fewer."""
        return len(set(self.micro)) > 1 or self.examples % self.window > 0

    def bound(self, dtype: str) -> float | None:
        """The largest relative difference allowed."""
        if self.accumulator_dtype:
            return None
        return 1e-12 if dtype == "float64" else 1e-6

    def allows(self, dtype: str) -> bool:
        """float16 computation and narrow accumulators have nothing to show in float64."""
        return dtype == "float32" or not (self.mixed or self.accumulator_dtype)


def all_cases() -> list[Case]:
    grid = [
        Case(row, optimizer=optimizer, **options)
        for row, options in VARIANTS.items()
        for optimizer in LEARNING_RATES
    ]
    return grid + special_cases()


def special_cases() -> list[Case]:
    # Windows with an overflow are dropped: one more epoch makes up for them.
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
        # Keras 3's sparse Adam squares the rows of a repeated token before it adds them up, so
        # that its big batch is not what it should be. Nothing is squared in SGD.
        Case("embedding gradients, Adam", model="embedding"),
        Case("embedding gradients, SGD", model="embedding", optimizer="SGD"),
        Case("regularisers", model="regularised"),
        Case("sample weights", sample_weights=True),
        *scaled,
        # A micro-batch's mean gradient may overflow where that of its window does not.
        Case("mixed_float16, nothing injected", mixed=True, epochs=3),
        *mixed,
        *narrow,
        *placed,
        Case("resume mid-window", stop="checkpoint"),
        Case("save and reload", stop="save"),
    ]


def windows(case: Case) -> list[list[slice]]:
    """The micro-batches of each window of an epoch."""
    cuts = []
    for begin in range(0, case.examples, case.window):
        ends = np.minimum(begin + np.cumsum((0, *case.micro)), case.examples).tolist()
        cuts.append([slice(a, b) for a, b in itertools.pairwise(ends) if a < b])
    return cuts


def data(case: Case, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Features or token ids, targets, and sample weights or None."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(64, FEATURES))
    targets = np.sin(features @ rng.normal(size=(FEATURES, 1))) + rng.normal(size=(64, 1)) / 4
    weights = rng.uniform(0.1, 2, 64)
    # Few words, so that a micro-batch has some of them several times, and misses others.
    tokens = rng.integers(0, WORDS, (64, TOKENS)).astype(np.int32)
    if case.overflow:
        targets[case.window + sum(case.micro[: case.overflow - 1]) + 1] = np.inf
    inputs = tokens if case.model == "embedding" else features.astype(dtype)
    rows = slice(case.examples)
    return (
        inputs[rows],
        targets[rows].astype(dtype),
        weights[rows].astype(dtype) if case.sample_weights else None,
    )


def start_weights(shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """None near zero, biases included: a difference relative to nothing says nothing."""
    rng = np.random.default_rng(1)
    return [rng.choice([-1, 1], shape) * rng.uniform(0.2, 0.6, shape) for shape in shapes]
