"""The accumulating optimizer against one big batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from bertaccum import AccumulatingOptimizer
from bertaccum.accumulation import ClipByGlobalNorm

FEATURES, EXAMPLES, UPDATES = 3, 12, 5


class Toy:
    """Least squares with an embedding, so that there are dense and sparse gradients."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.kernel = tf.Variable(rng.normal(size=(FEATURES, 1)), dtype=tf.float32)
        self.table = tf.Variable(rng.normal(size=(5, FEATURES)), dtype=tf.float32)
        self.variables = [self.kernel, self.table]
        self.ids = rng.integers(0, 5, (UPDATES, EXAMPLES)).astype(np.int32)
        self.targets = rng.normal(size=(UPDATES, EXAMPLES)).astype(np.float32)

    def loss(self, update: int, rows: slice) -> tf.Tensor:
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


def run_big_batch(transform: object = None) -> np.ndarray:
    """Plain tf_keras on whole windows: what accumulation must equal."""
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
    optimizer = AccumulatingOptimizer(adamw(), gradient_transform=transform)

    @tf.function
    def micro_step(update: int, start: int, end: int) -> None:
        with tf.GradientTape() as tape:
            loss = toy.loss(update, slice(start, end))
        gradients = tape.gradient(loss, toy.variables)
        optimizer.accumulate(zip(gradients, toy.variables, strict=True), weight=end - start)

    apply = tf.function(optimizer.apply)
    for update in range(UPDATES):
        for cut in cuts(sizes):
            micro_step(update, cut.start, cut.stop)
        assert apply()
        assert optimizer.iterations == update + 1
    return weights(toy)


@pytest.mark.parametrize("sizes", [[12], [3, 3, 3, 3], [5, 5, 2], [1] * 12, [11, 1]])
def test_equals_the_big_batch_however_it_is_cut(sizes: list[int]) -> None:
    np.testing.assert_allclose(run_accumulated(sizes), run_big_batch(), rtol=0, atol=1e-6)


def test_clipping_sees_the_mean_gradient_once() -> None:
    clip = ClipByGlobalNorm(0.05)
    clipped = run_big_batch(clip)
    assert np.abs(clipped - run_big_batch()).max() > 1e-3  # the bound is in effect
    np.testing.assert_allclose(run_accumulated([5, 5, 2], clip), clipped, rtol=0, atol=1e-6)


def test_weights_stand_still_between_updates() -> None:
    """The original tf.estimator recipe fired after the first micro-batch."""
    toy, optimizer = Toy(), AccumulatingOptimizer(adamw())
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


def accumulate(optimizer: AccumulatingOptimizer, toy: Toy, scale: float) -> None:
    with tf.GradientTape() as tape:
        loss = optimizer.scale_loss(toy.loss(0, slice(None))) * scale
    gradients = tape.gradient(loss, toy.variables)
    optimizer.accumulate(zip(gradients, toy.variables, strict=True), weight=EXAMPLES)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_one_bad_micro_step_drops_the_whole_window(bad: float, position: int) -> None:
    toy, optimizer = Toy(), AccumulatingOptimizer(adamw())
    before = weights(toy)
    for step in range(3):
        accumulate(optimizer, toy, bad if step == position else 1.0)
    assert not optimizer.apply()
    assert optimizer.skipped_windows == 1
    np.testing.assert_array_equal(weights(toy), before)
    # Nothing of it is left for the next window.
    accumulate(optimizer, toy, 1.0)
    assert optimizer.apply()
    assert np.isfinite(weights(toy)).all()


def test_a_loss_scale_inside_changes_only_the_scale() -> None:
    plain_toy, plain = Toy(), AccumulatingOptimizer(adamw())
    toy = Toy()
    scaled = AccumulatingOptimizer(tf_keras.mixed_precision.LossScaleOptimizer(adamw()))
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


def test_variables_without_gradient_stay_out() -> None:
    toy, optimizer = Toy(), AccumulatingOptimizer(tf_keras.optimizers.SGD(1.0))
    table = toy.table.numpy()
    optimizer.accumulate([(tf.ones_like(toy.kernel), toy.kernel), (None, toy.table)], weight=2)
    optimizer.apply()
    np.testing.assert_array_equal(toy.table.numpy(), table)


def test_a_checkpoint_in_mid_window_goes_on_where_it_was(tmp_path: object) -> None:
    def start() -> tuple[Toy, AccumulatingOptimizer, tf.train.Checkpoint]:
        toy, optimizer = Toy(), AccumulatingOptimizer(adamw())
        accumulate(optimizer, toy, 1.0)
        return toy, optimizer, tf.train.Checkpoint(optimizer=optimizer, variables=toy.variables)

    toy, optimizer, checkpoint = start()
    path = checkpoint.write(f"{tmp_path}/ckpt")
    accumulate(optimizer, toy, 2.0)
    optimizer.apply()

    again, other, checkpoint = start()
    accumulate(other, again, 7.0)  # to be forgotten
    checkpoint.read(path).assert_consumed()
    accumulate(other, again, 2.0)
    other.apply()
    np.testing.assert_array_equal(weights(again), weights(toy))


def test_misuse_says_what_to_do() -> None:
    optimizer = AccumulatingOptimizer(adamw())
    with pytest.raises(ValueError, match="without accumulate"):
        optimizer.apply()
    accumulate(optimizer, Toy(), 1.0)
    with pytest.raises(ValueError, match="other variables"):
        accumulate(optimizer, Toy(), 1.0)
