"""The time of updates on a GPU that is not in this machine, calculated from published figures.

While the host starts the operations of a micro-step, the device computes products and moves
tensors; the longer of the two counts. Then offloaded gradients cross the bus.
`benchmarks/gpu.py --parts errors` compares the results with measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.options.cards import Card
from bertaccum.options.offload_rungs import OFFLOAD_NONE, offloads_sums
from bertaccum.planning.measurement import MeasurementRequest

# Shares of the published rates that products, other operations and copies over the bus reach.
_OF_PRODUCTS, _OF_BANDWIDTH, _OF_BUS = 0.5, 0.8, 0.5
# Measured on the host of an H200: the time of AdamW's step and of an addition to an accumulator
# for one weight in host memory.
_HOST_ADAM_SECONDS, _HOST_SUM_SECONDS = 3e-9, 0.6e-9
# Bytes that the optimizer step moves for each weight, as its operations in the graph do.
_OPTIMIZER_BYTES = 72
# XLA's programs have about this many kernels in each layer, and a GPU starts one in this time.
_COMPILED_KERNELS, _KERNEL_SECONDS = 60, 2e-6


class Operations(NamedTuple):
    """The operations of an update that has several micro-batches.

    Nodes of the graph are counted as tests/training/test_nodes.py does. Bytes are those of the
    inputs and outputs of all operations except products, for one token or weight.

    Args:
      node_seconds: Time in which the host starts a node, measured with an H200.
      step, layer, recomputed: Nodes of a micro-step outside of the layers, in each layer, and in
        each layer if it is recomputed in addition.
      rest, rest_layer: Nodes of the rest of an update, outside of the layers and in each layer.
      hidden, recomputed_hidden: Bytes that a layer moves for each unit of the hidden size, and that
        recomputation moves in addition.
      scores: Bytes that a layer moves for each score of attention.
      ends: Bytes for each unit of the hidden size in the embeddings and in the last layer, which
        computes the output of one token.
      weights: Bytes for each trained weight outside of the embeddings.
    """

    node_seconds: float
    step: int
    layer: int
    recomputed: int
    rest: int
    rest_layer: int
    hidden: float
    recomputed_hidden: float
    scores: float
    ends: float
    weights: float


FLOAT32 = Operations(5.7e-6, 247, 279, 253, 264, 158, 1243, 832, 59, 560, 15)
HALF = Operations(9e-6, 268, 320, 272, 264, 158, 1151, 826, 22, 500, 33)
# Compiled: a tensor is written once and read once. A layer has 17 vectors of the hidden size, and
# scores and weights of attention.
COMPILED_FLOAT32 = Operations(5.7e-6, 46, 0, 0, 101, 0, 136, 45, 16, 136, 24)
COMPILED_HALF = Operations(9e-6, 46, 0, 0, 101, 0, 68, 22, 8, 68, 24)


class MicroStep(NamedTuple):
    """The parts of a micro-step's time in seconds.

    Args:
      products: Time of the matrix products.
      moving: Time in which other operations read and write the memory of the device.
      host: Time in which the host starts the operations, while the device computes.
      offloading: Time in which gradients cross the bus and are added on the host.
    """

    products: float
    moving: float
    host: float
    offloading: float

    @property
    def seconds(self) -> float:
        """The time of the micro-step."""
        return max(self.products + self.moving, self.host) + self.offloading


@dataclass(frozen=True)
class CalculatedTime:
    """Calculates how long updates take on a card.

    Args:
      card: The card.
      encoder: Dimensions of the encoder.
      precision: Precision of the model.
      train_layers: Number of layers to train; None for all.
      freeze_embeddings: Whether the embeddings are frozen.
      adapted: Number of weights to train if these are only biases and adapters; None if they are
        whole layers.
      counted: Operations of an update, if they are not those of this version.
      every_token: Whether the last layer computes the output of every token, as tags of words
        require, instead of that of one token.
    """

    card: Card
    encoder: EncoderConfig
    precision: str
    train_layers: int | None = None
    freeze_embeddings: bool = False
    adapted: int | None = None
    counted: Operations | None = None
    every_token: bool = False

    def update_seconds(self, request: MeasurementRequest) -> float:
        """Return the time of an update; steps are compiled if the request says how to pad them."""
        shapes = request.padded
        if shapes is None:
            shapes = [(sum(p for p, _ in m), max(n for _, n in m)) for m in request.micro_batches]
        steps = (self.micro_step(rows, length, request).seconds for rows, length in shapes)
        return sum(steps) + self.optimizer_step(request)

    def micro_step(self, rows: float, length: float, request: MeasurementRequest) -> MicroStep:
        """Return the times of a micro-step of some rows (passages) of a length in tokens."""
        of, recomputed = self._operations(request), request.recompute == "layer"
        all_layers, hidden = self.encoder.num_hidden_layers, self.encoder.hidden_size
        nodes = of.step + all_layers * (of.layer + recomputed * of.recomputed)
        # Backpropagation ends at the first trained layer, and takes two thirds of a step.
        ends = 0 if self.every_token else 1
        layers = (all_layers - ends + 2 * max(self._trained_layers - ends, 0)) / 3
        scores = of.scores * length * self.encoder.num_attention_heads
        moved = layers * ((of.hidden + recomputed * of.recomputed_hidden) * hidden + scores)
        moved = rows * length * (moved + of.ends * hidden)
        weights = self._weights(embeddings=False)
        moved += weights * (of.weights - 8 * (not request.accumulate))
        moving = self._moving(moved)
        if request.padded is not None:
            moving += (layers + 1) * _COMPILED_KERNELS * _KERNEL_SECONDS
        # The gradients of words that do not occur stay on the device.
        offloading = self._copying(weights) + weights * _HOST_SUM_SECONDS
        return MicroStep(
            self._products(rows, length, recomputed),
            moving,
            of.node_seconds * nodes,
            offloading if offloads_sums(request.offload) else 0.0,
        )

    def _operations(self, request: MeasurementRequest) -> Operations:
        if self.counted is not None:
            return self.counted
        compiled = request.padded is not None
        if self.precision == "float32":
            return COMPILED_FLOAT32 if compiled else FLOAT32
        return COMPILED_HALF if compiled else HALF

    def optimizer_step(self, request: MeasurementRequest) -> float:
        """Return the time of the optimizer step in seconds."""
        of, weights = self._operations(request), self._weights(embeddings=True)
        host = of.node_seconds * (of.rest + self.encoder.num_hidden_layers * of.rest_layer)
        seconds = max(host, self._moving(_OPTIMIZER_BYTES * weights))
        if request.offload == OFFLOAD_NONE:
            return seconds
        # The gradients have crossed the bus before if they are summed on the host.
        crossing = weights if offloads_sums(request.offload) else 2 * weights
        return seconds + self._copying(crossing) + weights * _HOST_ADAM_SECONDS

    def _products(self, rows: float, length: float, recomputed: bool) -> float:
        """Return the time of the matrix products."""
        e, tokens = self.encoder, rows * length
        size = 4 if self.precision == "float32" else 2
        hidden, inner, heads = e.hidden_size, e.intermediate_size, e.num_attention_heads
        # Frozen kernels need no gradients, which are half of the products of backpropagation.
        backward = (2 if self.adapted is None else 1) * self._trained_layers / e.num_hidden_layers
        passes = 1 + backward + recomputed
        seconds, last = 0.0, tokens if self.every_token else rows
        for queries, layers in ((tokens, e.num_hidden_layers - 1), (last, 1)):
            dense = 2 * hidden * (2 * tokens * hidden + queries * (2 * hidden + 2 * inner))
            values = 2 * hidden * (2 * tokens + 2 * queries) + 2 * queries * (hidden + inner)
            values += hidden * (4 * hidden + 2 * inner)
            one = self._product(dense, size * values)
            attention = 4 * queries * length * hidden
            values = 2 * (tokens + queries) * hidden + 2 * queries * length * heads
            one += self._product(attention, size * values)
            seconds += layers * passes * one
        return seconds

    def _product(self, operations: float, moved_bytes: float) -> float:
        rate = self.card.float32 if self.precision == "float32" else self.card.half
        return max(operations / (_OF_PRODUCTS * rate * 1e12), self._moving(moved_bytes))

    def _moving(self, moved_bytes: float) -> float:
        return moved_bytes / (_OF_BANDWIDTH * self.card.bandwidth * 1e9)

    def _copying(self, numbers: float) -> float:
        return 4 * numbers / (_OF_BUS * self.card.bus * 1e9)

    @property
    def _trained_layers(self) -> int:
        all_layers = self.encoder.num_hidden_layers
        return all_layers if self.train_layers is None else min(self.train_layers, all_layers)

    def _weights(self, embeddings: bool) -> int:
        if self.adapted is not None:
            return self.adapted
        frozen = self.freeze_embeddings or not embeddings
        return self.encoder.trained_parameters(self.train_layers, frozen)
