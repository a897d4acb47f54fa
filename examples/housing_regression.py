"""Predict house prices: four accumulated micro-batches of 8 give the weights of one batch of 32.

    python examples/housing_regression.py --data housingdata.csv

The program trains a small Keras model four times, from the same weights and with the same order
of examples: in batches of 32; in four accumulated micro-batches of 8; in batches of 8; and in
4 x 8 with the `train_op` of a tf.estimator program. This `train_op` makes its first update after
a single micro-batch, but divides the gradient by 4. The 405 rows form 12 windows of 32 and one of
21 = 8 + 8 + 5, which is also exact. Output (40 epochs, 20 s on two cores, float32):

                                    held-out         weight difference
                           updates      RMSE      update 1     largest
    one batch of 32            520     3.131         0e+00       0e+00
    4 x 8 accumulated          520     3.131         3e-08       2e-07
    batches of 8              2040     3.280         6e-03       3e-01
    4 x 8, old train_op        510     3.178         6e-03       4e-01
    4 x 8 accumulated matches one batch of 32: equal to 1e-06 after every update

The figure shows, after every update, the RMSE and the weight difference from one batch of 32. For
SEED 0 to 4, the final RMSE of the old train_op is 0.02 to 0.10 above that of one batch of 32, and
the weights of 4 x 8 accumulated differ by at most 3e-07. This difference is rounding. It grows to
7e-07 after 150 epochs; in float64, it is 3e-16 after 40 epochs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import click
import numpy as np
import pandas as pd
import tensorflow as tf
import tf_keras
from inputs import SHARED, BadInput, check_figure
from matplotlib.figure import Figure

from bertaccum.accumulation import accumulate_gradients

DATA = SHARED / "data/housing/housingdata.csv"
SOURCE = "https://github.com/GoogleCloudPlatform/tf-estimator-tutorials, 01_Regression/data"
COLUMNS = 14  # The last column is the target, the median price in $1000.
SEED, STEPS, MICRO_BATCH, LIMIT = 0, 4, 8, 1e-6
ONE, ACCUMULATED = f"one batch of {STEPS * MICRO_BATCH}", f"{STEPS} x {MICRO_BATCH} accumulated"
SMALL, OLD = f"batches of {MICRO_BATCH}", f"{STEPS} x {MICRO_BATCH}, old train_op"
Rows = tuple[np.ndarray, np.ndarray]  # Features [rows, 13] and targets [rows, 1].


def read(path: Path) -> np.ndarray:
    """Return the table, [rows, 14] float32.

    Raises:
      BadInput: If the file cannot be read or is not such a table of numbers.
    """
    hint = f"pass housingdata.csv from {SOURCE} with --data"
    try:
        texts = pd.read_csv(path, header=None, dtype=str, skip_blank_lines=False)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).strip()
        raise BadInput(f"cannot read {path}: {reason}; {hint}") from None
    if texts.shape[1] != COLUMNS or len(texts) < 5:
        raise BadInput(
            f"{path} has {texts.shape[0]} rows of {texts.shape[1]} columns, expected at least 5"
            f" rows of 14 columns; {hint}"
        )
    with np.errstate(over="ignore"):  # Overflow gives inf, which the loop rejects.
        table = texts.apply(pd.to_numeric, errors="coerce").to_numpy(np.float32)
    for row, column in np.argwhere(~np.isfinite(table)):
        where = f"{path}, row {row + 1}, column {column + 1}"
        raise BadInput(f"{where}: {texts.iat[row, column]!r} is not a number; correct or remove it")
    return table


def split(table: np.ndarray) -> tuple[Rows, Rows]:
    """Return shuffled training rows, in the order of every epoch, and a held-out fifth."""
    table = np.random.default_rng(SEED).permutation(table)
    training, held_out = np.split(table, [len(table) - len(table) // 5])
    return (training[:, :-1], training[:, -1:]), (held_out[:, :-1], held_out[:, -1:])


def build(training: Rows, steps: int = 1) -> tf_keras.Model:
    """Return a compiled model with seeded initial weights, which accumulates if `steps` > 1."""
    tf_keras.utils.set_random_seed(SEED)
    normalized = tf_keras.layers.Normalization()
    normalized.adapt(training[0])
    in_thousands = tf_keras.layers.Normalization(invert=True)
    in_thousands.adapt(training[1])
    inputs = tf_keras.Input((COLUMNS - 1,))
    hidden = tf_keras.layers.Dense(16, "relu")(normalized(inputs))
    hidden = tf_keras.layers.Dense(8, "relu")(hidden)
    model = tf_keras.Model(inputs, in_thousands(tf_keras.layers.Dense(1)(hidden)))
    if steps > 1:
        model = accumulate_gradients(model, steps)
    model.compile(tf_keras.optimizers.Adam(0.003), "mse")
    return model


class Curve(tf_keras.callbacks.Callback):
    """A callback that records the held-out RMSE and all weights after every update."""

    def __init__(self, held_out: Rows) -> None:
        super().__init__()
        self.held_out = held_out
        self.rmse: list[float] = []
        self.weights: list[np.ndarray] = []

    def look(self, *_: Any) -> None:
        if self.model.optimizer.iterations.numpy() > len(self.rmse):
            rmse, weights = self.state()
            self.rmse.append(rmse.numpy())
            self.weights.append(weights.numpy())

    # An update may follow any micro-batch, or end the epoch if the last window is partial.
    on_train_batch_end = on_epoch_end = look

    @tf.function
    def state(self) -> tuple[tf.Tensor, tf.Tensor]:
        rmse = tf.sqrt(tf.reduce_mean((self.model(self.held_out[0]) - self.held_out[1]) ** 2))
        return rmse, tf.concat([tf.reshape(v, [-1]) for v in self.model.trainable_variables], 0)


def fit(training: Rows, epochs: int, curve: Curve, size: int, steps: int = 1) -> None:
    """Train with Keras in micro-batches of `size` examples; `steps` of them form an update."""
    model, options = build(training, steps), {"callbacks": [curve], "verbose": 0}
    model.fit(*training, batch_size=size, epochs=epochs, shuffle=False, **options)


def old_train_op(training: Rows, epochs: int, curve: Curve) -> None:
    """Train as the `train_op` of the tf.estimator program did, in a plain loop."""
    model = build(training)
    curve.set_model(model)
    variables = model.trainable_variables
    sums = zeros = [tf.zeros_like(v) for v in variables]

    @tf.function
    def gradients(features: tf.Tensor, targets: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            # The mean gives a partial micro-batch the same weight as a full one.
            loss = tf.reduce_mean((model(features, training=True) - targets) ** 2)
        return tape.gradient(loss, variables)

    data = tf.data.Dataset.from_tensor_slices(training).batch(MICRO_BATCH)
    every_epoch = (micro_batch for _ in range(epochs) for micro_batch in data)
    for global_step, (features, targets) in enumerate(every_epoch):
        sums = [s + g for s, g in zip(sums, gradients(features, targets), strict=True)]
        if global_step % STEPS == 0:  # This is also true at step 0, after one micro-batch.
            means = [s / STEPS for s in sums]
            model.optimizer.apply_gradients(zip(means, variables, strict=True))
            sums = zeros
            curve.look()
    # The remaining gradients in `sums` are lost.


RUNS: dict[str, Callable[[Rows, int, Curve], None]] = {
    ONE: partial(fit, size=STEPS * MICRO_BATCH),
    ACCUMULATED: partial(fit, size=MICRO_BATCH, steps=STEPS),
    SMALL: partial(fit, size=MICRO_BATCH),
    OLD: old_train_op,
}


def differences(curve: Curve, other: Curve) -> np.ndarray:
    """Return the largest weight difference after each update that both curves have, [updates]."""
    return np.array([abs(a - b).max() for a, b in zip(curve.weights, other.weights, strict=False)])


def check(accumulated: Curve, one: Curve) -> None:
    """Raise an error unless both runs made the same updates."""
    if len(accumulated.weights) != len(one.weights):
        counts = f"{len(accumulated.weights)} updates instead of {len(one.weights)}"
        raise click.ClickException(f"{ACCUMULATED} does not match {ONE}: {counts}")
    for update, difference in enumerate(differences(accumulated, one), 1):
        if not difference <= LIMIT:
            where = f"a weight differs by {difference:.0e} after update {update}"
            raise click.ClickException(f"{ACCUMULATED} does not match {ONE}: {where}")


def show(curves: dict[str, Curve]) -> None:
    click.echo(f"{'':22}{'held-out':>18}{'weight difference':>26}")
    click.echo(f"{'':22}{'updates':>8}{'RMSE':>10}{'update 1':>14}{'largest':>12}")
    for name, curve in curves.items():
        found = differences(curve, curves[ONE])
        numbers = f"{len(curve.rmse):8}{curve.rmse[-1]:10.3f}{found[0]:14.0e}{found.max():12.0e}"
        click.echo(f"{name:22}{numbers}")


def draw(curves: dict[str, Curve]) -> Figure:
    figure = Figure(figsize=(8, 8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for (name, curve), style in zip(curves.items(), ("-", "--", ":", "-"), strict=True):
        every = STEPS if name == SMALL else 1  # Small batches make STEPS updates per window.
        rmse = curve.rmse[every - 1 :: every]
        above.plot(range(1, len(rmse) + 1), rmse, style, label=name)
        shown = name in (ACCUMULATED, OLD)  # Empty lines keep the colors of the other runs.
        apart = differences(curve, curves[ONE]) if shown else np.empty(0)
        below.plot(range(1, len(apart) + 1), np.maximum(apart, 1e-9), style)
    above.set(xscale="log", ylabel="held-out RMSE, $1000")
    above.legend()
    below.axhline(LIMIT, color="grey", linewidth=0.8)
    below.set(yscale="log", ylabel=f"largest weight difference to {ONE}")
    below.set(xlabel=f"update ({SMALL}: every {STEPS}th)")
    return figure


@click.command(help=__doc__.splitlines()[0])
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=DATA,
    show_default=True,
    help="CSV file with 14 columns and no header; the last column is the target.",
)
@click.option("--epochs", type=click.IntRange(min=1), default=40, show_default=True)
@click.option(
    "--figure",
    type=click.Path(path_type=Path),
    default="build/examples/housing.png",
    show_default=True,
)
def main(data: Path, epochs: int, figure: Path) -> None:
    training, held_out = split(read(data))
    check_figure(figure)
    tf.get_logger().setLevel("ERROR")  # Hide Keras warnings that the callback is slow.
    curves = {name: Curve(held_out) for name in RUNS}
    for name, run in RUNS.items():
        click.echo(f"training: {name}", err=True)
        run(training, epochs, curves[name])
    draw(curves).savefig(figure)
    show(curves)
    check(curves[ACCUMULATED], curves[ONE])
    click.echo(f"{ACCUMULATED} matches {ONE}: equal to {LIMIT:.0e} after every update")
    click.echo(f"figure: {figure}")


if __name__ == "__main__":
    main()
