"""Rows and tokens that fill micro-batches up to a shape do not change the update."""

from __future__ import annotations

import numpy as np
import pytest
import tf_keras
from small import CLASSIFICATION, ONE_LAYER

from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.packed_tokens import example_shapes
from bertaccum.bert.tokenization import NEXT_PASSAGE
from bertaccum.data.token_store import TokenStore
from bertaccum.data.window_cuts import Shapes, make_cut
from bertaccum.data.windows import make_window
from bertaccum.options.commands import TrainConfig
from bertaccum.tasks.head import build_classifier
from bertaccum.training.recipe import make_optimizer
from bertaccum.training.step import make_update

CONFIG = TrainConfig(learning_rate=5e-4, target_batch=12, warmup_fraction=0.0)
LENGTH, UPDATES = 10, 2


def weighted_store(most: int) -> TokenStore:
    """Return random texts of up to `most` passages, with different weights."""
    rng = np.random.default_rng(0)
    texts = []
    for number in range(UPDATES * CONFIG.target_batch):
        lengths = [LENGTH] * (number % most) + [int(rng.integers(3, LENGTH + 1))]
        texts.append(rng.integers(1, 50, sum(lengths)).astype(np.int32))
        texts[-1][np.cumsum(lengths)[:-1]] += NEXT_PASSAGE
    token_ids, offsets = np.concatenate(texts), np.cumsum([0, *map(len, texts)])
    labels = rng.integers(0, 2, len(texts)).astype(np.int32)
    weights = rng.choice([0.0, 0.5, 2.0], len(texts)).astype(np.float32)
    return TokenStore(token_ids, offsets, example_shapes(token_ids, offsets), labels, weights)


def train(
    store: TokenStore, pool: str | None, allowed: Shapes, kind: str = "cost"
) -> tuple[np.ndarray, list[float]]:
    """Return the weights after some updates, and their losses."""
    tf_keras.utils.set_random_seed(1)
    model = build_classifier(build_encoder(ONE_LAYER, 0.1), ONE_LAYER, 2, 0.1, pool)
    optimizer = make_optimizer(CONFIG, UPDATES + 1, accumulation_steps=3)
    update = make_update(CLASSIFICATION, model, optimizer, 0, accumulate=True)
    cut, losses = make_cut(kind, store.largest, allowed=allowed), []
    for rows in np.arange(len(store)).reshape(UPDATES, -1):
        losses.append(update(make_window(store, rows, 4, cut, allowed=allowed))["loss"])
    return np.concatenate([w.numpy().ravel() for w in model.trainable_variables]), losses


# All shapes together hold the largest example. Micro-batches are equal in cost or in count.
@pytest.mark.parametrize(
    ("most", "pool", "allowed", "kind"),
    [(1, None, ((4, 5), (6, 16)), "count"), (3, "mean", ((4, 12), (9, 16)), "cost")],
)
def test_padding_changes_no_update(most: int, pool: str | None, allowed: Shapes, kind: str) -> None:
    store = weighted_store(most)
    assert store.largest == (most, LENGTH)
    weights, losses = train(store, pool, ())
    own, found = train(store, pool, allowed, kind)
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    np.testing.assert_allclose(own, weights, rtol=0, atol=1e-6)
