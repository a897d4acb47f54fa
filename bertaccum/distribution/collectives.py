"""Collective operations on small values, other than gradients, between workers."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from bertaccum.distribution.topology import Topology
from bertaccum.errors import BertAccumError, InputError, RunError
from bertaccum.options.fields import means_the_same


def sum_over_workers(topology: Topology, value: np.ndarray) -> np.ndarray:
    """Return the sum over all workers, which all call this, of arrays of equal shape and dtype."""
    if topology.workers == 1:
        return value
    kind = np.int32 if value.dtype == bool else value.dtype
    flat = _reduction(topology, tf.as_dtype(kind))(value.astype(kind).reshape(-1))
    return np.asarray(flat.numpy()).astype(value.dtype).reshape(value.shape)


@functools.cache
def _reduction(topology: Topology, dtype: tf.DType) -> Callable[[np.ndarray], tf.Tensor]:
    """Return a function that sums a vector of `dtype` over all workers."""
    strategy = topology.strategy

    @tf.function(input_signature=[tf.TensorSpec([None], dtype)])
    def reduced(value: tf.Tensor) -> tf.Tensor:
        def one() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            own = tf.identity(value) if topology.present_replica() == 0 else tf.zeros_like(value)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

        return strategy.experimental_local_results(strategy.run(one))[0]

    return reduced


def all_gather(topology: Topology, value: Any) -> list[Any]:
    """Return the JSON values of all workers, the chief's first; every worker must call this."""
    if topology.workers == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = np.zeros(topology.workers, np.int32)
    lengths[topology.worker] = len(text)
    texts = np.zeros([topology.workers, sum_over_workers(topology, lengths).max()], np.int32)
    texts[topology.worker, : len(text)] = text
    rows = sum_over_workers(topology, texts).astype(np.uint8)
    return [json.loads(row.tobytes().rstrip(b"\0")) for row in rows]


def broadcast(topology: Topology, find: Callable[[], Any]) -> Any:
    """Return a JSON value that `find` computes on the chief; every worker must call this.

    Raises:
      InputError, RunError: `find` raised an error on the chief. All workers raise it.
    """
    if topology.workers == 1:
        return find()
    message, mine = {}, None
    if topology.chief:
        try:
            message = {"value": find()}
        except BertAccumError as error:
            message, mine = {"message": str(error), "exit_code": error.exit_code}, error
    message = all_gather(topology, message)[0]
    if "message" in message:
        kind = InputError if message["exit_code"] == InputError.exit_code else RunError
        raise mine or kind(f"worker 0: {message['message']}")
    return message["value"]


def differences(gathered: list[dict[str, Any]]) -> list[str]:
    """Return a phrase, for an error message, about each value that differs from the chief's."""
    return [
        f"{name} ({value} on worker {worker}, {gathered[0].get(name)} on worker 0)"
        for worker, values in enumerate(gathered)
        for name, value in values.items()
        if not means_the_same(name.strip("`"), value, gathered[0].get(name))
    ]
