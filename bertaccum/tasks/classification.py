"""Single-text classification: head, loss, metrics and decoding."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from official.nlp.modeling import models, networks

from bertaccum.bert.encoder import encoder_inputs, head_dropouts, initializer
from bertaccum.bert.encoder_config import EncoderConfig


def build_classifier(
    encoder: networks.EncoderScaffold, config: EncoderConfig, classes: int, dropout: float = 0.0
) -> models.BertClassifier:
    """Build a classifier on the encoder's pooled output.

    Args:
      encoder: as `build_encoder` returns it.
      config: its dimensions.
      classes: number of classes.
      dropout: rate for the pooled output.

    Returns:
      A model of `encoder_inputs` with logits [batch, classes].
    """
    head = ClassificationHead(config, classes, dropout)
    # BertClassifier's own dropout layer takes no masks, so the head applies both.
    return models.BertClassifier(encoder, num_classes=classes, dropout_rate=0.0, cls_head=head)


class ClassificationHead(tf_keras.layers.Layer):
    """Dropout and a dense layer, from the pooled output to logits.

    It applies dropout twice, as tf-models does: once in `BertClassifier` and once in its
    `ClassificationHead`. It has the weights of the latter, under the same names.

    Args:
      config: the encoder's dimensions.
      classes: number of classes.
      dropout: rate of both.
    """

    def __init__(self, config: EncoderConfig, classes: int, dropout: float) -> None:
        super().__init__(name="sentence_prediction")
        self.dropouts = head_dropouts(config, dropout)
        self.out_proj = tf_keras.layers.Dense(
            classes, kernel_initializer=initializer(config), name="logits"
        )

    def call(self, pooled: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Return logits [batch, classes] of `pooled` [batch, hidden]."""
        for dropout in self.dropouts:
            pooled = dropout(pooled, training=training)
        return self.out_proj(pooled)


def classify(model: tf_keras.Model, tokens: tf.RaggedTensor, training: bool) -> tf.Tensor:
    """[batch, (length)] tokens to logits [batch, classes] float32."""
    token_ids = tokens.to_tensor()  # [batch, longest]; [PAD] is 0, and masked anyway
    padding_mask = tf.sequence_mask(tokens.row_lengths(), dtype=tf.int32)
    logits = model(encoder_inputs(token_ids, padding_mask), training=training)
    return tf.cast(logits, tf.float32)


def mean_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """Mean cross-entropy of `logits` [examples, classes] against `labels` [examples]."""
    losses = tf_keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return float(np.mean(losses, dtype=np.float64))


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Share of examples whose largest logit is their label's."""
    return float(np.mean(np.argmax(logits, axis=1) == labels))


def matthews(logits: np.ndarray, labels: np.ndarray) -> float:
    """Matthews correlation of predictions and `labels` [examples]; 0 if all are of one class.

    Source: Matthews 1975; for more than two classes, Gorodkin 2004.
    """
    from sklearn import metrics

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # That there is one class only.
        return float(metrics.matthews_corrcoef(labels, np.argmax(logits, axis=1)))


def macro_f1(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean F1 of the classes that occur in `labels` [examples] or are predicted."""
    from sklearn import metrics

    predictions = np.argmax(logits, axis=1)
    return float(metrics.f1_score(labels, predictions, average="macro", zero_division=0.0))


def scores(logits: np.ndarray, labels: np.ndarray, names: list[str]) -> dict[str, Any]:
    """Return what every evaluation holds, during training and after.

    Args:
      logits: [examples, classes].
      labels: [examples] class numbers.
      names: the classes' names.

    Returns:
      `examples`, `accuracy`, `loss`, `matthews_correlation`, `macro_f1`; `majority_class` and
      `majority_accuracy`, the most frequent label and the accuracy of always predicting it; and
      `only_prediction`, the class that is predicted for every example, None if there are several.
    """
    counts = np.bincount(labels, minlength=len(names))
    predicted = np.unique(np.argmax(logits, axis=1))
    return {
        "examples": len(labels),
        "accuracy": accuracy(logits, labels),
        "loss": mean_loss(logits, labels),
        "matthews_correlation": matthews(logits, labels),
        "macro_f1": macro_f1(logits, labels),
        "majority_class": names[counts.argmax()],
        "majority_accuracy": float(counts.max() / len(labels)),
        "only_prediction": names[predicted[0]] if len(predicted) == 1 else None,
    }


def classification_report(
    logits: np.ndarray, labels: np.ndarray, names: list[str]
) -> dict[str, Any]:
    """Return `scores`, and what they are made of, in plain numbers.

    Args:
      logits: [examples, classes].
      labels: [examples] class numbers.
      names: the classes' names.

    Returns:
      As `scores`, and `classes` (name, precision, recall, f1 and examples of each) and
      `confusion_matrix` (rows: label, columns: prediction).
    """
    from sklearn import metrics

    predictions, numbers = np.argmax(logits, axis=1), range(len(names))
    of_classes = metrics.precision_recall_fscore_support(
        labels, predictions, labels=list(numbers), zero_division=0.0
    )
    keys = ("precision", "recall", "f1")
    return {
        **scores(logits, labels, names),
        "classes": [
            {"name": names[i]}
            | {k: float(s[i]) for k, s in zip(keys, of_classes, strict=False)}
            | {"examples": int(of_classes[3][i])}
            for i in numbers
        ],
        "confusion_matrix": metrics.confusion_matrix(
            labels, predictions, labels=list(numbers)
        ).tolist(),
    }


class Classification:
    """One class for each text, with softmax cross-entropy, as a `Task`."""

    def logits(self, model: tf_keras.Model, tokens: tf.RaggedTensor, training: bool) -> tf.Tensor:
        """Return what `classify` does."""
        return classify(model, tokens, training)

    def losses(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return the cross-entropy [batch] of `logits` [batch, classes] and `labels` [batch]."""
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    def scores(self, logits: np.ndarray, labels: np.ndarray, names: list[str]) -> dict[str, Any]:
        """Return what the function `scores` does."""
        return scores(logits, labels, names)


CLASSIFICATION = Classification()
