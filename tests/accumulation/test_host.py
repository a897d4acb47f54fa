"""An accumulating optimizer whose state is in host memory, outside of the trainer."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from bertaccum import accumulate_gradients
from bertaccum.accumulation.adamw import InPlaceAdamW
from bertaccum.accumulation.offload import host_memory
from bertaccum.accumulation.offload.host_memory import HostArray
from bertaccum.accumulation.window import WindowOptimizer


def fitted(offload: bool) -> list[np.ndarray]:
    """Return the weights after `model.fit`, which applies a last window of one micro-step."""
    tf_keras.utils.set_random_seed(0)
    layers = [
        tf_keras.layers.Embedding(20, 4, input_length=3),
        tf_keras.layers.Flatten(),
        tf_keras.layers.Dense(2),
    ]
    model = accumulate_gradients(tf_keras.Sequential(layers), 4)
    model.compile(InPlaceAdamW(0.01), tf_keras.losses.MeanSquaredError())
    rng = np.random.default_rng(0)
    features, targets = rng.integers(0, 20, (72, 3)), rng.normal(size=(72, 2))
    if offload:
        model.optimizer.window.offload(moments=True, sums=True)
    model.fit(features, targets, batch_size=8, epochs=2, verbose=0)
    return model.get_weights()


def test_fit_gives_the_same_weights() -> None:
    for one, other in zip(fitted(True), fitted(False), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("moments", [False, True])
def test_any_state_of_an_optimizer_moves(moments: bool) -> None:
    def trained(move: bool) -> list[np.ndarray]:
        variables = [tf.Variable([1.0, 2.0]), tf.Variable(3.0)]
        optimizer = WindowOptimizer(InPlaceAdamW(0.1))
        for step in range(6):
            if move and step == 2:
                optimizer.offload(moments, sums=True)
            pairs = [(tf.ones_like(v) * (step + 1.0), v) for v in variables]
            optimizer.accumulate(pairs, 1.0)
            if step % 2:
                optimizer.apply()
        return [v.numpy() for v in variables]

    for one, other in zip(trained(True), trained(False), strict=True):
        np.testing.assert_array_equal(one, other)


def test_pieces_cover_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_PIECE_BYTES", 50)
    array = HostArray(np.arange(30, dtype=np.float32).reshape(10, 3))
    pieces = host_memory.pieces(array.shape, array.dtype)
    assert [piece.stop - piece.start for piece in pieces] == [4, 4, 2]
    read = tf.concat([array.read(piece) for piece in pieces], axis=0)
    np.testing.assert_array_equal(read, array.numpy())
    for piece in pieces:
        array.write(piece, -array.read(piece))
    np.testing.assert_array_equal(tf.convert_to_tensor(array), -read)
    assert host_memory.pieces(tf.TensorShape([]), tf.float32) == [...]
    assert host_memory.pieces(tf.TensorShape([3, 0]), tf.float32) == [...]
