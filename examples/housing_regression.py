"""House prices: four micro-batches of 8 train as one batch of 32 does, after every update.

    python examples/housing_regression.py --data housingdata.csv

From the same weights, in the same order of examples, one small Keras model is trained in one
batch of 32; in 4 x 8, accumulated; in batches of 8; and in 4 x 8 by the `train_op` of a
tf.estimator program, whose first update comes after one micro-batch, divided by 4.
405 rows are 12 windows of 32 and one of 21, which is 8 + 8 + 5: that is exact, too. It prints
(40 epochs, 20 s on two cores, float32):

                                    held-out    difference of a weight
                           updates      RMSE      update 1     largest
    one batch of 32            520     3.131         0e+00       0e+00
    4 x 8 accumulated          520     3.131         3e-08       2e-07
    batches of 8              2040     3.280         6e-03       3e-01
    4 x 8, old train_op        510     3.178         6e-03       4e-01
    4 x 8 accumulated is one batch of 32: equal to 1e-06 after every update

The figure has the RMSE, and the difference to one batch, after every update. With SEED 0 to 4 the
old train_op ends 0.02 to 0.10 above one batch; 4 x 8 is never further off than 3e-07. What
is left is rounding, which adds up: 7e-07 after 150 epochs; in float64 it is 3e-16 after 40.
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
COLUMNS = 14  # the last is the target, the median price in $1000
SEED, STEPS, MICRO_BATCH, LIMIT = 0, 4, 8, 1e-6
ONE, ACCUMULATED = f"one batch of {STEPS * MICRO_BATCH}", f"{STEPS} x {MICRO_BATCH} accumulated"
SMALL, OLD = f"batches of {MICRO_BATCH}", f"{STEPS} x {MICRO_BATCH}, old train_op"
Rows = tuple[np.ndarray, np.ndarray]  # features [rows, 13], targets [rows, 1]


def read(path: Path) -> np.ndarray:
    """The table, float32 [rows, 14]."""
    hint = f"name housingdata.csv with --data; it is in {SOURCE}"
    try:
        texts = pd.read_csv(path, header=None, dtype=str, skip_blank_lines=False)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).strip()
        raise BadInput(f"cannot read {path}: {reason}; {hint}") from None
    if texts.shape[1] != COLUMNS or len(texts) < 5:
        raise BadInput(f"{path}: {texts.shape[0]} rows of {texts.shape[1]} columns; {hint}")
    with np.errstate(over="ignore"):  # Too large for float32 is infinite, and so refused.
        table = texts.apply(pd.to_numeric, errors="coerce").to_numpy(np.float32)
    for row, column in np.argwhere(~np.isfinite(table)):
        where = f"{path}, row {row + 1}, column {column + 1}"
        raise BadInput(f"{where}: {texts.iat[row, column]!r} is not a number; correct or remove it")
    return table


def split(table: np.ndarray) -> tuple[Rows, Rows]:
    """Four fifths to train on, in an order for all epochs, and a fifth that is held out."""
    table = np.random.default_rng(SEED).permutation(table)
    training, held_out = np.split(table, [len(table) - len(table) // 5])
    return (training[:, :-1], training[:, -1:]), (held_out[:, :-1], held_out[:, -1:])


def build(training: Rows, steps: int = 1) -> tf_keras.Model:
    """The same model with the same first weights, each time."""
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
    """The held-out RMSE and all weights, after every update."""

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

    # An update may follow any micro-batch; that of a short last window ends the epoch.
    on_train_batch_end = on_epoch_end = look

    @tf.function
    def state(self) -> tuple[tf.Tensor, tf.Tensor]:
        rmse = tf.sqrt(tf.reduce_mean((self.model(self.held_out[0]) - self.held_out[1]) ** 2))
        return rmse, tf.concat([tf.reshape(v, [-1]) for v in self.model.trainable_variables], 0)


def fit(training: Rows, epochs: int, curve: Curve, size: int, steps: int = 1) -> None:
    """All that accumulation takes; `size` is that of a micro-batch."""
    model, options = build(training, steps), {"callbacks": [curve], "verbose": 0}
    model.fit(*training, batch_size=size, epochs=epochs, shuffle=False, **options)


def old_train_op(training: Rows, epochs: int, curve: Curve) -> None:
    """What the `train_op` of the tf.estimator program did, in a plain loop."""
    model = build(training)
    curve.set_model(model)
    variables = model.trainable_variables
    sums = zeros = [tf.zeros_like(v) for v in variables]

    @tf.function
    def gradients(features: tf.Tensor, targets: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            # A mean over the micro-batch: a short one weighs as much as any.
            loss = tf.reduce_mean((model(features, training=True) - targets) ** 2)
        return tape.gradient(loss, variables)

    data = tf.data.Dataset.from_tensor_slices(training).batch(MICRO_BATCH)
    every_epoch = (micro_batch for _ in range(epochs) for micro_batch in data)
    for global_step, (features, targets) in enumerate(every_epoch):
        sums = [s + g for s, g in zip(sums, gradients(features, targets), strict=True)]
        if global_step % STEPS == 0:  # At step 0, too, after a single micro-batch.
            means = [s / STEPS for s in sums]
            model.optimizer.apply_gradients(zip(means, variables, strict=True))
            sums = zeros
            curve.look()
    # What is in `sums` now is lost.


RUNS: dict[str, Callable[[Rows, int, Curve], None]] = {
    ONE: partial(fit, size=STEPS * MICRO_BATCH),
    ACCUMULATED: partial(fit, size=MICRO_BATCH, steps=STEPS),
    SMALL: partial(fit, size=MICRO_BATCH),
    OLD: old_train_op,
}


def differences(curve: Curve, other: Curve) -> np.ndarray:
    """The largest of a weight after each update that both have, [updates]."""
    return np.array([abs(a - b).max() for a, b in zip(curve.weights, other.weights, strict=False)])


def check(accumulated: Curve, one: Curve) -> None:
    """Fails unless both have made the same updates."""
    if len(accumulated.weights) != len(one.weights):
        counts = f"{len(accumulated.weights)} updates instead of {len(one.weights)}"
        raise click.ClickException(f"{ACCUMULATED} is not {ONE}: {counts}")
    for update, difference in enumerate(differences(accumulated, one), 1):
        if not difference <= LIMIT:
            where = f"a weight differs by {difference:.0e} after update {update}"
            raise click.ClickException(f"{ACCUMULATED} is not {ONE}: {where}")


def show(curves: dict[str, Curve]) -> None:
    click.echo(f"{'':22}{'held-out':>18}{'difference of a weight':>26}")
    click.echo(f"{'':22}{'updates':>8}{'RMSE':>10}{'update 1':>14}{'largest':>12}")
    for name, curve in curves.items():
        found = differences(curve, curves[ONE])
        numbers = f"{len(curve.rmse):8}{curve.rmse[-1]:10.3f}{found[0]:14.0e}{found.max():12.0e}"
        click.echo(f"{name:22}{numbers}")


def draw(curves: dict[str, Curve]) -> Figure:
    figure = Figure(figsize=(8, 8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for (name, curve), style in zip(curves.items(), ("-", "--", ":", "-"), strict=True):
        every = STEPS if name == SMALL else 1  # Its updates have a quarter of the examples.
        rmse = curve.rmse[every - 1 :: every]
        above.plot(range(1, len(rmse) + 1), rmse, style, label=name)
        shown = name in (ACCUMULATED, OLD)  # The others keep their colours.
        apart = differences(curve, curves[ONE]) if shown else np.empty(0)
        below.plot(range(1, len(apart) + 1), np.maximum(apart, 1e-9), style)
    above.set(xscale="log", ylabel="held-out RMSE, $1000")
    above.legend()
    below.axhline(LIMIT, color="grey", linewidth=0.8)
    below.set(yscale="log", ylabel=f"largest difference of a weight to {ONE}")
    below.set(xlabel=f"update ({SMALL}: every {STEPS}th)")
    return figure


@click.command(help=__doc__.splitlines()[0])
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=DATA,
    show_default=True,
    help="housingdata.csv: no header, 14 columns, the last the target.",
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
    tf.get_logger().setLevel("ERROR")  # Keras finds callbacks slow that wait for results.
    curves = {name: Curve(held_out) for name in RUNS}
    for name, run in RUNS.items():
        click.echo(f"training: {name}", err=True)
        run(training, epochs, curves[name])
    draw(curves).savefig(figure)
    show(curves)
    check(curves[ACCUMULATED], curves[ONE])
    click.echo(f"{ACCUMULATED} is {ONE}: equal to {LIMIT:.0e} after every update")
    click.echo(f"figure: {figure}")


if __name__ == "__main__":
    main()
