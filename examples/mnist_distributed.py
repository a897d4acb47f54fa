"""MNIST, four ways to 200 examples an update, and the same weights after every one.

    run   workers   batch of each   accumulation_steps   examples an update
    1     1         200             1                    200
    2     1         100             2                    200
    3     2         100             1                    200
    4     2          50             2                    200

    python examples/mnist_distributed.py --run all

One model, one optimizer, one order of examples; only where the examples of an update are, and how
many at once, differs. Nothing has to be divided by the number of workers or of micro-steps. On two
cores, one a worker, it printed:

 run workers x batch x steps  updates    loss test accuracy seconds peak MiB of each weights apart
   1             1 x 200 x 1     1500 0.35090        0.9067      46               70
   2             1 x 100 x 2     1500 0.35090        0.9067      47               35       1.1e-07
   3             2 x 100 x 1     1500 0.35090        0.9067     131           38, 38       1.1e-07
   4              2 x 50 x 2     1500 0.35090        0.9067     146           16, 16       1.3e-07

`weights apart` is the largest difference of any weight to run 1, after any update. (On so small a
model, and two cores, two workers mostly wait for each other.)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # Before TensorFlow is imported.

import click
import numpy as np
import pandas as pd
import tensorflow as tf
import tf_keras
from inputs import SHARED, BadInput, check_figure
from matplotlib.figure import Figure
from mnist_data import Data, read_mnist

from bertaccum.accumulation import accumulate_gradients

LIMIT = 1e-5
TEST_BATCH = 500
RAISED = 0.5  # each run's losses above those of the run before, in the figure
Results = dict[int, dict[str, np.ndarray]]  # of each run, by name: what its workers measured


class Run(NamedTuple):
    """How the examples of an update are spread."""

    workers: int
    batch: int  # of one worker in one micro-step
    accumulation_steps: int


RUNS = {1: Run(1, 200, 1), 2: Run(1, 100, 2), 3: Run(2, 100, 1), 4: Run(2, 50, 2)}


# --- Training, in each worker -----------------------------------------------------------


def make_model() -> tf_keras.Model:
    """A small CNN, and a smooth one.

    Where ReLU and max-pooling have their kinks, as many black pixels are, gradients jump, and
    float32's rounding grows to more than LIMIT. In float64 it would not.
    """
    layers = tf_keras.layers
    return tf_keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 3, activation="gelu"),  # [batch, 26, 26, 16]
            layers.AveragePooling2D(),
            layers.Conv2D(32, 3, activation="gelu"),  # [batch, 11, 11, 32]
            layers.AveragePooling2D(),
            layers.Flatten(),  # [batch, 800]
            layers.Dense(10),
        ]
    )


def batches(data: Data, size: int, epochs: int) -> tf.data.Dataset:
    """What all workers together take in one micro-step; the same examples in the same order."""
    images, labels = data
    rng = np.random.default_rng(0)
    order = np.concatenate([rng.permutation(len(labels)) for _ in range(epochs)])

    def in_order() -> Iterator[Data]:
        for chosen in order.reshape(-1, size):
            yield images[chosen], labels[chosen]

    types = tf.TensorSpec([size, 28, 28, 1], tf.uint8), tf.TensorSpec([size], tf.uint8)
    options = tf.data.Options()
    # Each worker takes its part of every batch.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_generator(in_order, output_signature=types).with_options(options)


class Recorder(tf_keras.callbacks.Callback):
    """Keeps the loss of each update's window, and the weights that the update made."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.steps = run.accumulation_steps
        self.losses: list[float] = []
        self.weights: list[np.ndarray] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch % self.steps == 0:
            self.model.reset_metrics()  # Keras' loss is the mean since then.

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (batch + 1) % self.steps == 0:
            self.losses.append(logs["loss"])
            self.weights.append(np.concatenate([w.ravel() for w in self.model.get_weights()]))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        updates = self.model.optimizer.iterations.numpy()
        click.echo(f"epoch {epoch + 1}: {updates:,} updates, loss {self.losses[-1]:.4f}", err=True)


def train(run: Run, folder: Path | None, examples: int, epochs: int, out: Path) -> None:
    """Trains as the only worker, or as the one that TF_CONFIG says; leaves what it measured."""
    worker, strategy = 0, tf.distribute.get_strategy()
    if run.workers > 1:  # Before TensorFlow is asked for anything else.
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        end_by_signals()  # It took SIGTERM for itself.
        worker = strategy.cluster_resolver.task_id
    tf.config.experimental.enable_tensor_float_32_execution(False)  # GPUs: 3 digits are too few.
    tf_keras.utils.set_random_seed(0)
    with strategy.scope():
        model = accumulate_gradients(make_model(), run.accumulation_steps)
        loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf_keras.optimizers.Adam(1e-4), loss, metrics=["accuracy"])
    # Logs are all workers' already; for callbacks tf_keras would add them up over workers again.
    model.distribute_reduction_method = "first"
    size, recorder = run.batch * run.workers, Recorder(run)
    training, test = read_mnist(folder)
    dataset = batches((training[0][:examples], training[1][:examples]), size, epochs)
    began = time.monotonic()
    steps = examples // size
    model.fit(dataset, epochs=epochs, steps_per_epoch=steps, callbacks=[recorder], verbose=0)
    seconds = time.monotonic() - began
    peak_bytes = memory_peak_bytes()
    steps = len(test[1]) // TEST_BATCH
    accuracy = model.evaluate(batches(test, TEST_BATCH, 1), steps=steps, verbose=0)[1]
    measured = {"seconds": seconds, "peak_bytes": peak_bytes, "accuracy": accuracy}
    np.savez(out / f"{worker}.npz", losses=recorder.losses, weights=recorder.weights, **measured)
    # They leave together: another may still be fetching its part of the last sum.
    while len(list(out.glob("*.npz"))) < run.workers:
        time.sleep(0.1)


def end_by_signals() -> None:
    """Has SIGINT and SIGTERM end this process in order."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def memory_peak_bytes() -> int:
    """The most that tensors took at once on this worker's device."""
    device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    return int(tf.config.experimental.get_memory_info(device)["peak"])


# --- The runs, and what they came to ----------------------------------------------------


def start(number: int, out: Path, arguments: list[str]) -> dict[str, np.ndarray]:
    """Starts this program again as the workers of a run; what they measured."""
    click.echo(f"run {number}", err=True)
    out.mkdir()
    workers = RUNS[number].workers
    launch = ["-m", "bertaccum", "launch", "--workers", str(workers), "--"] if workers > 1 else []
    this = [__file__, "--run", str(number), "--worker", str(out), *arguments]
    process = subprocess.Popen([sys.executable, *launch, *this], env=environment())
    try:
        code = process.wait()
    finally:  # Whatever ends this program ends them.
        process.terminate()
        process.wait()
    if code:
        raise click.ClickException(f"run {number} ended with exit code {code}")
    results = [dict(np.load(path)) for path in sorted(out.glob("*.npz"))]
    return results[0] | {"peak_bytes": np.array([result["peak_bytes"] for result in results])}


def environment() -> dict[str, str]:
    """What the workers are told, of whatever run: what they measure is to be compared."""
    told = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    # On a CPU, too, TensorFlow then counts the memory that it hands out.
    told["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
    if len(tf.config.list_physical_devices("GPU")) % 2:  # Two workers cannot share them.
        told["CUDA_VISIBLE_DEVICES"] = ""
    return told


def differences(results: Results) -> dict[int, np.ndarray]:
    """The largest difference of any weight to the first run's, after each update."""
    first = next(iter(results.values()))["weights"]  # [updates, weights]
    return {n: np.abs(result["weights"] - first).max(axis=1) for n, result in results.items()}


def table(results: Results, apart: dict[int, np.ndarray]) -> str:
    """A line a run."""
    rows = [
        {
            "run": number,
            "workers x batch x steps": " x ".join(map(str, RUNS[number])),
            "updates": len(result["losses"]),
            "loss": f"{result['losses'][-100:].mean():.5f}",
            "test accuracy": f"{result['accuracy']:.4f}",
            "seconds": f"{result['seconds']:.0f}",
            "peak MiB of each": ", ".join(f"{b / 2**20:.0f}" for b in result["peak_bytes"]),
            "weights apart": f"{apart[number].max():.1e}" if number != min(results) else "",
        }
        for number, result in results.items()
    ]
    return str(pd.DataFrame(rows).to_string(index=False))


def draw(results: Results, apart: dict[int, np.ndarray]) -> Figure:
    """The losses of all runs, each raised a little, and how far their weights are apart."""
    figure = Figure(figsize=(8, 7.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for above_first, (number, result) in enumerate(results.items()):
        raised = RAISED * above_first  # They would hide each other.
        label = f"run {number}: " + " x ".join(map(str, RUNS[number]))
        label += f", raised by {raised:g}" if raised else ""
        losses = np.add(result["losses"], raised)
        style: Any = {"linewidth": 6 - 1.5 * above_first, "color": f"C{above_first}"}
        above.plot(losses, linewidth=1.2, color=style["color"], label=label)
        below.semilogy(np.where(apart[number] > 0, apart[number], np.nan), **style)
    below.axhline(LIMIT, color="gray", linestyle=":")
    above.set(ylabel="loss of an update's 200 examples")
    below.set(xlabel="updates", ylabel="largest difference\nof a weight to the first run")
    above.legend(title="workers x batch x accumulation_steps")
    return figure


def check(folder: Path | None, examples: int, figure: Path) -> None:
    """Says what is wrong before anything is trained, and once for all workers."""
    if "TF_CONFIG" in os.environ:
        raise BadInput("this program starts its workers itself; start it without TF_CONFIG")
    (_, labels), (_, test) = read_mnist(folder)
    if examples % 200 or examples > len(labels):
        raise BadInput(f"--examples {examples} has to be a multiple of 200, up to {len(labels)}")
    if len(test) % TEST_BATCH:
        raise BadInput(f"{folder} has {len(test)} test examples, not a multiple of {TEST_BATCH}")
    check_figure(figure)


@click.command()
@click.option(
    "--run",
    type=click.Choice([*map(str, RUNS), "all"]),
    default="all",
    show_default=True,
    help="Only all compares.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Folder with the four original files. [default: shared/data/mnist beside the repository,"
    " else they are downloaded]",
)
@click.option("--epochs", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--examples",
    type=click.IntRange(200, 60_000),
    default=60_000,
    show_default=True,
    help="Of those to train on, a multiple of 200.",
)
@click.option(
    "--figure",
    type=click.Path(path_type=Path),
    default="build/examples/mnist.png",
    show_default=True,
)
@click.option("--worker", type=click.Path(path_type=Path), hidden=True)
def main(
    run: str, data: Path | None, epochs: int, examples: int, figure: Path, worker: Path | None
) -> None:
    """Trains on MNIST in one of four ways, or in all, and compares them.

    All take seven minutes on two cores.
    """
    if data is None and (SHARED / "data/mnist").is_dir():
        data = SHARED / "data/mnist"
    if worker is not None:
        train(RUNS[int(run)], data, examples, epochs, worker)
        return
    tf.config.set_visible_devices([], "GPU")  # They are the workers'.
    check(data, examples, figure)
    arguments = ["--epochs", str(epochs), "--examples", str(examples)]
    arguments += ["--data", str(data)] if data is not None else []
    with tempfile.TemporaryDirectory() as folder:
        numbers = list(RUNS) if run == "all" else [int(run)]
        results = {n: start(n, Path(folder, str(n)), arguments) for n in numbers}
    apart = differences(results)
    click.echo(table(results, apart))
    draw(results, apart).savefig(figure, dpi=120)
    click.echo(f"figure: {figure}")
    largest = max(found.max() for found in apart.values())
    if not largest <= LIMIT:
        raise click.ClickException(f"weights are {largest:.1e} apart, which is no rounding")


if __name__ == "__main__":
    end_by_signals()
    main()
