"""Outputs of exported models of token classification: words and entities with their places."""

from __future__ import annotations

import tensorflow as tf

from bertaccum.tasks.token_classification import TokenClassification
from data_prep.labels.tag_schemes import OUTSIDE, begins_at, ends_before, split_tag


def serve_words(
    task: TokenClassification, logits: tf.Tensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
) -> dict[str, tf.Tensor]:
    """Return the outputs of exported models of texts, given the spans of their words.

    Args:
      logits: Logits [batch, words, tags]; NaN after the last word of a text that is read.
      starts, ends: Spans of all words in characters, [batch, (words)].

    Returns:
      `word_start`, `word_end` (-1 after the last word), `tag` (empty there) and `probability`,
      [batch, words]; if the tags have a scheme also `entity_start`, `entity_end`, `entity_type`
      and `entity_probability`, [batch, entities], filled up in the same way.
    """
    read = ~tf.math.is_nan(logits[..., 0])
    width = tf.shape(logits)[1]
    spans = [
        tf.where(read, tf.cast(one.to_tensor(-1)[:, :width], tf.int32), -1)
        for one in (starts, ends)
    ]
    probabilities = tf.nn.softmax(logits / task.decoding.temperature)
    best = tf.where(read, tf.reduce_max(probabilities, axis=-1), 0.0)
    numbers = tf.where(read, tf.argmax(logits, axis=-1), len(task.labels.names))
    names = tf.constant([*task.labels.names, ""])
    outputs = {
        "word_start": spans[0],
        "word_end": spans[1],
        "tag": tf.gather(names, numbers),
        "probability": best,
    }
    return outputs | (_entities(task.labels.names, numbers, best, *spans) if task.scheme else {})


def _entities(
    all_tags: list[str],
    tags: tf.Tensor,
    probabilities: tf.Tensor,
    starts: tf.Tensor,
    ends: tf.Tensor,
) -> dict[str, tf.Tensor]:
    # The last number stands for words that are not read, as `O` does.
    names = [*all_tags, OUTSIDE]
    pairs = tf.pad(tags, [[0, 0], [1, 1]], constant_values=len(names) - 1)
    pairs = tf.stack([pairs[:, :-1], pairs[:, 1:]], axis=-1)
    begin, end = (
        tf.where(tf.gather_nd([[rule(a, b) for b in names] for a in names], pairs))
        for rule in (begins_at, ends_before)
    )
    # The entities of a text begin and end in the same order.
    first, last = begin, end - [[0, 1]]
    total = tf.cumsum(tf.pad(probabilities, [[0, 0], [1, 0]]), axis=1)
    length = tf.cast(end[:, 1] - begin[:, 1], tf.float32)
    types = tf.constant([split_tag(name)[1] for name in names])
    values = {
        "entity_start": (tf.gather_nd(starts, first), -1),
        "entity_end": (tf.gather_nd(ends, last), -1),
        "entity_type": (tf.gather(types, tf.gather_nd(tags, first)), ""),
        "entity_probability": (
            (tf.gather_nd(total, end) - tf.gather_nd(total, begin)) / length,
            0.0,
        ),
    }
    rows, count = begin[:, 0], tf.shape(tags, tf.int64)[0]
    return {
        name: tf.RaggedTensor.from_value_rowids(value, rows, count, validate=False).to_tensor(fill)
        for name, (value, fill) in values.items()
    }
