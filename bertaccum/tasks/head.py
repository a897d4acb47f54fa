"""Classifiers: an encoder and a head, which all tasks share, and the weights of a trained run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import tensorflow as tf
import tf_keras
from official.nlp.modeling import models

from bertaccum.bert import encoder as bert_encoder
from bertaccum.bert.adapters import adapt, merge
from bertaccum.bert.encoder import Initializer
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.in_place import check_finite
from bertaccum.bert.model_source import HEAD_LAYER
from bertaccum.bert.pretrained_weights import load_encoder
from bertaccum.bert.transformer_layer import OutputTokens
from bertaccum.errors import InputError, reason
from bertaccum.options.commands import StepConfig
from bertaccum.tasks.adapter_files import AdapterFiles
from bertaccum.tasks.forward import Tagger
from bertaccum.tasks.masked_model import build_masked_model


def output_tokens(config: StepConfig) -> OutputTokens:
    """Return which tokens of the encoder the model of a task reads."""
    return "positions" if config.tags_words or config.predicts_masked else "first"


def build_task_model(
    config: StepConfig,
    encoder: bert_encoder.Encoder,
    dimensions: EncoderConfig,
    outputs: int,
    dropout: float = 0.0,
    initializer: Initializer | None = None,
) -> tf_keras.Model:
    """Build the model of a task around an encoder with the `output_tokens` of the task.

    Args:
      dimensions: Dimensions of the encoder.
      outputs: Number of outputs of a classifier's head.
    """
    if config.predicts_masked:
        return build_masked_model(encoder, dimensions, initializer)
    if config.tags_words:
        return build_tagger(encoder, dimensions, outputs, dropout, initializer)
    return build_classifier(encoder, dimensions, outputs, dropout, config.pooling, initializer)


def build_classifier(
    encoder: bert_encoder.Encoder,
    config: EncoderConfig,
    outputs: int,
    dropout: float = 0.0,
    pool: str | None = None,
    initializer: Initializer | None = None,
) -> models.BertClassifier:
    """Build a model with a head on the encoder's pooled output.

    Args:
      pool: How the pooled outputs of a text's passages are combined, "mean" or "max"; None if each
        text is one passage.

    Returns:
      A model that maps the result of `encoder_inputs` to logits [batch, outputs].
    """
    initialize = initializer or partial(bert_encoder.random_initializer, config)
    head = Head(config, outputs, dropout, pool, initialize)
    # The head has the dropout, because that of BertClassifier does not use our masks.
    build = bert_encoder.without_autograph(models.BertClassifier)
    return build(encoder, num_classes=outputs, dropout_rate=0.0, cls_head=head)


def build_tagger(
    encoder: bert_encoder.Encoder,
    config: EncoderConfig,
    outputs: int,
    dropout: float = 0.0,
    initializer: Initializer | None = None,
) -> Tagger:
    """Build a model with a head on the output of each token, as `build_classifier` does."""
    initialize = initializer or partial(bert_encoder.random_initializer, config)
    encoder.get_layer(bert_encoder.POOLER).trainable = False  # No output depends on the pooler.
    return bert_encoder.without_autograph(Tagger)(
        encoder, Head(config, outputs, dropout, None, initialize)
    )


class Head(tf_keras.layers.Layer):
    """A layer that maps the pooled output to logits, with dropout and a dense layer.

    Like google-research/bert and transformers, it applies dropout once; in tf-models,
    `BertClassifier` and its `ClassificationHead` each apply it. The weights have the same names as
    those of `ClassificationHead`.
    """

    def __init__(
        self,
        config: EncoderConfig,
        outputs: int,
        dropout: float,
        pool: str | None,
        initialize: Initializer,
    ) -> None:
        super().__init__(name=HEAD_LAYER)
        self.pool = pool
        self.dropout = bert_encoder.head_dropout(config, dropout)
        kernel = initialize()
        self.out_proj = tf_keras.layers.Dense(outputs, kernel_initializer=kernel, name="logits")

    def call(self, pooled: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Return the logits [..., outputs] of outputs of the encoder [..., hidden]."""
        kept = self.dropout(pooled, training=training)
        if pooled.shape.rank == 2:
            return self.out_proj(kept)
        # For more than two axes, `Dense` computes a gradient of the kernel without a static shape.
        logits = self.out_proj(tf.reshape(kept, [-1, pooled.shape[-1]]))
        return tf.reshape(logits, [*tf.unstack(tf.shape(pooled))[:-1], logits.shape[-1]])


def load_run(model: tf_keras.Model, path: Path, head: bool = True, merged: bool = True) -> None:
    """Load the weights of a run's best checkpoint into a classifier.

    Args:
      head: Whether to load the head as well as the encoder and its pooler.
      merged: Whether adapters are added to the kernels, so that the model has none.
    """
    adapted = AdapterFiles.read(path.parent)
    try:
        if adapted is None:
            _load_whole(model, path, head)
        else:
            _load_adapted(model, path, adapted, head, merged)
    except tf.errors.ResourceExhaustedError:
        raise
    except (tf.errors.OpError, AssertionError, ValueError, IndexError) as error:
        what = f"cannot be loaded ({reason(error)})"
        raise InputError(what, "train the model again", path=path) from None
    for weight in model.weights:
        check_finite(weight, weight.name.removesuffix(":0"), path)


def _load_whole(model: tf_keras.Model, path: Path, head: bool) -> None:
    encoder, *heads = _named_layers(model).items()
    layers = _named_layers(encoder[1])
    parts = [{encoder[0]: tf.train.Checkpoint(**{n: layer})} for n, layer in layers.items()]
    parts += [dict([named]) for named in heads] if head else []
    # Reading all at once would need twice the memory of the model.
    for part in parts:
        whole = tf.train.Checkpoint(model=tf.train.Checkpoint(**part))
        whole.read(str(path)).assert_existing_objects_matched().expect_partial()


def _load_adapted(
    model: tf_keras.Model, path: Path, adapted: AdapterFiles, head: bool, merged: bool
) -> None:
    """Load the weights from which a run began, then those that it trained."""
    encoder = model.checkpoint_items["encoder"]
    if adapted.base is not None:
        base = adapted.find_base(path.parent)
        assert base.checkpoint is not None and base.format is not None
        if base.of_run:
            load_run(model, base.checkpoint, head=False)
        else:
            load_encoder(encoder, base.format, base.checkpoint)
    adapted.round(encoder)
    bert_encoder.freeze(encoder, adapted.how.train_layers, False)
    adapt(encoder, adapted.how)
    own = {id(weight) for weight in (model if head else encoder).variables}
    adapted.load([w for w in adapted.weights(model) if id(w) in own], path.parent)
    if merged:
        merge(encoder)


def _named_layers(model: tf_keras.Model) -> dict[str, tf_keras.layers.Layer]:
    """Return the layers that have weights, keyed by the names under which tf_keras saves them."""
    layers = [layer for layer in model.layers if layer.weights]
    return {f"layer_with_weights-{number}": layer for number, layer in enumerate(layers)}
