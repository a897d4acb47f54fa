"""The last layer may compute only given positions; their outputs and gradients stay the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from small import TINY, scatter

from bertaccum.bert.dropout import draw_masks, dropout_masks
from bertaccum.bert.encoder import build_encoder, set_recompute
from bertaccum.bert.packed_tokens import encoder_inputs, first_positions
from bertaccum.tasks.head import build_tagger

CONFIG = dataclasses.replace(TINY, vocab_size=20)
TOKENS = np.array([[2, 5, 3, 7, 4], [2, 9, 3, 0, 0], [2, 6, 8, 3, 0]], np.int32)
POSITIONS = np.array([[3, 1, 4], [2, 0, 1], [1, 1, 3]], np.int32)  # one of them twice


def inputs(positions: np.ndarray | None = None) -> dict[str, tf.Tensor]:
    given = encoder_inputs(TOKENS, (TOKENS > 0).astype(np.int32), TOKENS % 2, positions)
    return {name: tf.constant(value) for name, value in given.items()}


def outputs_and_gradients(encoder: tf_keras.Model, given: bool, compile: bool) -> list[np.ndarray]:
    @tf.function(jit_compile=compile, autograph=False)
    def run() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            found = encoder(inputs(POSITIONS if given else None), training=True)["sequence_output"]
            found = found if given else tf.gather(found, POSITIONS, batch_dims=1)
            loss = tf.reduce_sum(tf.sin(3 * found))
        weights = [w for w in encoder.trainable_variables if "pooler_transform" not in w.name]
        return [found, *map(tf.convert_to_tensor, tape.gradient(loss, weights))]

    return [value.numpy() for value in run()]


@pytest.mark.parametrize(
    ("policy", "bound", "recompute", "compile"),
    [
        ("float32", 1e-6, True, True),
        ("mixed_bfloat16", 0.02, True, False),
        ("mixed_float16", 2e-3, False, False),
    ],
)
def test_outputs_and_gradients_are_those_of_the_whole_layer(
    policy: str, bound: float, recompute: bool, compile: bool
) -> None:
    tf_keras.mixed_precision.set_global_policy(policy)
    try:
        whole = scatter(build_encoder(CONFIG))
        part = build_encoder(CONFIG, output_tokens="positions")
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")
    part.set_weights(whole.get_weights())
    set_recompute(part, recompute)
    expected = outputs_and_gradients(whole, False, False)
    scale = max(abs(values).max() for values in expected)
    for one, other in zip(outputs_and_gradients(part, True, compile), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=bound * scale)


def test_masks_do_not_depend_on_the_number_of_positions() -> None:
    encoder = scatter(build_encoder(CONFIG, 0.5, "positions"))
    masks = draw_masks(encoder, tf.constant([3, 4]), tf.constant(3))

    def outputs(count: int) -> np.ndarray:
        with dropout_masks(masks):
            given = inputs(POSITIONS[:, :count])
            return encoder(given, training=True)["sequence_output"].numpy()

    whole = outputs(3)
    np.testing.assert_allclose(outputs(2), whole[:, :2], rtol=0, atol=1e-6)
    # Outputs of the same position have masks of their own.
    assert abs(whole[2, 0] - whole[2, 1]).max() > 0.1


def test_chosen_tokens_come_first_in_their_order() -> None:
    chosen = tf.constant([[False, True, False, True], [False] * 4, [False, False, True, False]])
    for count in (2, 4):
        found = first_positions(chosen, count).numpy().tolist()
        assert found == [row[:count] for row in ([1, 3, 0, 2], [0, 1, 2, 3], [2, 0, 1, 3])]


def test_checkpoints_do_not_depend_on_the_output_tokens(tmp_path: Path) -> None:
    found = []
    for output_tokens in ("all", "positions"):
        model = build_tagger(build_encoder(CONFIG, 0.0, output_tokens), CONFIG, 3)
        whole = tf.train.Checkpoint(model=model)
        parts = tf.train.TrackableView(whole).descendants()
        names = [part.name for part in parts if isinstance(part, tf.Variable)]
        path = whole.write(str(tmp_path / output_tokens))
        found.append((names, tf.train.load_checkpoint(path).get_variable_to_shape_map()))
    assert found[0] == found[1]
