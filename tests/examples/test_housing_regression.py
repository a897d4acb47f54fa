"""Tests of the housing example: its results are right, and it reports failures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import click
import housing_regression as housing
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from click.testing import CliRunner, Result
from figure_checks import check_texts

EPOCHS = 2
# 53 of the 66 rows are training rows, in windows of 32 and 21 = 8 + 8 + 5.
ROWS, TRAINING, UPDATES = 66, 53, 2 * EPOCHS


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    features = rng.normal(5, [1, 20] * 6 + [300], (ROWS, 13))
    prices = 20 + features[:, :1] + rng.normal(size=(ROWS, 1))
    path = tmp_path_factory.mktemp("data") / "small.csv"
    np.savetxt(path, np.hstack([features, prices]), "%.3f", ",")
    return path


@pytest.fixture(scope="module")
def training(data: Path) -> housing.Rows:
    return housing.split(housing.read(data))[0]


def run(data: Path, figure: Path, *arguments: str) -> Result:
    given = ["--data", str(data), "--figure", str(figure), *arguments]
    return CliRunner().invoke(housing.main, given)


@pytest.fixture(scope="module")
def done(
    data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Result, dict[str, housing.Curve], Path]:
    """Return the program's result, the curves, and the path of the figure."""
    figure = tmp_path_factory.mktemp("figures") / "new" / "housing.png"
    with mock.patch.object(housing, "show", wraps=housing.show) as show:
        result = run(data, figure, "--epochs", str(EPOCHS))
    return result, show.call_args.args[0], figure


def micro_batches(training: housing.Rows, epochs: int) -> list[housing.Rows]:
    """Return the micro-batches of all epochs, in the order of the rows."""
    cuts = range(8, TRAINING, 8)
    parts = [np.split(part, cuts) for part in training]
    return list(zip(*parts, strict=True)) * epochs


def gradients(model: tf_keras.Model, features: np.ndarray, targets: np.ndarray) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(features) - targets))
    return tape.gradient(loss, model.trainable_variables)


def flat(tensors: list[tf.Tensor]) -> np.ndarray:
    return np.concatenate([tf.reshape(t, [-1]).numpy() for t in tensors])


def test_reports_that_accumulation_matches_the_large_batch(done) -> None:
    result = done[0]
    assert result.exit_code == 0, result.output
    rows = {line[:22].strip(): line[22:].split() for line in result.stdout.splitlines()}
    assert [rows[name][0] for name in housing.RUNS] == ["4", "4", "14", "4"]
    assert float(rows[housing.ACCUMULATED][3]) <= 1e-6
    assert float(rows[housing.OLD][3]) > 1e-3
    assert "equal to 1e-06 after every update" in result.stdout


def test_accumulation_equals_a_plain_loop_over_windows(done, training: housing.Rows) -> None:
    # The micro-batches form windows of 32 and, at the end of each epoch, a partial window.
    model, small = housing.build(training), micro_batches(training, EPOCHS)
    assert [len(x) for x, _ in small] == [8, 8, 8, 8, 8, 8, 5] * EPOCHS
    windows = [small[start : start + size] for start, size in ((0, 4), (4, 3), (7, 4), (11, 3))]
    curve = done[1][housing.ACCUMULATED]
    assert len(curve.weights) == len(curve.rmse) == len(windows)
    for window, weights in zip(windows, curve.weights, strict=True):
        features, targets = (np.concatenate(part) for part in zip(*window, strict=True))
        mean = gradients(model, features, targets)
        model.optimizer.apply_gradients(zip(mean, model.trainable_variables, strict=True))
        np.testing.assert_allclose(weights, flat(model.trainable_variables), rtol=0, atol=1e-6)


def test_old_train_op_applies_an_update_after_one_micro_batch(
    training: housing.Rows, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An update of plain SGD is the learning rate times the train_op's mean gradient.
    monkeypatch.setattr(tf_keras.optimizers, "Adam", lambda _: tf_keras.optimizers.SGD(1e-3))
    curve = housing.Curve(housing.split(housing.read(data))[1])
    housing.old_train_op(training, EPOCHS, curve)
    model, small = housing.build(training), micro_batches(training, EPOCHS)
    windows = [[0], [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]  # Micro-batch 13 is lost.
    assert len(small) == 14 and len(curve.weights) == len(windows)
    for window, weights in zip(windows, curve.weights, strict=True):
        summed = sum(flat(gradients(model, *small[number])) for number in window)
        expected = flat(model.trainable_variables) - 1e-3 * summed / 4
        np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-6)
        parts = np.split(expected, np.cumsum([tf.size(v) for v in model.trainable_variables])[:-1])
        for variable, part in zip(model.trainable_variables, parts, strict=True):
            variable.assign(part.reshape(variable.shape))


def test_figure_shows_the_results(done) -> None:
    picture = done[2].read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 20_000  # A blank figure has 3 kB.
    figure = housing.draw(done[1])
    check_texts(figure)
    above, below = figure.axes
    drawn = [len(line.get_xdata()) for line in above.lines]
    assert drawn == [4, 4, 3, 4]  # Batches of 8 show every fourth of their 14 updates.
    assert max(below.lines[1].get_ydata()) <= 1e-6 < 1e-3 < min(below.lines[3].get_ydata())


def made(*weights: float) -> Callable[[object, int, housing.Curve], None]:
    """Return a fake training function that leaves these weights after its updates."""

    def fill(training: object, epochs: int, curve: housing.Curve) -> None:
        curve.rmse = [1.0 for _ in weights]
        curve.weights = [np.array([0.0, weight]) for weight in weights]

    return fill


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ((0, 9e-7, 0), None),
        ((0, 2e-6, 0), "a weight differs by 2e-06 after update 2"),
        ((-2e-6, 0, 0), "a weight differs by 2e-06 after update 1"),
        ((0, 0, np.nan), "a weight differs by nan after update 3"),
        ((0, 0), "2 updates instead of 3"),
        ((0, 0, 0, 0), "4 updates instead of 3"),
    ],
)
def test_fails_if_accumulation_does_not_match_the_large_batch(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    weights: tuple[float, ...],
    said: str | None,
) -> None:
    for name in housing.RUNS:
        values = weights if name == housing.ACCUMULATED else (0, 0, 0)
        monkeypatch.setitem(housing.RUNS, name, made(*values))
    result = run(data, tmp_path / "housing.png")
    if said is None:
        assert result.exit_code == 0
    else:
        assert result.exit_code == 1
        last = result.stderr.splitlines()[-1]
        assert last == f"Error: 4 x 8 accumulated does not match one batch of 32: {said}"


ROW = ",".join(["1.5"] * 14) + "\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("", "No columns"),
        (ROW * 3, "3 rows of 14 columns"),
        (ROW.replace("1.5,", "", 1) * 9, "9 rows of 13 columns"),
        (ROW * 4 + "1," + ROW + ROW * 9, "line 5, saw 15"),
        (ROW * 4 + ROW[4:] + ROW * 9, "row 5, column 14: nan is not a number"),
        (ROW * 4 + ROW.replace("1.5", "much", 1) + ROW * 9, "row 5, column 1: 'much' is not a"),
        (ROW * 9 + "\n" + ROW.replace("1.5", "inf"), "row 10, column 1: nan is not a number"),
        (ROW * 9 + ROW.replace("1.5", "1e300"), "row 10, column 1: '1e300' is not a number"),
        ("\0\xff" * 99, "small.csv"),
    ],
)
@pytest.mark.filterwarnings("error")  # A warning would print more than one line.
def test_bad_data_gives_a_one_line_error(tmp_path: Path, text: str | None, said: str) -> None:
    data = tmp_path / "small.csv"
    if text is not None:
        data.write_text(text, encoding="latin-1")
    result = run(data, tmp_path / "housing.png")
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert line.startswith("Error: ") and str(data) in line and said in line
    assert "--data" in line or "correct or remove" in line
    assert not (tmp_path / "housing.png").exists()


@pytest.mark.parametrize("name", ["small.csv/housing.png", ".", "housing.nonsense"])
def test_unwritable_figure_gives_an_error_before_training(data: Path, name: str) -> None:
    # Training would print more lines.
    result = run(data, data.parent / name.replace("small.csv", data.name))
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert line.startswith("Error: cannot write ") and "--figure" in line


def test_accumulation_matches_the_large_batch_on_real_data(shared: Path) -> None:
    path = shared / "data/housing/housingdata.csv"
    if not path.is_file():
        pytest.skip(f"no housing data at {path}")
    training, held_out = housing.split(housing.read(path))
    assert (len(training[0]), len(held_out[0])) == (405, 101)
    one, accumulated = housing.Curve(held_out), housing.Curve(held_out)
    for name, curve in ((housing.ONE, one), (housing.ACCUMULATED, accumulated)):
        housing.RUNS[name](training, 3, curve)
    housing.check(accumulated, one)
    assert len(one.rmse) == 39 and one.rmse[-1] < one.rmse[0] - 4
    with pytest.raises(click.ClickException):
        housing.check(accumulated, housing.Curve(held_out))
