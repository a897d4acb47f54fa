"""Sketches of gradients have the inner products of the gradients, on the device and on the host."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from bertaccum.accumulation.gradient_products import GradientProducts, weight_of_last
from bertaccum.accumulation.offload.host_memory import HostArray
from bertaccum.accumulation.window import WindowOptimizer

SHAPES = [(300, 100), (7,), (), (20, 30, 40)]


def gradients(seed: int) -> list[np.ndarray]:
    """Return correlated gradients of low rank, as those of dense layers are."""
    rng, common = np.random.default_rng(seed), np.random.default_rng(0)
    drawn = [rng.normal(size=s) + common.normal(size=s) for s in SHAPES]
    drawn[0] = abs(rng.normal(size=(300, 1))) * common.normal(size=(1, 100))
    return [np.asarray(one, np.float32) for one in drawn]


def observe(products: GradientProducts, given: list[object], factor: float = 0.5) -> None:
    products(dict(enumerate(given)), tf.constant(factor, tf.float64), tf.constant(True))


def test_products_match_the_gradients() -> None:
    products = GradientProducts([0, 1, 1, 0])
    seen: list[np.ndarray] = []
    for seed in range(20):
        given = gradients(seed)
        observe(products, [tf.constant(one) for one in given])
        flat = [0.5 * np.concatenate([given[i].ravel() for i in own]) for own in ([0, 3], [1, 2])]
        norms = np.array([np.linalg.norm(one) for one in flat])
        np.testing.assert_allclose(products.square, norms**2, rtol=0.06)
        if not seen:
            assert np.isnan(products.product).all()
        else:
            weights = 0.9 ** np.arange(len(seen))[::-1]
            for group, own in enumerate(flat):
                mean = np.average([one[group] for one in seen], axis=0, weights=weights)
                scale = norms[group] * np.linalg.norm(mean)
                assert abs(products.product[group] - own @ mean) < 0.06 * scale
        seen.append(flat)


def test_small_groups_are_exact() -> None:
    products = GradientProducts([0])
    for given in (np.arange(5.0, dtype=np.float32), np.ones(5, np.float32)):
        observe(products, [tf.constant(given)], factor=1.0)
    assert (products.square[0], products.product[0]) == (5, 10)


def test_host_arrays_have_the_same_sketch() -> None:
    values = []
    for kind in (tf.constant, HostArray):
        products = GradientProducts([0, 0, 1, 1])
        for seed in range(2):
            observe(products, [kind(one) for one in gradients(seed)])
        values.append(np.stack([products.square, products.product]))
    np.testing.assert_allclose(*values, rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_windows_that_are_not_applied_leave_no_trace(bad: float) -> None:
    products = GradientProducts([0])
    observe(products, [tf.ones([3])])
    before = [kept.numpy() for kept in products.kept]
    observe(products, [tf.constant([1.0, bad, 1.0])])
    products({0: tf.ones([3])}, tf.constant(1.0, tf.float64), tf.constant(False))
    for kept, old in zip(products.kept, before, strict=True):
        np.testing.assert_array_equal(kept, old)


def test_weight_of_last() -> None:
    weights = 0.9 ** np.arange(7)
    for last in range(8):
        assert weight_of_last(last, 7) == pytest.approx(weights[:last].sum() / weights.sum())


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8), (16, 16), (5, 20, 7), (32,)])
def test_optimizer_shows_the_mean_gradient_of_the_whole_window(sizes: tuple[int, ...]) -> None:
    variable = tf.Variable(tf.zeros([40]))
    optimizer = WindowOptimizer(tf_keras.optimizers.SGD(0.0))
    optimizer.build([variable])
    optimizer.observer = GradientProducts([0])
    examples = np.random.default_rng(0).normal(size=[2, 32, 40]).astype(np.float32)
    for window in examples:
        for part in np.split(window, np.cumsum(sizes)[:-1]):
            optimizer.accumulate([(tf.constant(part.sum(axis=0)), variable)], weight=len(part))
        optimizer.apply()
    first, second = examples.mean(axis=1)
    found = [float(optimizer.observer.square[0]), float(optimizer.observer.product[0])]
    np.testing.assert_allclose(found, [second @ second, first @ second], rtol=1e-5)
