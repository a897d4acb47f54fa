"""The estimate of the noise scale is unbiased, and does not depend on the micro-batches."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import tf_keras
from small import CLASSIFICATION, ONE_LAYER

from bertaccum.bert.encoder import build_encoder
from bertaccum.data.token_store import TokenStore
from bertaccum.data.windows import make_window, window_rows
from bertaccum.options.commands import TrainConfig
from bertaccum.tasks.head import build_classifier
from bertaccum.training.noise_scale import (
    NoiseMeter,
    effective_size,
    gradient_products,
    noise_and_signal,
)
from bertaccum.training.recipe import make_optimizer
from bertaccum.training.step import make_update

Trained = tuple[list[dict[str, float]], np.ndarray]


def truth(examples: np.ndarray) -> tuple[float, float]:
    """Return the noise and the signal of single examples' gradients, [examples, size]."""
    mean = examples.mean(axis=0)
    return float(np.square(examples - mean).sum(axis=1).mean()), float(mean @ mean)


@pytest.mark.parametrize(("size", "same_epoch"), [(4, 1.0), (4, 0.0), (8, 0.5), (5, 1.0)])
def test_estimates_are_unbiased_for_windows_of_an_epoch(size: int, same_epoch: float) -> None:
    rng = np.random.default_rng(0)
    examples = rng.normal(size=[12, 3]) + 0.3
    order, other = rng.permuted(np.tile(np.arange(12), (2, 40_000, 1)), axis=2)
    owns, others = examples[order[:, :size]].mean(axis=1), examples[other[:, :5]].mean(axis=1)
    earlier = same_epoch * examples[order[:, size:]].mean(axis=1) + (1 - same_epoch) * others
    found = [
        noise_and_signal(own @ own, own @ before, size, 12, same_epoch)
        for own, before in zip(owns, earlier, strict=True)
    ]
    noise, signal = truth(examples)
    errors = np.std(found, axis=0) / np.sqrt(len(found))
    assert (abs(np.mean(found, axis=0) - [noise, signal]) < 4 * errors).all()
    assert (errors < 0.02 * np.array([noise, signal])).all()


def test_weights_reduce_the_number_of_examples_that_count() -> None:
    assert effective_size(np.ones(8)) == 8
    assert effective_size(np.array([3.0, 1.0, 0.0])) == pytest.approx(16 / 10)
    assert noise_and_signal(1.0, 0.5, effective_size(np.zeros(3)), 100, 1.0) is None
    # A window that contains the whole epoch says nothing about the noise.
    assert noise_and_signal(1.0, 1.0, 9, 9, 0.0) is None
    assert noise_and_signal(1.0, float("nan"), 9, 99, 1.0) is None


def windows(batch: int, updates: int, scale: float) -> list[dict[str, float]]:
    """Return the fields of `Updated` for random gradients with a known noise scale."""
    rng, size = np.random.default_rng(1), 400
    true = np.full(size, size**-0.5)
    meter, earlier, fields = NoiseMeter(10**6, batch), np.zeros(size), []
    meter.names = ["all"]
    for update in range(updates):
        noise = rng.normal(size=size) * np.sqrt(scale / size / batch)
        own = true + noise
        total = (1 - 0.9**update) / 0.1
        results = {
            "gradient_square": [own @ own],
            "gradient_product": [own @ earlier / total if update else np.nan],
            "applied": True,
        }
        fields.append(meter.add(update, np.ones(batch), results))
        earlier = 0.9 * earlier + own
    return fields


@pytest.mark.parametrize("batch", [4, 32, 500])
def test_known_noise_scale_is_found_within_200_updates(batch: int) -> None:
    first, *later = windows(batch, 200, scale=100.0)
    assert first == {}
    assert later[-1]["noise_scale"] == pytest.approx(100, rel=0.1)
    assert np.mean([one["gradient_signal"] for one in later]) == pytest.approx(1, rel=0.1)


def test_skipped_updates_and_negative_estimates_give_no_scale() -> None:
    meter = NoiseMeter(100, 10)
    meter.names = ["all"]
    results = {"gradient_square": [1.0], "gradient_product": [2.0], "applied": True}
    assert meter.add(1, np.ones(10), results | {"applied": False}) == {}
    assert meter.add(1, np.ones(10), {"applied": True}) == {}
    assert meter.add(1, np.ones(10), results)["noise_scale"] is None


@pytest.mark.parametrize(
    ("update", "same_epoch"), [(3, 0.0), (4, 1 / (1 + 0.9 + 0.81 + 0.729)), (5, 1.9 / 4.0951)]
)
def test_only_windows_since_the_start_of_the_epoch_are_in_the_same_epoch(
    update: int, same_epoch: float
) -> None:
    """An epoch has three windows. A window has 0.9 times the weight of the next one."""
    results = {"gradient_square": [3.0], "gradient_product": [2.0], "applied": True}
    found = NoiseMeter(30, 10, ["all"]).add(update, np.ones(10), results)
    expected = noise_and_signal(3.0, 2.0, 10, 30, same_epoch)
    assert (found["gradient_noise"], found["gradient_signal"]) == pytest.approx(expected)


def test_groups_add_up() -> None:
    meter = NoiseMeter(1000, 10)
    meter.names = ["encoder", "head"]
    squares, products = [3.0, 1.0], [2.0, 0.5]
    results = {"gradient_square": squares, "gradient_product": products, "applied": True}
    found = meter.add(1, np.ones(10), results)
    own = [noise_and_signal(*one, 10, 1000, 1.0) for one in zip(squares, products, strict=True)]
    assert found["gradient_noise"] == pytest.approx(own[0][0] + own[1][0])
    assert found["noise_scales"]["head"] == pytest.approx(own[1][0] / own[1][1])
    assert list(found["noise_scales"]) == ["encoder", "head"]


@pytest.fixture(scope="module")
def trained(store: TokenStore) -> Callable[..., Trained]:
    """Return `train` for the store, which trains only once with the same options."""
    return functools.cache(functools.partial(train, store))


def train(
    store: TokenStore, micro_batch: int, offload: str = "none", measured: bool = True
) -> Trained:
    """Return the fields of six updates, and the weights after them."""
    tf_keras.utils.set_random_seed(1)
    model = build_classifier(build_encoder(ONE_LAYER, 0.1), ONE_LAYER, 2, 0.1)
    config = TrainConfig(learning_rate=1e-3, offload=offload)
    optimizer = make_optimizer(config, 6, 1 if micro_batch == 32 else 2)
    optimizer.build(model.trainable_variables)
    meter, fields = NoiseMeter(len(store), 32), []
    if measured:
        products, meter.names = gradient_products(model.trainable_variables, grouped=True)
        optimizer.observer = products
    update = make_update(CLASSIFICATION, model, optimizer, 0, accumulate=micro_batch < 32)
    for number in range(6):
        _, rows = window_rows(number, len(store), 32, 0)
        results = update(make_window(store, rows, micro_batch))
        fields.append(meter.add(number, store.weights[rows], results))
    return fields, np.concatenate([w.numpy().ravel() for w in model.trainable_variables])


@pytest.mark.parametrize("options", [(8,), (16, "all")])
def test_estimates_do_not_depend_on_micro_batches_or_offloading(
    trained: Callable[..., Trained], options: tuple[int | str, ...]
) -> None:
    (expected, _), (found, _) = trained(32), trained(*options)
    assert found[0] == expected[0] == {} and len(found[5]) == 4
    for one, other in zip(found[1:], expected[1:], strict=True):
        for name in ("gradient_noise", "gradient_signal", "noise_scale"):
            assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name
        assert list(one["noise_scales"]) == ["embeddings", "encoder", "head"]


def test_estimates_do_not_change_the_updates(trained: Callable[..., Trained]) -> None:
    (fields, weights), (none, same) = trained(8), trained(8, measured=False)
    np.testing.assert_array_equal(weights, same)
    assert fields[5] and not any(none)
