"""The forward pass of classifiers.

A text that is read in several passages has a pooled output for each of them. Their mean or maximum
is the pooled output of the text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf
import tf_keras
from official.nlp.modeling import models

from bertaccum.bert.dropout import dropout_masks, present_masks
from bertaccum.bert.model_source import HEAD_LAYER
from bertaccum.bert.packed_tokens import (
    PaddedTexts,
    first_positions,
    inputs_of_padded,
    inputs_of_tokens,
    split_passages,
    tags_of,
)
from bertaccum.bert.precision import length_multiple
from bertaccum.tasks.distilled import Distilled
from bertaccum.tasks.masked_model import MaskedLanguageModel
from bertaccum.tasks.task import Objective
from bertaccum.tasks.token_classification import TokenClassification

Support: TypeAlias = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
# Functions of the pooled outputs [passages, hidden], of the text's index for each of them, and of
# the number of texts.
_POOLING = {"mean": tf.math.unsorted_segment_mean, "max": tf.math.unsorted_segment_max}


class Tagger(tf_keras.Model):
    """A model that maps the result of `encoder_inputs` to logits [batch, count, outputs].

    They are those of the positions in these inputs.
    """

    def __init__(self, encoder: tf_keras.Model, head: tf_keras.layers.Layer) -> None:
        outputs = encoder(encoder.inputs)["sequence_output"]
        super().__init__(inputs=encoder.inputs, outputs=head(outputs))

    @property
    def checkpoint_items(self) -> dict[str, Any]:
        """The encoder, as in tf-models' `BertClassifier`."""
        return {"encoder": next(layer for layer in self.layers if hasattr(layer, "hidden_layers"))}


def reads_passages(model: models.BertClassifier) -> bool:
    """Return whether a model that `build_classifier` returned reads texts in several passages."""
    if isinstance(model, MaskedLanguageModel):
        return False
    return model.get_layer(HEAD_LAYER).pool is not None


def read_positions(model: tf_keras.Model, tokens: tf.Tensor, static: bool) -> tf.Tensor | None:
    """Return the positions that the head reads, as `PaddedTexts.read` contains them.

    Args:
      tokens: Tokens of passages, [passages, length] int32.
      static: Whether the number of positions depends only on the shape of `tokens`.
    """
    if not isinstance(model, Tagger):
        return None
    read, count = tags_of(tokens) >= 0, tf.shape(tokens)[1]
    if not static:
        (multiple, _), most = lengths_of(model), tf.reduce_max(_counts(read))
        count = tf.clip_by_value(-(-most // multiple) * multiple, 1, count)
    return first_positions(read, count)


def losses_in_training(
    objective: Objective, model: tf_keras.Model, texts: PaddedTexts, labels: tf.Tensor
) -> tf.Tensor:
    """Return the loss of each text, [passages] float32, and of what fills up their number.

    For tags, it is the weighted mean loss of the words of the text, whose tags are those of the
    tokens; for masked tokens, the mean of theirs.
    """
    if isinstance(model, MaskedLanguageModel):
        return model.masked_losses(texts, labels)
    logits = logits_in_training(model, texts)
    if texts.read is None:
        return objective.losses(logits, labels)
    tags = tags_of(tf.gather(texts.tokens, texts.read, batch_dims=1))
    if isinstance(objective, Distilled):
        words = tf.minimum(_word_numbers(texts, tags >= 0), tf.shape(labels)[1] - 1)
        of_words = tf.gather_nd(labels, tf.stack([texts.texts[:, None] + 0 * words, words], axis=2))
        losses, weights = objective.word_losses(logits, tags, of_words)
    else:
        assert isinstance(objective, TokenClassification)
        losses = objective.losses(logits, tf.maximum(tags, 0))
        weights = objective.word_weights(tags)
    sums = [tf.reduce_sum(values, axis=1) for values in (losses * weights, weights)]
    count = tf.shape(tags)[0]
    total, weight = (tf.math.unsorted_segment_sum(one, texts.texts, count) for one in sums)
    return tf.math.divide_no_nan(total, weight)


def _word_numbers(texts: PaddedTexts, read: tf.Tensor) -> tf.Tensor:
    """Return the number of the word of each position in its text, from 0, [passages, count] int32.

    Args:
      read: Whether a position is that of a word, [passages, count].
    """
    counts = _counts(read)
    before = tf.cumsum(counts, exclusive=True)
    # Passages of a text are neighbors.
    of_texts = tf.math.unsorted_segment_min(before, texts.texts, tf.shape(before)[0])
    first = before - tf.gather(of_texts, texts.texts)
    return first[:, tf.newaxis] + tf.range(tf.shape(read)[1])


def logits_of(model: models.BertClassifier, tokens: tf.RaggedTensor) -> tf.Tensor:
    """Return the logits [batch, outputs] float32 of texts, without dropout.

    For tags, they are those of the words, [batch, words, outputs], NaN after a text's last word.
    """
    if isinstance(model, Tagger):
        return _logits_of_words(model, tokens)
    if not reads_passages(model):
        return tf.cast(model(_padded(model, tokens), training=False), tf.float32)
    pooled = _of_passages(model, tokens)
    of_texts = _of_texts(model, pooled.values, pooled.value_rowids(), tokens.nrows())
    return tf.cast(model.get_layer(HEAD_LAYER)(of_texts), tf.float32)


def logits_in_training(model: models.BertClassifier, texts: PaddedTexts) -> tf.Tensor:
    """Return the logits [passages, outputs] float32 of texts and of what fills up their number.

    For tags, they are those of the positions `texts.read`, [passages, count, outputs].
    """
    inputs = inputs_of_padded(texts.tokens, texts.lengths, texts.read)
    if not reads_passages(model) and not isinstance(model, Tagger):
        return tf.cast(model(inputs, training=True), tf.float32)
    masks, encoder = present_masks(), model.checkpoint_items["encoder"]
    with dropout_masks(masks and masks.of_passages(texts.texts, texts.numbers)):
        if isinstance(model, Tagger):
            return tf.cast(model(inputs, training=True), tf.float32)
        pooled = encoder(inputs, training=True)["pooled_output"]
    of_texts = _of_texts(model, pooled, texts.texts, tf.shape(pooled)[0])
    return tf.cast(model.get_layer(HEAD_LAYER)(of_texts, training=True), tf.float32)


def logits_of_texts_and_passages(
    model: models.BertClassifier, tokens: tf.RaggedTensor
) -> tf.Tensor:
    """Return the logits of each text, followed by those of each of its passages, read alone.

    Returns:
      Logits [batch, 1 + passages, outputs] float32, NaN after a text's last passage; [batch, 1,
      outputs] if the model reads each text in one passage; for tags [batch, 1, words, outputs].
    """
    if not reads_passages(model):
        return logits_of(model, tokens)[:, tf.newaxis]
    head = model.get_layer(HEAD_LAYER)
    pooled = _of_passages(model, tokens)
    of_texts = _of_texts(model, pooled.values, pooled.value_rowids(), tokens.nrows())
    of_texts = tf.cast(head(of_texts), tf.float32)
    of_passages = pooled.with_values(tf.cast(head(pooled.values), tf.float32))
    padded = of_passages.to_tensor(default_value=math.nan)
    return tf.concat([of_texts[:, tf.newaxis], padded], axis=1)


def deciding_passages(support: Support, logits: tf.Tensor) -> tf.Tensor:
    """Return the passage of each text that supports the prediction most, [batch] int32, from 1.

    Args:
      logits: Result of `logits_of_texts_and_passages`, for a model that reads several passages.
    """
    supports = support(logits[:, 0], logits[:, 1:])
    supports = tf.where(tf.math.is_nan(supports), -math.inf, supports)
    return tf.argmax(supports, axis=1, output_type=tf.int32) + 1


def _logits_of_words(model: Tagger, tokens: tf.RaggedTensor) -> tf.Tensor:
    """Return the logits of the words of texts, [batch, words, outputs], NaN after the last word."""
    passages = split_passages(tokens)
    padded = passages.values.to_tensor()
    positions = read_positions(model, padded, static=False)
    logits = model(_padded(model, passages.values, positions), training=False)
    read = tags_of(tf.gather(padded, positions, batch_dims=1)) >= 0
    of_words = tf.boolean_mask(tf.cast(logits, tf.float32), read)
    of_texts = tf.math.unsorted_segment_sum(
        _counts(read), passages.value_rowids(), passages.nrows()
    )
    words = tf.RaggedTensor.from_row_lengths(of_words, of_texts, validate=False)
    return words.to_tensor(default_value=math.nan)


def _of_passages(model: models.BertClassifier, tokens: tf.RaggedTensor) -> tf.RaggedTensor:
    """Return the pooled outputs [batch, (passages), hidden] of all passages of texts."""
    passages = split_passages(tokens)
    outputs = model.checkpoint_items["encoder"](_padded(model, passages.values), training=False)
    return passages.with_values(outputs["pooled_output"])


def _padded(
    model: models.BertClassifier, tokens: tf.RaggedTensor, positions: tf.Tensor | None = None
) -> dict[str, Any]:
    return inputs_of_tokens(tokens, *lengths_of(model), positions)


def _counts(chosen: tf.Tensor) -> tf.Tensor:
    """Return how many of the booleans in each row are true, [rows] int32."""
    return tf.reduce_sum(tf.cast(chosen, tf.int32), axis=1)


def lengths_of(model: models.BertClassifier) -> tuple[int, int]:
    """Return the number of which lengths should be multiples, and the maximum length."""
    encoder = model.checkpoint_items["encoder"]
    positions = encoder.get_layer("position_embedding").weights[0].shape[0]
    return length_multiple(encoder.hidden_layers[0].compute_dtype), positions


def _of_texts(
    model: models.BertClassifier, pooled: tf.Tensor, texts: tf.Tensor, count: tf.Tensor
) -> tf.Tensor:
    """Return the pooled outputs [count, hidden] float32 of texts, given those of their passages."""
    pool = model.get_layer(HEAD_LAYER).pool
    of_texts = _POOLING[pool](tf.cast(pooled, tf.float32), texts, count)
    return (
        tf.where(tf.equal(of_texts, tf.float32.min), 0.0, of_texts) if pool == "max" else of_texts
    )
