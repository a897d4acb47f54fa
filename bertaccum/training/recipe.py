"""The recipe's optimizer: AdamW, linear warm-up and decay, clipping, loss scaling."""

from __future__ import annotations

from typing import Any

import tf_keras
from official.modeling.optimization import lr_schedule
from official.nlp.optimization import WarmUp

from bertaccum.accumulation.adamw import InPlaceAdamW, OffloadedAdamW
from bertaccum.accumulation.optimizer import AccumulatingOptimizer
from bertaccum.accumulation.transforms import ClipByGlobalNorm
from bertaccum.bert.precision import resolved_precision
from bertaccum.config import ADAMW, BERT_ADAMW, TrainConfig

# Parts of the names of the variables that do not decay.
NO_DECAY = ("bias", "layer_norm")
# epsilon: tf_keras adds it to a second moment that is not bias-corrected, so that in the
# first updates BERT's own 1e-6 drowns small gradients; training from random weights stalls.
_KINDS: dict[str, dict[str, Any]] = {
    ADAMW: {"epsilon": 1e-8, "bias_correction": True},
    BERT_ADAMW: {"epsilon": 1e-6, "bias_correction": False},
}


def make_optimizer(
    config: TrainConfig, updates: int, accumulation_steps: int
) -> AccumulatingOptimizer:
    """AdamW as BERT is fine-tuned, inside the accumulating optimizer.

    Args:
      config: which of the two, learning rate, warm-up, decay, clipping and precision.
      updates: length of the whole schedule, in updates.
      accumulation_steps: micro-steps in a full window; with one there are no accumulators.
    """
    adamw = OffloadedAdamW if config.offload_optimizer else InPlaceAdamW
    inner: tf_keras.optimizers.Optimizer = adamw(
        learning_rate=make_schedule(config, updates),
        weight_decay=config.weight_decay,
        **_KINDS[config.optimizer],
    )
    inner.exclude_from_weight_decay(var_names=list(NO_DECAY))
    if resolved_precision(config.precision) == "mixed_float16":
        inner = tf_keras.mixed_precision.LossScaleOptimizer(inner)
    return AccumulatingOptimizer(
        inner,
        accumulation_steps,
        accumulator_dtype=config.accumulator_dtype,
        gradient_transform=ClipByGlobalNorm(config.clip_norm),
    )


def make_schedule(
    config: TrainConfig, updates: int
) -> tf_keras.optimizers.schedules.LearningRateSchedule:
    """From 0 to the peak over the warm-up, then in a straight line to 0 at the end.

    With `bert-adamw` that line is google-research/bert's, which starts at the first update: where
    the warm-up ends, the rate falls from the peak onto it.
    """
    if config.optimizer == BERT_ADAMW:
        line = tf_keras.optimizers.schedules.PolynomialDecay(config.learning_rate, updates, 0.0)
        # As it rounds: downwards.
        warmup = int(updates * config.warmup_fraction)
        return WarmUp(config.learning_rate, line, warmup) if warmup else line
    warmup = round(config.warmup_fraction * updates)
    decay = lr_schedule.PolynomialDecayWithOffset(
        initial_learning_rate=config.learning_rate,
        decay_steps=max(updates - warmup, 1),
        end_learning_rate=0.0,
        offset=warmup,
    )
    if not warmup:
        return decay
    return lr_schedule.LinearWarmup(decay, warmup_steps=warmup, warmup_learning_rate=0.0)
