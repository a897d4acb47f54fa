"""The model that a configuration describes, with its initial weights."""

from __future__ import annotations

from pathlib import Path

import tf_keras
from official.nlp.modeling import networks

from bertaccum.bert.encoder import build_encoder, set_recompute
from bertaccum.bert.encoder_config import WEIGHTS
from bertaccum.bert.google_checkpoint import load_google_checkpoint
from bertaccum.bert.huggingface_weights import load_huggingface
from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.precision import resolved_precision
from bertaccum.config import TrainConfig
from bertaccum.tasks.head import build_classifier
from bertaccum.tasks.saved_classifier import load_run


def build_model(
    config: TrainConfig, source: ModelSource, outputs: int, takes_head: bool = False
) -> tf_keras.Model:
    """Return the model to train, in the configured precision, with its initial weights.

    Args:
      config: Options of the run, including precision, dropout, seed and recomputation.
      source: Dimensions and pretrained weights of the encoder.
      outputs: Number of outputs of the head.
      takes_head: Whether to load the weights of the head as well, if `source` is a run.
    """
    tf_keras.utils.set_random_seed(config.seed)
    policy = tf_keras.mixed_precision.global_policy()
    tf_keras.mixed_precision.set_global_policy(resolved_precision(config.precision))
    try:
        encoder = build_encoder(source.encoder, config.dropout, first_token_only=True)
        if source.checkpoint is not None and not source.of_run:
            _load(encoder, source.checkpoint)
        set_recompute(encoder, config.recompute == "layer")
        model = build_classifier(encoder, source.encoder, outputs, config.dropout)
        if source.checkpoint is not None and source.of_run:
            load_run(model, source.checkpoint, takes_head)
        return model
    finally:
        tf_keras.mixed_precision.set_global_policy(policy)


def _load(encoder: networks.EncoderScaffold, checkpoint: Path) -> None:
    load = load_huggingface if checkpoint.name == WEIGHTS else load_google_checkpoint
    load(encoder, checkpoint)
