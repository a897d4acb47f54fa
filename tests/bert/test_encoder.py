"""The encoder and classifier are built as configured."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf
import tf_keras

from bertaccum.bert.dropout import ExampleDropout
from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.packed_tokens import encoder_inputs
from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.tasks.head import build_classifier

SMALL = dataclasses.replace(PRESET_CONFIGS["bert-tiny"], vocab_size=10)


def test_dropout_is_at_every_site_of_bert() -> None:
    encoder = build_encoder(SMALL, dropout=0.25)
    model = build_classifier(encoder, SMALL, 2, dropout=0.5)
    rates = [p.rate for p in encoder.submodules if isinstance(p, tf_keras.layers.Dropout)]
    # One dropout follows the embeddings; each of the two layers has three, on the attention
    # weights, the attention output and the feed-forward output. BERT has no other.
    assert rates == [0.25] * (1 + 2 * 3)
    # google-research/bert has one dropout on the pooled output; BertClassifier would have two.
    dropouts = [p.rate for p in model.submodules if isinstance(p, tf_keras.layers.Dropout)]
    assert sorted(rate for rate in dropouts if rate) == [*rates, 0.5]


def test_dropout_sites_never_change() -> None:
    """Golden values: an interrupted run must resume with the same masks, which depend on sites."""
    encoder = build_encoder(SMALL, dropout=0.1)
    model = build_classifier(encoder, SMALL, 2, dropout=0.1)
    dropouts = [p for p in model.submodules if isinstance(p, ExampleDropout)]
    assert {d.width for d in dropouts} == {512}
    assert sorted(d.site for d in dropouts) == [*range(8)]
    assert model.classifier.dropout.site == 7
    for number, layer in enumerate(encoder.hidden_layers):
        parts = (
            layer._attention_layer._dropout_layer,
            layer._attention_dropout,
            layer._output_dropout,
        )
        assert [part.site - 3 * number for part in parts] == [1, 2, 3]


def test_last_layer_may_compute_only_the_first_token() -> None:
    """The pooled output and its gradient stay the same."""
    tokens = np.array([[2, 5, 3, 7], [2, 9, 3, 0]], np.int32)
    inputs = encoder_inputs(tokens, (tokens > 0).astype(np.int32))
    whole = build_encoder(SMALL)
    first = build_encoder(SMALL, output_tokens="first")
    first.set_weights(whole.get_weights())

    def outputs(encoder: tf_keras.Model) -> list[np.ndarray]:
        with tf.GradientTape() as tape:
            pooled = encoder(inputs)["pooled_output"]
            loss = tf.reduce_sum(tf.sin(3 * pooled))
        gradients = tape.gradient(loss, encoder.trainable_variables)
        return [pooled.numpy(), *(tf.convert_to_tensor(g).numpy() for g in gradients)]

    assert first(inputs)["sequence_output"].shape == (2, 1, SMALL.hidden_size)
    expected = outputs(whole)
    bound = 1e-6 * max(abs(gradient).max() for gradient in expected)
    for one, other in zip(outputs(first), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=bound)


def test_every_token_is_in_the_first_segment() -> None:
    tokens = np.array([[2, 5, 3]], np.int32)
    inputs = encoder_inputs(tokens, np.ones_like(tokens))
    assert not np.any(inputs["input_type_ids"])


def test_single_segment_is_that_of_every_token() -> None:
    """transformers gives such a model no segments, so pairs are in the first one."""
    encoder = build_encoder(dataclasses.replace(SMALL, type_vocab_size=1))
    tokens, second = np.array([[2, 5, 3, 7, 3]], np.int32), np.array([[0, 0, 0, 1, 1]], np.int32)

    def outputs(segments: np.ndarray | None) -> np.ndarray:
        inputs = encoder_inputs(tokens, np.ones_like(tokens), segments)
        return encoder(inputs)["sequence_output"].numpy()

    single = outputs(None)
    np.testing.assert_array_equal(outputs(second), single)
    table = encoder.get_layer("type_embeddings").embeddings
    table.assign_add(tf.one_hot([3], SMALL.hidden_size))
    assert np.abs(outputs(second) - single).max() > 0.01


def test_presets_have_the_released_sizes() -> None:
    """Numbers of parameters, in millions, are from Google's page on the released models."""
    released = {"bert-tiny": 4.4, "bert-mini": 11.3, "bert-small": 29.1, "bert-medium": 41.7}
    released |= {"bert-base": 110.1, "bert-large": 336}
    for name, millions in released.items():
        assert abs(PRESET_CONFIGS[name].parameters / 1e6 - millions) < 0.02 * millions, name
