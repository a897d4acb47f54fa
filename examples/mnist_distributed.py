"""Train on MNIST with 200 examples per update in four ways that give the same weights.

    run   workers   batch per worker   accumulation_steps   examples per update
    1     1         200                1                    200
    2     1         100                2                    200
    3     2         100                1                    200
    4     2          50                2                    200

    python examples/mnist_distributed.py --run all

All runs use the same model, optimizer and order of examples. They differ only in how they
distribute the examples of an update over workers and micro-steps. No gradient or learning rate
has to be divided by the number of workers or micro-steps. Output on two cores, one per worker:

 run workers x batch x steps  updates    loss test accuracy seconds peak MiB weight difference
   1             1 x 200 x 1     1500 0.35090        0.9067      46       70
   2             1 x 100 x 2     1500 0.35090        0.9067      47       35           1.1e-07
   3             2 x 100 x 1     1500 0.35090        0.9067     131   38, 38           1.1e-07
   4              2 x 50 x 2     1500 0.35090        0.9067     146   16, 16           1.3e-07

`peak MiB` is the peak memory of each worker, and `weight difference` the largest difference between
a weight and the same weight in run 1, after any update. Two workers are slower here, because with
such a small model and two cores they mostly wait for each other.
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

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it during its import.

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
RAISED = 0.5  # The figure raises each run's losses by this much above the previous run's.
Results = dict[int, dict[str, np.ndarray]]  # Measured values by name, for each run.


class Run(NamedTuple):
    """The distribution of an update's examples over workers and micro-steps."""

    workers: int
    batch: int  # Examples of one worker in one micro-step.
    accumulation_steps: int


RUNS = {1: Run(1, 200, 1), 2: Run(1, 100, 2), 3: Run(2, 100, 1), 4: Run(2, 50, 2)}


# --- Training, in each worker -----------------------------------------------------------


def make_model() -> tf_keras.Model:
    """Return a small CNN with smooth activations and average pooling.

    ReLU and max pooling have discontinuous gradients at the inputs that black pixels produce.
    With them, rounding errors in float32 grow beyond LIMIT; in float64 they do not.
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
    """Return a dataset of the batches of all workers, with the same order of examples in all runs.

    Args:
      data: Images and labels.
      size: Number of examples of all workers in one micro-step.
      epochs: Number of epochs.
    """
    images, labels = data
    rng = np.random.default_rng(0)
    order = np.concatenate([rng.permutation(len(labels)) for _ in range(epochs)])

    def in_order() -> Iterator[Data]:
        for chosen in order.reshape(-1, size):
            yield images[chosen], labels[chosen]

    types = tf.TensorSpec([size, 28, 28, 1], tf.uint8), tf.TensorSpec([size], tf.uint8)
    options = tf.data.Options()
    # Each worker reads its share of every batch.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_generator(in_order, output_signature=types).with_options(options)


class Recorder(tf_keras.callbacks.Callback):
    """A callback that records the loss of each window and the weights after each update."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.steps = run.accumulation_steps
        self.losses: list[float] = []
        self.weights: list[np.ndarray] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch % self.steps == 0:
            self.model.reset_metrics()  # The loss in Keras is a mean since the last reset.

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (batch + 1) % self.steps == 0:
            self.losses.append(logs["loss"])
            self.weights.append(np.concatenate([w.ravel() for w in self.model.get_weights()]))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        updates = self.model.optimizer.iterations.numpy()
        click.echo(f"epoch {epoch + 1}: {updates:,} updates, loss {self.losses[-1]:.4f}", err=True)


def train(run: Run, folder: Path | None, examples: int, epochs: int, out: Path) -> None:
    """Train as the only worker or as the worker in TF_CONFIG, and save the measured values.

    Args:
      run: The run.
      folder: Folder with the MNIST files, or None to download them.
      examples: Number of training examples.
      epochs: Number of epochs.
      out: Folder for the file of measured values.
    """
    worker, strategy = 0, tf.distribute.get_strategy()
    if run.workers > 1:  # TensorFlow must not be initialized before the strategy is created.
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        end_by_signals()  # The strategy replaced the handler of SIGTERM.
        worker = strategy.cluster_resolver.task_id
    # TensorFloat-32 on GPUs has a precision of only three digits.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    tf_keras.utils.set_random_seed(0)
    with strategy.scope():
        model = accumulate_gradients(make_model(), run.accumulation_steps)
        loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf_keras.optimizers.Adam(1e-4), loss, metrics=["accuracy"])
    # The logs are already reduced over workers; by default tf_keras would sum them again.
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
    # Wait for the other worker, which may still be receiving its part of the last reduction.
    while len(list(out.glob("*.npz"))) < run.workers:
        time.sleep(0.1)


def end_by_signals() -> None:
    """Make SIGINT and SIGTERM end this process with a regular exit."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def memory_peak_bytes() -> int:
    """Return the peak memory of tensors on this worker's device, in bytes."""
    device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    return int(tf.config.experimental.get_memory_info(device)["peak"])


# --- Starting the runs and comparing their results --------------------------------------


def start(number: int, out: Path, arguments: list[str]) -> dict[str, np.ndarray]:
    """Start this program again for each worker of a run, and return the measured values.

    Args:
      number: Number of the run.
      out: Folder to create for the workers' files.
      arguments: Command-line arguments for the workers.

    Raises:
      click.ClickException: If a worker fails.
    """
    click.echo(f"run {number}", err=True)
    out.mkdir()
    workers = RUNS[number].workers
    launch = ["-m", "bertaccum", "launch", "--workers", str(workers), "--"] if workers > 1 else []
    this = [__file__, "--run", str(number), "--worker", str(out), *arguments]
    process = subprocess.Popen([sys.executable, *launch, *this], env=environment())
    try:
        code = process.wait()
    finally:  # The workers must also end if this program is interrupted.
        process.terminate()
        process.wait()
    if code:
        raise click.ClickException(f"run {number} ended with exit code {code}")
    results = [dict(np.load(path)) for path in sorted(out.glob("*.npz"))]
    return results[0] | {"peak_bytes": np.array([result["peak_bytes"] for result in results])}


def environment() -> dict[str, str]:
    """Return the environment variables of the workers, the same for all runs."""
    told = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    # This allocator measures the peak memory on CPUs, too.
    told["TF_CPU_ALLOCATOR_USE_BFC"] = "true"
    # Two workers cannot share an odd number of GPUs equally.
    if len(tf.config.list_physical_devices("GPU")) % 2:
        told["CUDA_VISIBLE_DEVICES"] = ""
    return told


def differences(results: Results) -> dict[int, np.ndarray]:
    """Return the largest weight difference to the first run after each update, for each run."""
    first = next(iter(results.values()))["weights"]  # [updates, weights]
    return {n: np.abs(result["weights"] - first).max(axis=1) for n, result in results.items()}


def table(results: Results, apart: dict[int, np.ndarray]) -> str:
    """Return a table of the results with one line per run."""
    rows = [
        {
            "run": number,
            "workers x batch x steps": " x ".join(map(str, RUNS[number])),
            "updates": len(result["losses"]),
            "loss": f"{result['losses'][-100:].mean():.5f}",
            "test accuracy": f"{result['accuracy']:.4f}",
            "seconds": f"{result['seconds']:.0f}",
            "peak MiB": ", ".join(f"{b / 2**20:.0f}" for b in result["peak_bytes"]),
            "weight difference": f"{apart[number].max():.1e}" if number != min(results) else "",
        }
        for number, result in results.items()
    ]
    return str(pd.DataFrame(rows).to_string(index=False))


def draw(results: Results, apart: dict[int, np.ndarray]) -> Figure:
    """Return a figure of the losses, shifted for each run, and of the weight differences."""
    figure = Figure(figsize=(8, 7.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for above_first, (number, result) in enumerate(results.items()):
        raised = RAISED * above_first  # Without the shift, the curves would coincide.
        label = f"run {number}: " + " x ".join(map(str, RUNS[number]))
        label += f", raised by {raised:g}" if raised else ""
        losses = np.add(result["losses"], raised)
        style: Any = {"linewidth": 6 - 1.5 * above_first, "color": f"C{above_first}"}
        above.plot(losses, linewidth=1.2, color=style["color"], label=label)
        below.semilogy(np.where(apart[number] > 0, apart[number], np.nan), **style)
    below.axhline(LIMIT, color="gray", linestyle=":")
    above.set(ylabel="loss of the update's 200 examples")
    below.set(xlabel="updates", ylabel="largest weight difference\nto the first run")
    above.legend(title="workers x batch x accumulation_steps")
    return figure


def check(folder: Path | None, examples: int, figure: Path) -> None:
    """Raise `BadInput` if an option or the data is invalid; called once, before training."""
    if "TF_CONFIG" in os.environ:
        raise BadInput("this program starts its own workers; start it without TF_CONFIG")
    (_, labels), (_, test) = read_mnist(folder)
    if examples % 200 or examples > len(labels):
        raise BadInput(f"--examples {examples} must be a multiple of 200, up to {len(labels)}")
    if len(test) % TEST_BATCH:
        raise BadInput(f"{folder} has {len(test)} test examples, not a multiple of {TEST_BATCH}")
    check_figure(figure)


@click.command()
@click.option(
    "--run",
    type=click.Choice([*map(str, RUNS), "all"]),
    default="all",
    show_default=True,
    help="Run to train; `all` trains all four and compares them.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Folder with the four original MNIST files. [default: shared/data/mnist beside the"
    " repository if it exists, otherwise a download]",
)
@click.option("--epochs", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--examples",
    type=click.IntRange(200, 60_000),
    default=60_000,
    show_default=True,
    help="Number of training examples, a multiple of 200.",
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
    """Train on MNIST in one of four ways, or in all four and compare them.

    All four runs take seven minutes on two cores.
    """
    if data is None and (SHARED / "data/mnist").is_dir():
        data = SHARED / "data/mnist"
    if worker is not None:
        train(RUNS[int(run)], data, examples, epochs, worker)
        return
    tf.config.set_visible_devices([], "GPU")  # Only the workers use the GPUs.
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
        raise click.ClickException(f"weights differ by {largest:.1e}, more than rounding explains")


if __name__ == "__main__":
    end_by_signals()
    main()
