"""Tests of the MNIST example on generated and real images, with worker processes."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import mnist_distributed as module
import numpy as np
import psutil
import pytest
import tensorflow as tf
import tf_keras
from click.testing import CliRunner
from figure_checks import check_texts, pixels

Results = dict[int, dict[str, np.ndarray]]
EXAMPLES = 400


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    path.write_bytes(gzip.compress(header + array.tobytes()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with random images in the format of the original files."""
    folder = tmp_path_factory.mktemp("mnist")
    rng = np.random.default_rng(0)
    for name, count in (("train", EXAMPLES), ("t10k", module.TEST_BATCH)):
        labels = rng.integers(10, size=count, dtype=np.uint8)
        images = (
            rng.integers(256, size=(count, 28, 28), dtype=np.uint8) // 10 + labels[:, None, None]
        )
        write_idx(folder / f"{name}-images-idx3-ubyte.gz", images.astype(np.uint8))
        write_idx(folder / f"{name}-labels-idx1-ubyte.gz", labels)
    return folder


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(module.main, [str(argument) for argument in arguments])


@pytest.mark.slow
def test_all_four_runs_make_the_same_updates(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With several threads, peak memory depends on the load of the machine.
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "1")
    start, results, figure = module.start, Results(), tmp_path / "new" / "mnist.png"

    def started(number: int, *rest: Any) -> Any:
        results[number] = start(number, *rest)
        return results[number]

    monkeypatch.setattr(module, "start", started)
    arguments = ["--data", folder, "--examples", EXAMPLES, "--epochs", 2, "--figure", figure]
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    rows = done.stdout.splitlines()[1:5]
    assert [row.split()[0] for row in rows] == ["1", "2", "3", "4"]
    assert len({row.split()[7] for row in rows}) == 1
    assert figure.stat().st_size > 10_000
    one, four = results[1], results[4]
    assert len(one["losses"]) == len(four["losses"]) == 4
    assert np.abs(one["weights"][-1] - one["weights"][0]).max() > 1e-4
    assert max(found.max() for found in module.differences(results).values()) <= 1e-6
    np.testing.assert_allclose(four["losses"], one["losses"], rtol=1e-6)
    assert float(four["accuracy"]) == float(one["accuracy"])
    assert len(one["peak_bytes"]) == 1 and len(four["peak_bytes"]) == 2
    # Each micro-batch has a quarter of the examples, but the memory that a convolution needs in
    # addition depends on the processor.
    assert max(four["peak_bytes"]) < 0.75 * min(one["peak_bytes"])
    assert four["losses"][1] == pytest.approx(second_loss(folder, one["weights"][0]), rel=1e-5)


def second_loss(folder: Path, weights: np.ndarray) -> float:
    """Return the loss of the second 200 examples in seeded order, with the given weights."""
    model = module.make_model()
    ends = np.cumsum([w.size for w in model.get_weights()])[:-1]
    parts = zip(np.split(weights, ends), model.get_weights(), strict=True)
    model.set_weights([part.reshape(w.shape) for part, w in parts])
    images, labels = module.read_mnist(folder)[0]
    chosen = np.random.default_rng(0).permutation(EXAMPLES)[200:400]
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return float(loss(labels[chosen], model(images[chosen])))


def test_reads_the_real_images(shared: Path) -> None:
    parts = module.read_mnist(shared / "data/mnist")
    for (images, labels), count in zip(parts, (60_000, 10_000), strict=True):
        assert images.shape == (count, 28, 28, 1) and labels.shape == (count,)
        assert (images.min(), images.max()) == (0, 255) and set(labels.tolist()) == set(range(10))


@pytest.mark.slow
def test_workers_end_when_the_program_is_terminated(folder: Path) -> None:
    program = [sys.executable, module.__file__, "--run", "4", "--epochs", "10000"]
    command = [*program, "--examples", str(EXAMPLES), "--data", str(folder)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any("epoch 1:" in line for line in process.stderr)
    # The children are the launcher and two workers.
    started = psutil.Process(process.pid).children(recursive=True)
    assert len(started) == 3
    process.terminate()
    process.communicate()
    assert process.returncode == 143
    assert not psutil.wait_procs(started, timeout=1)[1]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Results:
    """Return fake results of all runs, which replace the real runs."""
    results = {
        n: {
            "losses": np.linspace(2, 1, 3),
            "weights": np.zeros((3, 5), np.float32),
            "seconds": np.array(7.0),
            "accuracy": np.array(0.5),
            "peak_bytes": np.array([2**20 * 100 // n] * module.RUNS[n].workers),
        }
        for n in module.RUNS
    }
    monkeypatch.setattr(module, "start", lambda n, out, arguments: results[n])
    return results


def test_prints_a_table_of_the_results(measured: Results, folder: Path, tmp_path: Path) -> None:
    figure = tmp_path / "new" / "mnist.png"
    measured[4]["weights"][1, 2] = 4e-6
    done = run("--data", folder, "--examples", EXAMPLES, "--figure", figure)
    assert done.exit_code == 0, done.output
    fourth = done.stdout.splitlines()[4].split()
    assert " ".join(fourth) == "4 2 x 50 x 2 3 1.50000 0.5000 7 25, 25 4.0e-06"
    assert figure.is_file()


def test_fails_if_weights_differ_after_any_update(
    measured: Results, folder: Path, tmp_path: Path
) -> None:
    measured[3]["weights"][1, 2] = 2e-5
    done = run("--data", folder, "--examples", EXAMPLES, "--figure", tmp_path / "mnist.png")
    assert done.exit_code == 1
    assert done.stderr.strip() == "Error: weights differ by 2.0e-05, more than rounding explains"


def test_fails_if_a_run_fails(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "__file__", str(tmp_path / "none.py"))
    done = run("--data", folder, "--examples", EXAMPLES, "--figure", tmp_path / "mnist.png")
    assert done.exit_code == 1
    assert done.stderr == "run 1\nError: run 1 ended with exit code 2\n"


def test_downloads_mnist_without_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "SHARED", tmp_path)
    images, labels = np.zeros((3, 28, 28, 1), np.uint8), np.arange(3)
    asked = []

    def load(name: str, split: str, **_: Any) -> Any:
        asked.append((name, split))
        return tf.constant(images), tf.constant(labels)

    monkeypatch.setattr("tensorflow_datasets.load", load)
    for part in module.read_mnist(None):
        assert part[0].shape == images.shape
        assert part[1].dtype == np.uint8 and part[1].tolist() == [0, 1, 2]
    assert asked == [("mnist", "train"), ("mnist", "test")]

    def refuse(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no connection")

    monkeypatch.setattr("tensorflow_datasets.load", refuse)
    done = run("--figure", tmp_path / "mnist.png")
    assert done.exit_code == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("Error: MNIST cannot be downloaded (ConnectionError); pass a folder")


def test_refuses_to_start_with_tf_config(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{}")
    done = run("--data", folder, "--examples", EXAMPLES)
    assert done.exit_code == 2
    assert "start it without TF_CONFIG" in done.stderr
    assert "TF_CONFIG" not in module.environment()


def test_bad_input_gives_a_one_line_error(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in folder.iterdir():
        (broken / path.name).write_bytes(path.read_bytes()[:-20])
    labels = tmp_path / "labels"
    labels.mkdir()
    for path in folder.iterdir():
        (labels / path.name).write_bytes(
            (folder / path.name.replace("images-idx3", "labels-idx1")).read_bytes()
        )
    (tmp_path / "file").touch()
    for arguments, message in (
        (["--data", tmp_path], "train-images-idx3-ubyte.gz cannot be read"),
        (["--data", broken], "train-images-idx3-ubyte.gz cannot be read"),
        (["--data", labels], "unexpected arrays with 0 axes"),
        (["--data", folder, "--examples", 300], "--examples 300 must be a multiple of 200"),
        (["--data", folder, "--examples", 1000], "up to 400"),
        (["--data", folder, "--examples", 400, "--figure", tmp_path / "file/a.png"], "--figure"),
        (["--data", folder, "--examples", 400, "--figure", tmp_path / "a.none"], "end in one of"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2, done.output
        assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1
        assert message in done.stderr


def test_figure_shows_four_runs_with_equal_losses() -> None:
    losses = 2 / (1 + np.arange(300) / 50)
    results = {
        number: {"losses": losses, "weights": np.full((300, 5), 1e-8 * (number > 1))}
        for number in module.RUNS
    }
    figure = module.draw(results, module.differences(results))
    check_texts(figure)
    assert all(pixels(figure, f"C{number}") > 400 for number in range(4))
    above = figure.axes[0]
    assert [line.get_ydata()[0] for line in above.lines] == [2.0, 2.5, 3.0, 3.5]
    said = [text.get_text() for text in above.get_legend().get_texts()]
    assert ["raised by" in text for text in said] == [False, True, True, True]
