"""The model that a configuration describes, with its initial weights, and its optimizer.

The optimizer is AdamW with linear warm-up and decay, gradient clipping and loss scaling.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tf_keras
from official.modeling.optimization import lr_schedule
from official.nlp.optimization import WarmUp

from bertaccum.accumulation.adamw import InPlaceAdamW
from bertaccum.accumulation.transforms import ClipByGlobalNorm
from bertaccum.accumulation.window import WindowOptimizer
from bertaccum.bert.adapters import Adaptation, adapt
from bertaccum.bert.encoder import Frozen, build_encoder, freeze, set_recompute
from bertaccum.bert.in_place import assign_in_place
from bertaccum.bert.model_source import HEAD_LAYER, CheckpointFormat, HeadMapping, ModelSource
from bertaccum.bert.precision import building_in, resolved_precision
from bertaccum.bert.pretrained_weights import load_encoder, load_masked_head, read_head
from bertaccum.errors import InputError
from bertaccum.options.adapting import FULL
from bertaccum.options.commands import ADAMW, BERT_ADAMW, TrainConfig
from bertaccum.options.fields import AUTO
from bertaccum.options.offload_rungs import ACCUMULATORS, LADDER, SLOTS
from bertaccum.system.phrases import counted
from bertaccum.tasks.head import build_task_model, load_run, output_tokens


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
    with building_in(resolved_precision(config.precision)):
        frozen = _frozen(config, source.encoder.num_hidden_layers)
        encoder = build_encoder(
            source.encoder, config.dropout, output_tokens(config), frozen=frozen
        )
        if source.checkpoint is not None and source.format is not None and not source.of_run:
            load_encoder(encoder, source.format, source.checkpoint)
        set_recompute(encoder, config.recompute == "layer")
        model = build_task_model(config, encoder, source.encoder, outputs, config.dropout)
        if source.checkpoint is not None and source.of_run:
            digest = source.weights_digest  # It is recorded, so it must be that of what is loaded.
            _load_run(model, config, source, outputs, head is not None)
            dataclasses.replace(source).check_digest(digest)
            if head is not None and head != HeadMapping(list(range(outputs))):
                layer = model.get_layer(HEAD_LAYER).out_proj
                _set_head(layer, layer.kernel.numpy(), layer.bias.numpy(), head)
        elif source.checkpoint is not None and config.predicts_masked:
            assert source.format is not None
            load_masked_head(model.head.weights, source.format, source.checkpoint)
        elif source.checkpoint is not None and source.format is not None and head is not None:
            _load_head(model, source.format, source.checkpoint, head)
        freeze(encoder, config.train_layers, config.freeze == "embeddings")
        if (how := Adaptation.of(config)) is not None:
            adapt(encoder, how, config.seed)
        return model


def _frozen(config: TrainConfig, layers: int) -> Frozen:
    """Return which weights are never trained, and how they are stored."""
    dtype = None if config.frozen_dtype == "float32" else config.frozen_dtype
    if config.adapt != FULL:
        return Frozen(layers, True, dtype)
    chosen = config.train_layers is not None or config.freeze == "embeddings"
    trained = layers if config.train_layers is None else config.train_layers
    return Frozen(layers - trained, chosen, dtype)


def _load_run(
    model: tf_keras.Model, config: TrainConfig, source: ModelSource, outputs: int, head: bool
) -> None:
    """Give the model the weights of a run, whose head must have as many outputs if it is loaded."""
    assert source.checkpoint is not None
    if config.frozen_dtype == "float32":
        load_run(model, source.checkpoint, head)
        return
    # A checkpoint is read in its own dtype.
    encoder = build_encoder(source.encoder, 0.0, output_tokens(config))
    whole = build_task_model(config, encoder, source.encoder, outputs)
    load_run(whole, source.checkpoint, head)
    values = {weight.name: weight for weight in (whole if head else encoder).weights}
    for weight in model.weights:
        if weight.name in values:
            assign_in_place(weight, values[weight.name].numpy())


def _load_head(
    model: tf_keras.Model, form: CheckpointFormat, checkpoint: Path, head: HeadMapping
) -> None:
    """Give the model the head of a classifier that another tool fine-tuned."""
    kernel, bias = read_head(form, checkpoint)
    layer = model.get_layer(HEAD_LAYER).out_proj
    found, expected = [*kernel.shape, *bias.shape], [*layer.kernel.shape[::-1], *layer.bias.shape]
    if found != expected:
        raise InputError(
            f"its head has {counted(bias.size, 'output')}, but the data need {len(head.rows)}",
            "omit `keep_head` for a random head, or choose other data",
            path=checkpoint,
        )
    _set_head(layer, kernel.T, bias, head)


def _set_head(
    layer: tf_keras.layers.Dense, kernel: np.ndarray, bias: np.ndarray, head: HeadMapping
) -> None:
    """Set a layer to a checkpoint's head: its kernel [hidden, outputs] and its bias [outputs]."""
    layer.kernel.assign(kernel[:, head.rows] / head.std)
    layer.bias.assign((bias[head.rows] - head.mean) / head.std)


# Variables whose names contain one of these strings are exempt from weight decay.
NO_DECAY = ("bias", "layer_norm")
# tf_keras adds epsilon to the square root of the second moment before bias correction. With BERT's
# own 1e-6, epsilon would outweigh small gradients in the first updates, and training from random
# weights would stall.
_KINDS: dict[str, dict[str, Any]] = {
    ADAMW: {"epsilon": 1e-8, "bias_correction": True},
    BERT_ADAMW: {"epsilon": 1e-6, "bias_correction": False},
}

# The least number of units of an encoder, and its default peak learning rates with pretrained and
# with random weights. Those of the smallest models were measured with `python
# benchmarks/learning_rates.py rates`. The others are those that Devlin et al. 2019 recommend for
# 768 and 1,024 units, and that Turc et al. 2019 tried for small models.
_DEFAULT_RATES = ((768, 2e-5, 1e-4), (512, 1e-4, 1e-4), (256, 2e-4, 3e-4), (0, 3e-4, 5e-4))

Schedule: TypeAlias = tf_keras.optimizers.schedules.LearningRateSchedule


def make_optimizer(
    config: TrainConfig, updates: int, accumulation_steps: int, schedule: Schedule | None = None
) -> WindowOptimizer:
    """Return an accumulating optimizer around the AdamW variant that `config` selects.

    Args:
      config: Options of the run.
      updates: Length of the learning rate schedule.
      accumulation_steps: Number of micro-steps in a full window; with 1 there are no accumulators.
      schedule: Learning rate schedule; None for that of `make_schedule`.
    """
    inner: tf_keras.optimizers.Optimizer = InPlaceAdamW(
        learning_rate=schedule or make_schedule(config, updates),
        weight_decay=config.weight_decay,
        beta_2=config.adam_beta2,
        **_KINDS[config.optimizer],
    )
    inner.exclude_from_weight_decay(var_names=list(NO_DECAY))
    if resolved_precision(config.precision) == "mixed_float16":
        inner = tf_keras.mixed_precision.LossScaleOptimizer(inner)
    optimizer = WindowOptimizer(
        inner,
        accumulator_dtype=config.accumulator_dtype,
        gradient_transform=ClipByGlobalNorm(config.clip_norm),
        accumulates=accumulation_steps > 1,
    )
    offload(optimizer, config.offload, config.offload_folder)
    return optimizer


def offload(optimizer: WindowOptimizer, what: str, folder: str | None) -> None:
    """Move parts of an optimizer's state to host memory, or to files in `folder`.

    Raises:
      RunError: The folder cannot be used, or its disk is full.
    """
    moved = () if what == AUTO else LADDER[what].moved
    optimizer.offload(SLOTS in moved, ACCUMULATORS in moved, folder)


def default_learning_rate(source: ModelSource) -> float:
    """Return the default peak learning rate for a model to start from."""
    units, pretrained = source.encoder.hidden_size, source.checkpoint is not None
    rates = next(rates for least, *rates in _DEFAULT_RATES if units >= least)
    return rates[0] if pretrained else rates[1]


def make_schedule(config: TrainConfig, updates: int) -> Schedule:
    """Return a schedule with linear warm-up from 0 to the peak, then linear decay to 0.

    With `bert-adamw`, the decay starts at the first update, as in google-research/bert. When the
    warm-up ends, the learning rate therefore drops from the peak to the decay line.
    """
    # Measurements of steps do not know the model's rate.
    peak = config.learning_rate or _DEFAULT_RATES[0][1]
    if config.optimizer == BERT_ADAMW:
        line = tf_keras.optimizers.schedules.PolynomialDecay(peak, updates, 0.0)
        # google-research/bert rounds the warm-up down.
        warmup = int(updates * config.warmup_fraction)
        return WarmUp(peak, line, warmup) if warmup else line
    warmup = round(config.warmup_fraction * updates)
    decay = lr_schedule.PolynomialDecayWithOffset(
        initial_learning_rate=peak,
        decay_steps=max(updates - warmup, 1),
        end_learning_rate=0.0,
        offset=warmup,
    )
    if not warmup:
        return decay
    return lr_schedule.LinearWarmup(decay, warmup_steps=warmup, warmup_learning_rate=0.0)
