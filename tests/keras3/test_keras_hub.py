"""A BERT classifier of KerasHub makes the same updates from micro-batches."""

from __future__ import annotations

import warnings

import keras
import keras_hub
import numpy as np
import pytest

from bertaccum.keras3 import accumulate_gradients


def classifier() -> keras.Model:
    keras.utils.set_random_seed(0)
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=100,
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        dropout=0.0,
        max_sequence_length=32,
    )
    return keras_hub.models.BertTextClassifier(
        backbone, num_classes=2, preprocessor=None, dropout=0.0
    )


@pytest.mark.slow
def test_same_updates_from_micro_batches() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(4, 33, (96, 1))
    masks = (np.arange(32) < lengths).astype("int32")
    features = {
        "token_ids": rng.integers(1, 100, (96, 32)) * masks,
        "segment_ids": np.zeros_like(masks),
        "padding_mask": masks,
    }
    labels = rng.integers(0, 2, 96)

    def trained(steps: int) -> keras.Model:
        model = classifier()
        if steps > 1:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                accumulate_gradients(model, steps)
        schedule = keras.optimizers.schedules.PolynomialDecay(1e-3, 9, 0.0)
        model.compile(
            keras.optimizers.AdamW(schedule, weight_decay=0.01, global_clipnorm=1.0, epsilon=1e-6),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            run_eagerly=steps == 1,
        )
        batch = 32 // steps
        model.fit(features, labels, batch_size=batch, epochs=3, shuffle=False, verbose=0)
        return model

    start, whole, ours = classifier(), trained(1), trained(4)
    assert int(ours.optimizer.iterations) == int(whole.optimizer.iterations) == 9
    moved, differs = (
        max(
            float(np.abs(a - b).max())
            for a, b in zip(x.get_weights(), y.get_weights(), strict=True)
        )
        for x, y in ((start, whole), (ours, whole))
    )
    assert moved > 1e-3 and differs < 1e-6, (moved, differs)
