"""The update as one `tf.function`: a loop over micro-batches, then one optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum.accumulation import AccumulatingOptimizer
from bertaccum.bert.classifier import encoder_inputs
from bertaccum.bert.dropout import Masks, draw_masks, dropout_masks
from bertaccum.memory.device import device_name
from bertaccum.training.windows import Window

# [tokens], [examples + 1], [examples], [micro_steps + 1]: the fields of a Window. Every
# size is open, so that all windows share one trace.
_SIGNATURE = [
    tf.TensorSpec([None], tf.int32),
    tf.TensorSpec([None], tf.int64),
    tf.TensorSpec([None], tf.int32),
    tf.TensorSpec([None], tf.int32),
]


def make_update(
    model: tf_keras.Model,
    optimizer: AccumulatingOptimizer,
    seed: int,
    accumulate: bool,
    stopped: tf.Variable | None = None,
    dropout_stream: str = "example",
) -> Callable[[Window], dict[str, Any]]:
    """Builds the update of `model` by `optimizer`.

    Args:
      model: a classifier of `encoder_inputs`.
      optimizer: what accumulates and applies.
      seed: of dropout, whose masks follow from it, the number of the update and each
        example's place in the window.
      accumulate: whether windows may have several micro-batches; if not, there are no
        accumulators.
      stopped: a bool on the host; when it turns True, no further micro-batch is begun, and
        nothing is applied.
      dropout_stream: what a mask of dropout belongs to, "example" or "micro-batch".

    Returns:
      A function of a Window that updates the weights and returns `loss` (mean over the
      window), `losses` (each micro-batch's share of it), `grad_norm` (of the mean gradient,
      before clipping), `learning_rate`, `finished` (False if it was stopped; sums are then
      left as they are) and `applied` (False, too, if a gradient was not finite and the window
      was dropped).
    """
    if stopped is None:
        with tf.device("CPU"):
            stopped = tf.Variable(False, trainable=False)
    _survive_lack_of_memory()
    run = _accumulated if accumulate else _single
    optimizer.build(model.trainable_variables)

    @tf.function(input_signature=_SIGNATURE)
    def update(
        token_ids: tf.Tensor, row_splits: tf.Tensor, labels: tf.Tensor, cuts: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        tokens = tf.RaggedTensor.from_row_splits(token_ids, row_splits, validate=False)
        own_seed = tf.stack([tf.constant(seed, tf.int64), optimizer.iterations.read_value()])
        masks = draw_masks(model, own_seed, tf.size(labels), dropout_stream)
        results = run(model, optimizer, tokens, labels, cuts, masks, stopped)
        return results | {
            "grad_norm": tf.identity(optimizer.gradient_norm),
            "learning_rate": tf.identity(optimizer.learning_rate),
        }

    def call(window: Window) -> dict[str, Any]:
        results = update(window.token_ids, window.row_splits, window.labels, window.cuts)
        return {name: value.numpy().tolist() for name, value in results.items()}

    return call


def make_predict(model: tf_keras.Model) -> Callable[[Window], Any]:
    """Builds the forward pass: a Window to logits [examples, classes], float32."""
    _survive_lack_of_memory()

    @tf.function(input_signature=_SIGNATURE[:2])
    def predict(token_ids: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
        tokens = tf.RaggedTensor.from_row_splits(token_ids, row_splits, validate=False)
        return _logits(model, tokens, training=False)

    return lambda window: predict(window.token_ids, window.row_splits).numpy()


def _survive_lack_of_memory() -> None:
    """Forgoes oneDNN's products fused with what follows: they do not look for their memory.

    TensorFlow 2.20's MklFusedMatMulOp goes on with an output that could not be allocated, and
    the process dies of a segmentation fault.
    """
    if device_name() == "CPU":
        tf.config.optimizer.set_experimental_options({"remapping": False})


def _accumulated(
    model: tf_keras.Model,
    optimizer: AccumulatingOptimizer,
    tokens: tf.RaggedTensor,
    labels: tf.Tensor,
    cuts: tf.Tensor,
    masks: Masks,
    stopped: tf.Variable,
) -> dict[str, tf.Tensor]:
    step, steps = tf.constant(0), tf.size(cuts) - 1
    total, losses = tf.constant(0.0), tf.TensorArray(tf.float32, steps, element_shape=[])
    while (step < steps) & ~stopped.read_value():
        # Side by side, two micro-batches would take the memory of both.
        tf.autograph.experimental.set_loop_options(parallel_iterations=1)
        start, end = cuts[step], cuts[step + 1]
        with dropout_masks(masks.of_micro_batch(start)):
            loss, pairs = micro_step(
                model, optimizer, tokens[start:end], labels[start:end], tf.size(labels)
            )
        optimizer.accumulate(pairs, weight=(end - start) / tf.size(labels))
        total += loss
        losses = losses.write(step, loss)
        step += 1
    applied, finished = tf.constant(False), step == steps
    if finished:
        optimizer.avoid_copies()
        applied = optimizer.apply()
    return {"loss": total, "losses": losses.stack(), "finished": finished, "applied": applied}


def _single(
    model: tf_keras.Model,
    optimizer: AccumulatingOptimizer,
    tokens: tf.RaggedTensor,
    labels: tf.Tensor,
    cuts: tf.Tensor,
    masks: Masks,
    _: tf.Variable,
) -> dict[str, tf.Tensor]:
    # There is one micro-batch: the window.
    with dropout_masks(masks.of_micro_batch(cuts[0])):
        loss, pairs = micro_step(model, optimizer, tokens, labels, tf.size(labels))
    applied = optimizer.apply_sums(pairs, weight=1.0)
    finished = tf.constant(True)
    return {"loss": loss, "losses": loss[tf.newaxis], "finished": finished, "applied": applied}


def micro_step(
    model: tf_keras.Model,
    optimizer: AccumulatingOptimizer,
    tokens: tf.RaggedTensor,
    labels: tf.Tensor,
    window: tf.Tensor,
) -> tuple[tf.Tensor, list[Any]]:
    """A micro-batch's share of the mean loss over the `window` examples, and its gradients.

    Of the mean, not of a sum, so that with a loss scale float16 overflows where that of the
    big batch would.
    """
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels, _logits(model, tokens, training=True)
        )  # [micro_batch]
        loss = tf.reduce_sum(losses) / tf.cast(window, losses.dtype)
        scaled = optimizer.scale_loss(loss)
    return loss, list(zip(tape.gradient(scaled, variables), variables, strict=True))


def _logits(model: tf_keras.Model, tokens: tf.RaggedTensor, training: bool) -> tf.Tensor:
    """[micro_batch, (length)] tokens to [micro_batch, classes] float32."""
    token_ids = tokens.to_tensor()  # [micro_batch, longest]; [PAD] is 0, and masked anyway
    padding_mask = tf.sequence_mask(tokens.row_lengths(), dtype=tf.int32)
    logits = model(encoder_inputs(token_ids, padding_mask), training=training)
    return tf.cast(logits, tf.float32)
