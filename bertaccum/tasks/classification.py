"""Single-text classification: head, loss and metrics."""

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
      encoder: Encoder that `build_encoder` returned.
      config: Dimensions of the encoder.
      classes: Number of classes.
      dropout: Dropout rate of the pooled output.

    Returns:
      A model that maps the result of `encoder_inputs` to logits [batch, classes].
    """
    head = ClassificationHead(config, classes, dropout)
    # BertClassifier's own dropout layer does not use our masks, so the head applies both dropouts.
    return models.BertClassifier(encoder, num_classes=classes, dropout_rate=0.0, cls_head=head)


class ClassificationHead(tf_keras.layers.Layer):
    """A layer that maps the pooled output to logits, with dropout and a dense layer.

    In tf-models, `BertClassifier` and its `ClassificationHead` each apply dropout; this layer
    applies both. Its weights have the same names as those of tf-models' `ClassificationHead`.

    Args:
      config: Dimensions of the encoder.
      classes: Number of classes.
      dropout: Rate of both dropouts.
    """

    def __init__(self, config: EncoderConfig, classes: int, dropout: float) -> None:
        super().__init__(name="sentence_prediction")
        self.dropouts = head_dropouts(config, dropout)
        self.out_proj = tf_keras.layers.Dense(
            classes, kernel_initializer=initializer(config), name="logits"
        )

    def call(self, pooled: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Return the logits [batch, classes] of pooled outputs [batch, hidden]."""
        for dropout in self.dropouts:
            pooled = dropout(pooled, training=training)
        return self.out_proj(pooled)


def classify(model: tf_keras.Model, tokens: tf.RaggedTensor, training: bool) -> tf.Tensor:
    """Return the logits [batch, classes] float32 of `tokens` [batch, (length)]."""
    token_ids = tokens.to_tensor()  # [batch, longest]; padded with 0, which is masked
    padding_mask = tf.sequence_mask(tokens.row_lengths(), dtype=tf.int32)
    logits = model(encoder_inputs(token_ids, padding_mask), training=training)
    return tf.cast(logits, tf.float32)


def mean_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean cross-entropy of `logits` [examples, classes] and `labels` [examples]."""
    losses = tf_keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return float(np.mean(losses, dtype=np.float64))


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the fraction of examples whose label has the largest logit."""
    return float(np.mean(np.argmax(logits, axis=1) == labels))


def matthews(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the Matthews correlation of predictions and `labels` [examples].

    It is 0 if all predictions or all labels are the same class.

    Sources: Matthews 1975; Gorodkin 2004 for more than two classes.
    """
    from sklearn import metrics

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # sklearn warns if only one class occurs.
        return float(metrics.matthews_corrcoef(labels, np.argmax(logits, axis=1)))


def macro_f1(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean F1 of the classes that occur in `labels` [examples] or are predicted."""
    from sklearn import metrics

    predictions = np.argmax(logits, axis=1)
    return float(metrics.f1_score(labels, predictions, average="macro", zero_division=0.0))


def scores(logits: np.ndarray, labels: np.ndarray, names: list[str]) -> dict[str, Any]:
    """Return the scores that every evaluation contains, during training and afterwards.

    Args:
      logits: Logits [examples, classes].
      labels: Class numbers [examples].
      names: Names of the classes.

    Returns:
      `examples`, `accuracy`, `loss`, `matthews_correlation` and `macro_f1`; `majority_class` and
      `majority_accuracy`, the most frequent label and the accuracy of always predicting it; and
      `only_prediction`, the class predicted for every example, or None if there are several.
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
    """Return the items of `scores`, the scores of each class and the confusion matrix.

    Args:
      logits: Logits [examples, classes].
      labels: Class numbers [examples].
      names: Names of the classes.

    Returns:
      The items of `scores`; `classes`, a list with name, precision, recall, f1 and examples of
      each class; and `confusion_matrix`, whose rows are labels and whose columns are predictions.
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
    """A `Task` that assigns one class to each text, trained with softmax cross-entropy."""

    def logits(self, model: tf_keras.Model, tokens: tf.RaggedTensor, training: bool) -> tf.Tensor:
        """Return the logits that `classify` computes."""
        return classify(model, tokens, training)

    def losses(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return the cross-entropy [batch] of `logits` [batch, classes] and `labels` [batch]."""
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    def scores(self, logits: np.ndarray, labels: np.ndarray, names: list[str]) -> dict[str, Any]:
        """Return the scores that the function `scores` computes."""
        return scores(logits, labels, names)


CLASSIFICATION = Classification()
