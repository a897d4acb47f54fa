"""Tests that our transformer layer and encoder match those of tf-models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from official.nlp.modeling import models, networks

from bertaccum.bert.dropout import draw_masks, dropout_masks
from bertaccum.bert.encoder import build_encoder, random_initializer, set_recompute
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.layers import gelu
from bertaccum.bert.packed_tokens import encoder_inputs
from bertaccum.bert.transformer_layer import TransformerLayer
from bertaccum.tasks.head import build_classifier, load_run

CONFIG = EncoderConfig(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    vocab_size=20,
    max_position_embeddings=8,
)
TOKENS = np.array([[2, 5, 3, 7], [2, 9, 3, 0]], np.int32)
INPUTS = encoder_inputs(TOKENS, (TOKENS > 0).astype(np.int32)) | {"input_type_ids": TOKENS % 2}


@contextmanager
def precision(policy: str) -> Iterator[None]:
    tf_keras.mixed_precision.set_global_policy(policy)
    try:
        yield
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")


def plain_gelu(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.gelu(x, approximate=True)


@tf.autograph.experimental.do_not_convert
def build_theirs(first_token_only: bool = False) -> networks.BertEncoder:
    """Return the encoder of tf-models, without any of our layers."""
    return networks.BertEncoder(
        vocab_size=CONFIG.vocab_size,
        hidden_size=CONFIG.hidden_size,
        num_layers=CONFIG.num_hidden_layers,
        num_attention_heads=CONFIG.num_attention_heads,
        max_sequence_length=CONFIG.max_position_embeddings,
        type_vocab_size=CONFIG.type_vocab_size,
        inner_dim=CONFIG.intermediate_size,
        inner_activation=plain_gelu,
        output_dropout=0.0,
        attention_dropout=0.0,
        initializer=random_initializer(CONFIG),
        output_range=1 if first_token_only else None,
        dict_outputs=True,
    )


def their_classifier(encoder: networks.BertEncoder) -> models.BertClassifier:
    return models.BertClassifier(
        encoder, 2, initializer=random_initializer(CONFIG), dropout_rate=0.0
    )


def scattered(model: tf_keras.Model) -> tf_keras.Model:
    rng = np.random.default_rng(0)
    model.set_weights([w + rng.normal(0, 0.1, w.shape) for w in model.get_weights()])
    return model


def outputs_and_gradients(encoder: tf_keras.Model, training: bool) -> list[np.ndarray]:
    @tf.function(autograph=False)
    def run() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            found = encoder(INPUTS, training=training)
            parts = [found["sequence_output"], found["pooled_output"]]
            loss = tf.add_n([tf.reduce_sum(tf.sin(tf.cast(y, tf.float32))) for y in parts])
        gradients = tape.gradient(loss, encoder.trainable_variables)
        return [tf.cast(tf.convert_to_tensor(t), tf.float64) for t in parts + gradients]

    return [value.numpy() for value in run()]


# Each precision, each kind of output, and inference as well as training.
@pytest.mark.parametrize(
    ("policy", "bound", "first_token_only", "training"),
    [
        ("float32", 1e-6, False, True),
        ("mixed_bfloat16", 0.05, True, False),
        ("mixed_float16", 5e-3, False, True),
    ],
)
def test_outputs_and_gradients_match_tf_models(
    policy: str, bound: float, first_token_only: bool, training: bool
) -> None:
    with precision(policy):
        theirs = scattered(build_theirs(first_token_only))
        ours = build_encoder(CONFIG, output_tokens="first" if first_token_only else "all")
    ours.set_weights(theirs.get_weights())
    expected = outputs_and_gradients(theirs, training)
    scale = max(abs(values).max() for values in expected)
    for one, other in zip(outputs_and_gradients(ours, training), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=bound * scale)


def test_initial_weights_match_tf_models() -> None:
    """A seed must give the same run as tf-models' own layer."""
    weights = []
    for build in (build_theirs, partial(build_encoder, CONFIG)):
        tf_keras.utils.set_random_seed(3)
        weights.append(build().get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_checkpoint_names_match_tf_models(tmp_path: Path) -> None:
    """Models that tf-models saved must load, and ours in tf-models."""
    theirs = scattered(their_classifier(build_theirs()))
    ours = build_classifier(build_encoder(CONFIG), CONFIG, 2)
    tf.train.Checkpoint(model=theirs).write(str(tmp_path / "best"))
    load_run(ours, tmp_path / "best")
    for one, other in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_array_equal(one, other)

    def variables(model: tf_keras.Model) -> list[str]:
        """Return the variable names of a training checkpoint in order; see `Checkpoints`."""
        optimizer = tf_keras.optimizers.AdamW()
        optimizer.build(model.trainable_variables)
        whole = tf.train.Checkpoint(model=model, optimizer=optimizer)
        parts = tf.train.TrackableView(whole).descendants()
        return [part.name for part in parts if isinstance(part, tf.Variable)]

    def paths(model: tf_keras.Model, name: str) -> set[str]:
        tf.train.Checkpoint(model=model).write(str(tmp_path / name))
        return set(tf.train.load_checkpoint(str(tmp_path / name)).get_variable_to_shape_map())

    assert variables(ours) == variables(theirs)
    assert paths(ours, "ours") == paths(theirs, "theirs")


def test_scaffold_builds_layers_from_the_class() -> None:
    """As tf-models documents, `hidden_cls` is the class and `hidden_cfg` its arguments."""
    encoder = networks.EncoderScaffold(
        pooled_output_dim=16,
        embedding_cfg={
            "vocab_size": 20,
            "type_vocab_size": 2,
            "hidden_size": 16,
            "max_seq_length": 8,
            "initializer": random_initializer(CONFIG),
            "dropout_rate": 0.0,
        },
        num_hidden_instances=2,
        hidden_cls=TransformerLayer,
        hidden_cfg={
            "config": CONFIG,
            "dropout": 0.0,
            "initializer": partial(random_initializer, CONFIG),
        },
        dict_outputs=True,
    )
    ours = scattered(build_encoder(CONFIG))
    encoder.set_weights(ours.get_weights())
    for key in ("sequence_output", "pooled_output"):
        np.testing.assert_allclose(encoder(INPUTS)[key], ours(INPUTS)[key], rtol=0, atol=1e-6)


def plain_attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    bias: tf.Tensor,
    keep: tf.Tensor | None,
    scale: float,
) -> tf.Tensor:
    scores = tf.einsum("bqhs,bkhs->bhqk", query, key) / query.shape[-1] ** 0.5
    weights = tf.nn.softmax(scores + bias)
    if keep is not None:
        weights = tf.where(keep, weights * scale, 0)
    return tf.einsum("bhqk,bkhs->bqhs", weights, value)


def plain_norm(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, epsilon: float) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, epsilon)


def layer_with(**arguments: Any) -> TransformerLayer:
    dimensions = EncoderConfig(16, 2, 2, 32, max_position_embeddings=16)
    return TransformerLayer(dimensions, dropout=0.3, **arguments)


def of_layer(layer: TransformerLayer, weights: list[np.ndarray] | None) -> list[np.ndarray]:
    """Return the output and gradients of a layer in training, with seeded masks."""
    x = tf.constant(np.random.default_rng(1).normal(size=[2, 5, 16]), tf.float32)
    mask = tf.tile(tf.sequence_mask([5, 3], 5, tf.float32)[:, tf.newaxis], [1, 5, 1])
    layer([x, mask], training=False)
    layer.set_weights(weights or layer.get_weights())

    @tf.function(autograph=False)
    def run() -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            with dropout_masks(draw_masks(layer, tf.constant([1, 2]), tf.constant(2))):
                y = layer([x, mask], training=True)
            loss = tf.reduce_sum(tf.sin(y))
        return y, tape.gradient(loss, [x, *layer.trainable_variables])

    y, gradients = run()
    return [y.numpy(), *(gradient.numpy() for gradient in gradients)]


@cache
def of_plain_layer() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the weights of a layer, and its output and gradients."""
    layer = layer_with()
    found = of_layer(layer, None)
    return layer.get_weights(), found


PARTS = {
    "transformer_layer.attention": plain_attention,
    "layers.dense": lambda rows, kernel, bias: tf.matmul(rows, kernel) + bias,
    "layers.layer_norm": plain_norm,
}


@pytest.mark.parametrize("part", PARTS)
def test_each_part_matches_tensorflow(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients equal those of TensorFlow's own functions."""
    weights, expected = of_plain_layer()
    calls: list[str] = []

    def plain(*arguments: Any) -> tf.Tensor:
        calls.append(part)
        return PARTS[part](*arguments)

    monkeypatch.setattr(f"bertaccum.bert.{part}", plain)
    found = of_layer(layer_with(), weights)
    assert calls
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("activation", "recompute"), [(gelu, True), (plain_gelu, False)])
def test_activation_and_recomputation_change_nothing(activation: Any, recompute: bool) -> None:
    weights, expected = of_plain_layer()
    other = layer_with(activation=activation)
    other.recompute = recompute
    for one, two in zip(of_layer(other, weights), expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=2e-5)


def test_masks_depend_on_the_site() -> None:
    weights, expected = of_plain_layer()  # Its first site is 0.
    assert np.abs(of_layer(layer_with(first_site=3), weights)[0] - expected[0]).max() > 0.1


def test_set_recompute_affects_functions_traced_afterwards() -> None:
    encoder = build_encoder(CONFIG)
    assert not any(layer.recompute for layer in encoder.hidden_layers)

    def recomputed() -> bool:
        """Return whether the graph computes the softmax of a layer more than once."""

        def run(token_ids: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                inputs = encoder_inputs(token_ids, tf.ones_like(token_ids))
                loss = tf.reduce_sum(encoder(inputs)["pooled_output"])
            return tape.gradient(loss, encoder.trainable_variables)

        graph = (
            tf.function(run, autograph=False)
            .get_concrete_function(tf.TensorSpec([2, 4], tf.int32))
            .graph
        )
        return sum(op.type == "Softmax" for op in graph.get_operations()) > 2

    for wanted in (False, True, False):
        set_recompute(encoder, wanted)
        assert recomputed() == wanted
