"""Models of token IDs for TensorFlow Lite: conversion, and prediction with its interpreter."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tf_keras

from bertaccum.bert.packed_tokens import encoder_inputs, inputs_of_tokens, tags_of
from bertaccum.data.token_store import TokenStore
from bertaccum.data.windows import batches_by_length, make_window
from bertaccum.system.machine import usable_cores
from bertaccum.system.progress import Progress
from bertaccum.tasks.forward import Tagger

# Inputs of models that take token IDs.
INPUTS = ("token_ids", "segment_ids", "padding_mask")
_LOGITS = "logits"
Outputs = dict[str, tf.Tensor]


def function_of_tokens(
    model: tf_keras.Model, outputs_of: Callable[[tf.Tensor], Outputs]
) -> tf.types.experimental.PolymorphicFunction:
    """Return a `tf.function` that maps tokens to the outputs for their logits.

    Its inputs are those of `INPUTS`, [batch, length] int32. Batch and length may differ between
    calls; the length must be at least 1. `segment_ids` are 1 for the second text of a pair and its
    [SEP], otherwise 0. `padding_mask` is 1 for tokens and 0 for padding.

    Args:
      model: Model that `build_task_model` returned, which reads each text in one passage.
      outputs_of: Returns the outputs for logits [batch, outputs] float32, or for those of all
        tokens, [batch, length, outputs], if the model gives tags.
    """
    specs = [tf.TensorSpec([None, None], tf.int32, name=name) for name in INPUTS]

    # AutoGraph would convert every layer before the export.
    @tf.function(input_signature=specs, autograph=False)
    def serve(token_ids: tf.Tensor, segment_ids: tf.Tensor, padding_mask: tf.Tensor) -> Outputs:
        # A model of tags returns those of all tokens.
        places = tf.zeros_like(token_ids) + tf.range(tf.shape(token_ids)[1])
        positions = places if isinstance(model, Tagger) else None
        inputs = encoder_inputs(token_ids, padding_mask, segment_ids, positions)
        return outputs_of(tf.cast(model(inputs, training=False), tf.float32))

    return serve


def with_weights(model: tf_keras.Model) -> tf.Module:
    """Return a module with a model's weights; of a model, Keras also saves functions of layers."""
    module = tf.Module()
    module.weights = list(model.weights)
    return module


def convert(
    model: tf_keras.Model, function: tf.types.experimental.ConcreteFunction, int8: bool
) -> bytes:
    """Return a model for TensorFlow Lite (LiteRT) that contains only built-in operations.

    Args:
      function: Function of token IDs, without strings.
      int8: Whether matrices of weights are stored as int8, with a scale for each output.
        Activations are quantized when the model runs (dynamic range quantization).
    """
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], with_weights(model))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    if int8:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    content: bytes = converter.convert()
    return content


class Int8Predictor:
    """Prediction with the int8 model, as `Predictor` does with the model itself.

    Args:
      batch: Number of the longest texts in one forward pass.
    """

    def __init__(self, model: tf_keras.Model, batch: int) -> None:
        self._batch, self._tags = batch, isinstance(model, Tagger)
        self._outputs = model.output_shape[-1]
        serve = function_of_tokens(model, lambda logits: {_LOGITS: logits}).get_concrete_function()
        content = convert(model, serve, int8=True)
        self.bytes = len(content)
        # It must stay in memory as long as the function that predicts.
        with warnings.catch_warnings():
            # TensorFlow 2.20 still contains the interpreter whose removal it announces.
            warnings.simplefilter("ignore", UserWarning)
            self._interpreter = tf.lite.Interpreter(
                model_content=content, num_threads=usable_cores()
            )
        self._predict = self._interpreter.get_signature_runner()

    def with_passages(self, store: TokenStore, progress: Progress) -> np.ndarray:
        """Return the logits [examples, 1, outputs] float32, as `Predictor.with_passages` does."""
        words = [int(store.words.max(initial=0))] if self._tags else []
        shape = [len(store), 1, *words, self._outputs]
        logits, done = np.full(shape, np.nan, np.float32), 0
        for rows in batches_by_length(store, self._batch):
            for row, found in zip(rows, self.predict(store, rows), strict=True):
                logits[row, 0][: len(found)] = found
            done += len(rows)
            progress("evaluating", done, len(store))
        return logits

    def predict(self, store: TokenStore, rows: np.ndarray) -> list[np.ndarray]:
        """Return the logits of each of some texts, [outputs], or those of its words."""
        window = make_window(store, rows, len(rows))
        tokens = tf.RaggedTensor.from_row_splits(window.token_ids, window.row_splits)
        inputs = inputs_of_tokens(tokens)
        named = ("input_word_ids", "input_type_ids", "input_mask")
        given = {ours: inputs[theirs] for ours, theirs in zip(INPUTS, named, strict=True)}
        logits = self._predict(**given)[_LOGITS]
        if not self._tags:
            return list(logits)
        read = (tags_of(tokens.to_tensor()) >= 0).numpy()
        return [own[chosen] for own, chosen in zip(logits, read, strict=True)]
