"""The model that a configuration describes, with its initial weights."""

from __future__ import annotations

from pathlib import Path

import tf_keras

from bertaccum.bert.encoder import build_encoder, freeze, set_recompute
from bertaccum.bert.model_source import CheckpointFormat, HeadMapping, ModelSource
from bertaccum.bert.precision import resolved_precision
from bertaccum.bert.pretrained_weights import load_encoder, read_head
from bertaccum.errors import InputError
from bertaccum.options.commands import TrainConfig
from bertaccum.tasks.forward import HEAD_LAYER
from bertaccum.tasks.head import build_classifier, load_run


def build_model(
    config: TrainConfig, source: ModelSource, outputs: int, head: HeadMapping | None = None
) -> tf_keras.Model:
    """Return the model to train, in the configured precision, with its initial weights.

    Args:
      config: Options of the run, including precision, dropout, seed and recomputation.
      source: Dimensions and pretrained weights of the encoder.
      outputs: Number of outputs of the head.
      head: How the head in `source` becomes the model's; None for a random head.

    Raises:
      ConfigError: More layers are to be trained than the encoder has.
      InputError: The checkpoint cannot be read, or does not fit the model.
    """
    tf_keras.utils.set_random_seed(config.seed)
    policy = tf_keras.mixed_precision.global_policy()
    tf_keras.mixed_precision.set_global_policy(resolved_precision(config.precision))
    try:
        encoder = build_encoder(source.encoder, config.dropout, first_token_only=True)
        if source.checkpoint is not None and source.format is not None and not source.of_run:
            load_encoder(encoder, source.format, source.checkpoint)
        set_recompute(encoder, config.recompute == "layer")
        freeze(encoder, config.train_layers, config.freeze == "embeddings")
        model = build_classifier(encoder, source.encoder, outputs, config.dropout, config.pooling)
        if source.checkpoint is not None and source.of_run:
            load_run(model, source.checkpoint, head is not None)
        elif source.checkpoint is not None and source.format is not None and head is not None:
            _load_head(model, source.format, source.checkpoint, head)
        return model
    finally:
        tf_keras.mixed_precision.set_global_policy(policy)


def _load_head(
    model: tf_keras.Model, form: CheckpointFormat, checkpoint: Path, head: HeadMapping
) -> None:
    """Give the model the head of a classifier that another tool fine-tuned."""
    kernel, bias = read_head(form, checkpoint)
    layer = model.get_layer(HEAD_LAYER).out_proj
    found, expected = [*kernel.shape, *bias.shape], [*layer.kernel.shape[::-1], *layer.bias.shape]
    if found != expected:
        raise InputError(
            f"its head has {bias.size} outputs, but the data need {len(head.rows)}",
            "omit `keep_head` for a random head, or choose other data",
            path=checkpoint,
        )
    layer.kernel.assign(kernel[head.rows].T / head.std)
    layer.bias.assign((bias[head.rows] - head.mean) / head.std)
