"""Training only small parts of an encoder: low-rank adapters, or biases.

Sources: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models"; Ben Zaken, Goldberg
and Ravfogel 2022, "BitFit: Simple Parameter-efficient Fine-tuning for Transformer-based Masked
Language-models".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import tensorflow as tf
import tf_keras

from bertaccum.bert.dropout import ADAPTER_SITE, ExampleDropout
from bertaccum.bert.encoder import POOLER, Encoder
from bertaccum.bert.in_place import assign_in_place
from bertaccum.bert.layers import LayerNorm, Projection
from bertaccum.bert.low_rank import LowRank
from bertaccum.options.adapting import BIAS, FULL, LORA, TARGETS, target_names
from bertaccum.options.commands import StepConfig


@dataclass(frozen=True)
class Adaptation:
    """How an encoder is adapted.

    Args:
      kind: LORA for low-rank adapters, or BIAS for biases.
      rank: Rank of adapters.
      alpha: Scale of adapters, which is divided by the rank.
      targets: Names in an encoder of the layers that get adapters.
      dropout: Dropout rate of adapters' inputs.
      train_layers: Number of last transformer layers to adapt; None for all.
    """

    kind: str
    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ()
    dropout: float = 0.0
    train_layers: int | None = None

    @staticmethod
    def of(config: StepConfig) -> Adaptation | None:
        """Return what the options select; None if whole layers are trained."""
        if config.adapt == FULL:
            return None
        rank, targets = config.lora_rank, target_names(config.lora_targets)
        alpha = float(config.lora_alpha or 2 * rank)
        return Adaptation(
            config.adapt, rank, alpha, targets, config.lora_dropout, config.train_layers
        )


def adapt(encoder: Encoder, how: Adaptation, seed: int = 0) -> None:
    """Freeze an encoder except for its pooler, and add adapters or train its biases.

    Args:
      encoder: An encoder whose layers that are not adapted are frozen; see `freeze`.
      seed: Seed of the adapters' initial weights.
    """
    for layer in encoder.hidden_layers:
        # Attention weights are most of the activations that frozen layers keep for long texts.
        layer.recompute_attention = True
    for layer in encoder.layers:
        if layer.name == POOLER:
            continue
        for part in (layer, *layer.submodules):
            if isinstance(part, Projection | LayerNorm) and how.kind == BIAS:
                part.frozen = frozenset({"kernel" if isinstance(part, Projection) else "gamma"})
            elif isinstance(part, tf_keras.layers.Layer) and not _contains_layers(part):
                part.trainable = False
    if how.kind == LORA:
        for site, projection in _targets(encoder, how):
            _add_adapter(projection, how, site, encoder.config.mask_width, seed)


def _contains_layers(part: tf_keras.layers.Layer) -> bool:
    return any(isinstance(inner, tf_keras.layers.Layer) for inner in part.submodules)


def _targets(encoder: Encoder, how: Adaptation) -> Iterator[tuple[int, Projection]]:
    """Yield the layers that get adapters, each with a number that is its own in the encoder."""
    names, count = list(TARGETS.values()), len(encoder.hidden_layers)
    first = 0 if how.train_layers is None else count - how.train_layers
    for number, layer in list(enumerate(encoder.hidden_layers))[first:]:
        for part in layer.submodules:
            if isinstance(part, Projection) and part.name in how.targets:
                yield ADAPTER_SITE + number * len(names) + names.index(part.name), part


def _add_adapter(layer: Projection, how: Adaptation, site: int, width: int, seed: int) -> None:
    outputs = math.prod(layer.bias.shape)
    shape = math.prod(layer.kernel.shape) // outputs, outputs
    dropout = ExampleDropout(how.dropout, site, width, dtype=layer.dtype_policy)
    adapter = LowRank(
        shape, how.rank, how.alpha / how.rank, dropout, (seed, site), dtype=layer.dtype_policy
    )
    with tf.name_scope(layer.kernel.name.removesuffix("kernel:0")):
        adapter.build()
    layer.trainable, layer.adapter = True, adapter
    layer.frozen = frozenset({"kernel", "bias"})


def adapters(encoder: Encoder) -> list[Projection]:
    """Return the layers that have adapters."""
    parts = [part for layer in encoder.hidden_layers for part in layer.submodules]
    return [part for part in parts if isinstance(part, Projection) and part.adapter is not None]


def merge(encoder: Encoder) -> None:
    """Undo `adapt` for an encoder with the same outputs: add its adapters to the kernels."""
    for layer in adapters(encoder):
        assert layer.adapter is not None
        product = layer.adapter.product().reshape(layer.kernel.shape)
        assign_in_place(layer.kernel, layer.kernel.numpy() + product)
        layer.adapter = None
    for layer in encoder.hidden_layers:
        layer.recompute_attention = False
    for layer in encoder.layers:
        if layer.name != POOLER:
            layer.trainable = True
            for part in (layer, *layer.submodules):
                if isinstance(part, Projection | LayerNorm):
                    part.frozen = frozenset()
