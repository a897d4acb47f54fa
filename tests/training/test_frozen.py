"""Frozen weights keep their values, and the others train as if only they were variables."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from small import CLASSIFICATION, TINY
from test_step import CONFIG

from bertaccum.bert.model_source import ModelSource
from bertaccum.data.token_store import TokenStore
from bertaccum.data.windows import make_window, window_rows
from bertaccum.options.commands import TrainConfig
from bertaccum.tasks import forward
from bertaccum.training.recipe import build_model, make_optimizer, make_schedule
from bertaccum.training.step import make_update

UPDATES = 2
HEAD = r"pooler_transform|sentence_prediction"
TRAINED = {
    (None, "embeddings"): rf"transformer/|{HEAD}",
    (1, "none"): rf"layer_1|{HEAD}",
    (0, "embeddings"): HEAD,
    (2, "none"): rf"transformer/|{HEAD}",
}


def model_of(**options: object) -> tuple[TrainConfig, tf_keras.Model]:
    config = TrainConfig(**{**vars(CONFIG), **options})
    return config, build_model(config, ModelSource("tiny", TINY, None, None), 2)


def trained_weights(store: TokenStore, trained: str) -> dict[str, np.ndarray]:
    """Return the weights that plain tf_keras trains if it gets only some of the variables."""
    config, model = model_of()
    variables = [v for v in model.trainable_variables if re.search(trained, v.name)]
    optimizer = tf_keras.optimizers.AdamW(
        0.0, weight_decay=config.weight_decay, beta_2=config.adam_beta2, epsilon=1e-8
    )
    optimizer.exclude_from_weight_decay(
        [v for v in variables if re.search("bias|gamma|beta", v.name)]
    )
    for number in range(UPDATES):
        _, rows = window_rows(number, len(store), config.target_batch, config.seed)
        examples = [store.token_ids[store.offsets[r] : store.offsets[r + 1]] for r in rows]
        with tf.GradientTape() as tape:
            logits = forward.logits_of(model, tf.ragged.constant(examples, tf.int32))
            loss = tf.reduce_mean(CLASSIFICATION.losses(logits, tf.constant(store.labels[rows])))
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), config.clip_norm)
        optimizer.learning_rate = float(make_schedule(config, UPDATES)(number))
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return {v.name: v.numpy() for v in model.variables}


@pytest.mark.parametrize(("train_layers", "freeze"), TRAINED)
def test_options_decide_which_weights_are_trained(train_layers: int | None, freeze: str) -> None:
    _, model = model_of(train_layers=train_layers, freeze=freeze)
    trained = re.compile(TRAINED[train_layers, freeze])
    for variable in model.variables:
        own = any(variable is one for one in model.trainable_variables)
        assert own == bool(trained.search(variable.name)), variable.name


@pytest.mark.parametrize(("train_layers", "freeze"), [(1, "none"), (0, "embeddings")])
def test_frozen_weights_do_not_change(
    store: TokenStore, train_layers: int | None, freeze: str
) -> None:
    config, model = model_of(train_layers=train_layers, freeze=freeze, offload="all")
    before = {v.name: v.numpy() for v in model.variables}
    optimizer = make_optimizer(config, UPDATES, 2)
    update = make_update(CLASSIFICATION, model, optimizer, 0, True)
    for number in range(UPDATES):
        _, rows = window_rows(number, len(store), config.target_batch, config.seed)
        update(make_window(store, rows, 8))
    trained = TRAINED[train_layers, freeze]
    wanted = trained_weights(store, trained)
    for variable in model.variables:
        name, found = variable.name, variable.numpy()
        np.testing.assert_allclose(found, wanted[name], rtol=0, atol=1e-6, err_msg=name)
        assert np.array_equal(found, before[name]) != bool(re.search(trained, name)), name
    # Frozen weights have neither moments nor accumulators.
    count = sum(bool(re.search(trained, name)) for name in before)
    assert len(optimizer.accumulators) == len(model.trainable_variables) == count
