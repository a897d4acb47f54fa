"""Windows whose caller knows the weight of each micro-batch, as in the trainer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from bertaccum.accumulation import ClipByGlobalNorm
from bertaccum.accumulation.window import WindowOptimizer

FEATURES, EXAMPLES, UPDATES = 3, 12, 5


class Toy:
    """A least-squares problem with an embedding, which has dense and sparse gradients."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.kernel = tf.Variable(rng.normal(size=(FEATURES, 1)), dtype=tf.float32)
        self.table = tf.Variable(rng.normal(size=(5, FEATURES)), dtype=tf.float32)
        self.variables = [self.kernel, self.table]
        self.ids = tf.constant(rng.integers(0, 5, (UPDATES, EXAMPLES)), tf.int32)
        self.targets = tf.constant(rng.normal(size=(UPDATES, EXAMPLES)), tf.float32)

    def loss(self, update: Any, rows: slice) -> tf.Tensor:
        features = tf.gather(self.table, self.ids[update, rows])
        error = tf.squeeze(features @ self.kernel, 1) - self.targets[update, rows]
        return tf.reduce_sum(error**2)


def adamw(**options: object) -> tf_keras.optimizers.Optimizer:
    schedule = tf_keras.optimizers.schedules.PolynomialDecay(0.1, 10, 0.0)
    return tf_keras.optimizers.AdamW(schedule, weight_decay=0.1, **options)


def weights(toy: Toy) -> np.ndarray:
    return np.concatenate([v.numpy().ravel() for v in toy.variables])


def cuts(sizes: Sequence[int]) -> list[slice]:
    ends = np.cumsum(sizes)
    return [slice(int(e - s), int(e)) for s, e in zip(sizes, ends, strict=True)]


@functools.cache
def run_large_batch(transform: object = None) -> np.ndarray:
    """Return the weights of plain tf_keras on whole windows, which accumulation must equal."""
    toy, optimizer = Toy(), adamw()
    for update in range(UPDATES):
        with tf.GradientTape() as tape:
            loss = toy.loss(update, slice(None)) / EXAMPLES
        gradients = tape.gradient(loss, toy.variables)
        gradients = [tf.convert_to_tensor(g) for g in gradients]
        pairs = list(zip(gradients, toy.variables, strict=True))
        optimizer.apply_gradients(transform(pairs) if transform is not None else pairs)
    return weights(toy)


def run_accumulated(sizes: Sequence[int], transform: object = None) -> np.ndarray:
    toy = Toy()
    optimizer = WindowOptimizer(adamw(), gradient_transform=transform)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)] * 3)
    def micro_step(update: tf.Tensor, start: tf.Tensor, end: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = toy.loss(update, slice(start, end))
        gradients = tape.gradient(loss, toy.variables)
        optimizer.accumulate(
            zip(gradients, toy.variables, strict=True), tf.cast(end - start, tf.float32)
        )

    apply = tf.function(optimizer.apply)
    for update in range(UPDATES):
        for cut in cuts(sizes):
            micro_step(update, cut.start, cut.stop)
        assert apply()
        assert optimizer.iterations == update + 1
    return weights(toy)


@pytest.mark.parametrize("sizes", [[12], [5, 5, 2], [1] * 12])
def test_micro_batches_of_any_sizes_equal_the_large_batch(sizes: list[int]) -> None:
    np.testing.assert_allclose(run_accumulated(sizes), run_large_batch(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16", "float64"])
@pytest.mark.parametrize(("reduction", "expected"), [("mean", -1.5), ("sum", -12.0)])
def test_dtypes_of_accumulators_and_variables_do_not_change_the_reduction(
    reduction: str, expected: float, dtype: str | None, stored: str
) -> None:
    variable = tf.Variable(0.0, dtype=stored)
    optimizer = WindowOptimizer(tf_keras.optimizers.SGD(1.0), reduction, dtype)
    for total, weight in ((2.0, 1), (4.0, 4), (6.0, 3)):
        optimizer.accumulate([(tf.constant(total, stored), variable)], weight)
    assert optimizer.apply()
    assert float(variable) == pytest.approx(expected, rel=1e-2)


def test_clipping_applies_to_the_mean_gradient() -> None:
    clip = ClipByGlobalNorm(0.05)
    clipped = run_large_batch(clip)
    assert np.abs(clipped - run_large_batch()).max() > 1e-3  # Clipping has an effect.
    np.testing.assert_allclose(run_accumulated([5, 5, 2], clip), clipped, rtol=0, atol=1e-6)


def test_weights_do_not_change_between_updates() -> None:
    """The original tf.estimator recipe applied an update after the first micro-batch."""
    toy, optimizer = Toy(), WindowOptimizer(adamw())
    before = weights(toy)
    for cut in cuts([4, 4, 4]):
        with tf.GradientTape() as tape:
            loss = toy.loss(0, cut)
        gradients = tape.gradient(loss, toy.variables)
        optimizer.accumulate(zip(gradients, toy.variables, strict=True), weight=4)
        np.testing.assert_array_equal(weights(toy), before)
        assert optimizer.iterations == 0
    optimizer.apply()
    assert optimizer.iterations == 1
    assert np.abs(weights(toy) - before).min() > 0


def accumulate(optimizer: WindowOptimizer, toy: Toy, scale: float) -> None:
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(toy.loss(0, slice(None))) * scale
    gradients = tape.gradient(loss, toy.variables)
    optimizer.accumulate(zip(gradients, toy.variables, strict=True), weight=EXAMPLES)


@pytest.mark.parametrize(("bad", "position"), [(np.nan, 0), (np.inf, 1), (np.nan, 2)])
def test_nonfinite_micro_step_skips_the_whole_window(bad: float, position: int) -> None:
    toy, optimizer = Toy(), WindowOptimizer(adamw())
    before = weights(toy)
    for step in range(3):
        accumulate(optimizer, toy, bad if step == position else 1.0)
    assert not optimizer.apply()
    assert optimizer.skipped_windows == 1
    np.testing.assert_array_equal(weights(toy), before)
    # The next window starts from zero.
    accumulate(optimizer, toy, 1.0)
    assert optimizer.apply()
    assert np.isfinite(weights(toy)).all()


@pytest.mark.parametrize("scale", [False, True])
def test_report_is_summed_and_an_objection_discards_the_window(scale: bool) -> None:
    inner = tf_keras.mixed_precision.LossScaleOptimizer(adamw()) if scale else adamw()
    toy, optimizer = Toy(), WindowOptimizer(inner)
    accumulate(optimizer, toy, 1.0)
    applied, total = optimizer.apply(report=[0.0, 2.5, 7.0])
    assert applied
    assert total.numpy().tolist() == [0.0, 2.5, 7.0]
    before = weights(toy), [np.array(v) for v in inner.variables]
    # An objection also discards a window that is not finite, without counting it as skipped.
    for gradient in (1.0, np.inf):
        accumulate(optimizer, toy, gradient)
        applied, total = optimizer.apply(report=[1.0, 2.5, 7.0])
        assert not applied
        assert total.numpy().tolist() == [1.0, 2.5, 7.0]
        np.testing.assert_array_equal(weights(toy), before[0])
        for now, then in zip(inner.variables, before[1], strict=True):
            np.testing.assert_array_equal(now, then)
        assert not optimizer.half_updated
        assert not optimizer.pending
    accumulate(optimizer, toy, 1.0)
    assert optimizer.apply()


def test_inner_loss_scale_does_not_change_the_update() -> None:
    plain_toy, plain = Toy(), WindowOptimizer(adamw())
    toy = Toy()
    scaled = WindowOptimizer(tf_keras.mixed_precision.LossScaleOptimizer(adamw()))
    for _ in range(2):
        accumulate(plain, plain_toy, 1.0)
        accumulate(scaled, toy, 1.0)
    plain.apply()
    scaled.apply()
    np.testing.assert_allclose(weights(toy), weights(plain_toy), rtol=0, atol=1e-6)
    scale = float(scaled.inner.loss_scale)
    accumulate(scaled, toy, np.inf)
    assert not scaled.apply()
    assert float(scaled.inner.loss_scale) == scale / 2


# Windows of micro-steps; each micro-step trains the body and the left head, the right one or both.
HEADS = ["l l", "r r", "l l", "lr lr", "l lr l", "r r"]


@pytest.mark.parametrize(("traced", "scaled"), [(True, True), (False, False)])
def test_variables_without_gradient_in_a_window_do_not_change(traced: bool, scaled: bool) -> None:
    """Zero gradients would change the moments."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(len(window.split()), 2, 2)) for window in HEADS]

    def setting() -> tuple[list[tf.Variable], tf_keras.optimizers.Optimizer]:
        variables = [tf.Variable([1.0, 2.0]) for _ in range(4)]  # The last variable is unused.
        inner = adamw(use_ema=True, ema_momentum=0.9)
        inner.build(variables)
        return variables, inner

    def gradients(variables: list[tf.Variable], micro_steps: list, loss_of: object) -> list:
        body, left, right, _ = variables
        with tf.GradientTape() as tape:
            losses = [
                tf.reduce_sum((body * {"l": left, "r": right}[head] * rows) ** 2)
                for heads, rows in micro_steps
                for head in heads
            ]
            loss = loss_of(tf.add_n(losses))
        pairs = zip(tape.gradient(loss, variables), variables, strict=True)
        return [(g, v) for g, v in pairs if g is not None]

    expected, plain = setting()
    variables, inner = setting()
    scale = tf_keras.mixed_precision.LossScaleOptimizer
    optimizer = WindowOptimizer(scale(inner) if scaled else inner)
    optimizer.build(variables)

    def micro_step(heads: str, rows: tf.Tensor) -> None:
        pairs = gradients(variables, [(heads, rows)], optimizer.scale_loss)
        optimizer.accumulate(pairs, len(rows))

    apply = optimizer.apply
    if traced:
        micro_step, apply = tf.function(micro_step), tf.function(apply)
        for heads in ("l", "r", "lr"):
            micro_step.get_concrete_function(heads, tf.TensorSpec([2, 2]))
    for window, inputs in zip(HEADS, rows.copy(), strict=True):
        micro_steps = list(zip(window.split(), tf.constant(inputs, tf.float32), strict=True))
        count = sum(len(rows) for _, rows in micro_steps)
        plain.apply_gradients(gradients(expected, micro_steps, lambda x, n=count: x / n))
        for heads, part in micro_steps:
            micro_step(heads, part)
        assert apply()
    mine, theirs = [*variables, *inner.variables], [*expected, *plain.variables]
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)


def test_gradient_of_a_new_variable_after_tracing_apply_is_applied() -> None:
    early, late = tf.Variable(1.0), tf.Variable(1.0)
    optimizer = WindowOptimizer(tf_keras.optimizers.SGD(1.0))
    optimizer.build([early, late])
    apply = tf.function(optimizer.apply)
    for variable in (early, late):
        optimizer.accumulate([(tf.constant(3.0), variable)])
        apply()
    assert (float(early), float(late)) == (-2.0, -2.0)


class OutOfMemory(tf_keras.optimizers.SGD):
    """An SGD optimizer that runs out of memory at the second variable."""

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        if "second" in variable.name:
            gradient = failing(gradient)
        super().update_step(gradient, variable)


def failing(tensor: tf.Tensor) -> tf.Tensor:
    def fail(_: np.ndarray) -> np.ndarray:
        raise MemoryError

    failed = tf.numpy_function(fail, [tensor], tensor.dtype)
    return tf.ensure_shape(failed, tensor.shape)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("when", ["accumulate", "update"])
def test_half_updated_is_set_if_an_update_fails_midway(scaled: bool, when: str) -> None:
    first, second = tf.Variable(1.0, name="first"), tf.Variable(1.0, name="second")
    inner = OutOfMemory(1.0) if when == "update" else tf_keras.optimizers.SGD(1.0)
    scale = tf_keras.mixed_precision.LossScaleOptimizer
    optimizer = WindowOptimizer(scale(inner) if scaled else inner)
    optimizer.build([first, second])

    @tf.function
    def window(fail: bool) -> None:
        gradient = failing(tf.constant(1.0)) if fail else tf.constant(1.0)
        optimizer.accumulate([(tf.constant(1.0), first), (gradient, second)])
        optimizer.apply()

    with pytest.raises(tf.errors.ResourceExhaustedError):
        window(when == "accumulate")
    assert bool(optimizer.half_updated) == (when == "update")
    if when == "accumulate":
        optimizer.drop()
        assert (float(first), float(second)) == (1.0, 1.0)
        window(False)
        assert not optimizer.half_updated
        expected = 1.0 - 1.0 / (32768 if scaled else 1)
        assert (float(first), float(second)) == (expected, expected)


def test_checkpoint_of_a_partial_window_gives_identical_weights(tmp_path: object) -> None:
    def start() -> tuple[Toy, WindowOptimizer, tf.train.Checkpoint]:
        toy, optimizer = Toy(), WindowOptimizer(adamw())
        accumulate(optimizer, toy, 1.0)
        return toy, optimizer, tf.train.Checkpoint(optimizer=optimizer, variables=toy.variables)

    toy, optimizer, checkpoint = start()
    path = checkpoint.write(f"{tmp_path}/ckpt")
    accumulate(optimizer, toy, 2.0)
    optimizer.apply()

    again, other, checkpoint = start()
    accumulate(other, again, 7.0)  # The checkpoint overwrites this.
    checkpoint.read(path).assert_consumed()
    accumulate(other, again, 2.0)
    other.apply()
    np.testing.assert_array_equal(weights(again), weights(toy))


def test_misuse_raises_with_a_hint() -> None:
    optimizer = WindowOptimizer(adamw())
    with pytest.raises(ValueError, match="without accumulate"):
        optimizer.apply()
    accumulate(optimizer, Toy(), 1.0)
    with pytest.raises(ValueError, match="without the variable"):
        accumulate(optimizer, Toy(), 1.0)
