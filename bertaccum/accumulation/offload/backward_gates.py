"""Gates that delay backpropagation until gradients are in host memory.

Without gates, a device that computes gradients faster than the host adds them would keep them all
in its memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from bertaccum import _tf_compat

_GATES = "bertaccum_gates"


@tf.autograph.experimental.do_not_convert
@tf.custom_gradient
def gate(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """Return `value`, and put a gate before the backpropagation to what computed it.

    The gate is open unless `close_gates` closes it.
    """

    def backward(gradient: tf.Tensor) -> tf.Tensor:
        passed = tf.identity(gradient)
        if not tf.executing_eagerly():
            tf.compat.v1.add_to_collection(_GATES, passed.op)
        return passed

    return tf.identity(value), backward


def close_gates(sent: Sequence[tuple[tf.Tensor, tf.Operation]]) -> None:
    """Close the gates of the present graph until gradients have been sent to the host.

    Each gate waits for all gradients that backpropagation computes before the previous gate, so
    that the device computes while the host adds.

    Args:
      sent: Gradients, in the order in which they are sent, each with the operation that sends it.
        Each operation waits for the one before it.
    """
    graph = tf.compat.v1.get_default_graph()
    gates = graph.get_collection_ref(_GATES)
    # A graph begins with the collections of the graph that calls it.
    own = [passed for passed in gates if passed.graph is graph]
    gates.clear()
    position = {operation: i for i, operation in enumerate(graph.get_operations() if own else [])}
    for before, passed in itertools.pairwise(own):
        # An operation of another graph has no position.
        ready = [send for g, send in sent if position.get(g.op, math.inf) < position[before]]
        if ready:
            _tf_compat.wait_for(passed, ready[-1])
