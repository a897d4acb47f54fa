"""A small model fitted with a large batch and with accumulation.

`main` compares the two under a distribution strategy. It needs a process of its own, because the
strategy must be created before TensorFlow starts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from bertaccum import AccumulatingOptimizer
from bertaccum.accumulation import accumulate_gradients

WINDOW, EXAMPLES, EPOCHS = 16, 64, 2
UNEVEN_WINDOW = 15
LossScale = tf_keras.mixed_precision.LossScaleOptimizer


def data(overflow: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return features and targets; with `overflow`, a target in the second window is infinite.

    With several replicas, this target belongs to the last one, in the third micro-batch.
    """
    rng = np.random.default_rng(0)
    features = rng.normal(size=(EXAMPLES, 3)).astype(np.float32)
    targets = rng.normal(size=(EXAMPLES, 1)).astype(np.float32)
    if overflow:
        targets[WINDOW + 2 * WINDOW // 4 + 3] = np.inf
    return features, targets


def model() -> tf_keras.Model:
    tf_keras.utils.set_random_seed(0)
    return tf_keras.Sequential(
        [
            tf_keras.layers.Input((3,)),
            tf_keras.layers.Dense(4, activation="tanh"),
            tf_keras.layers.Dense(1),
        ]
    )


def adamw() -> tf_keras.optimizers.Optimizer:
    """Return an AdamW whose schedule, decay and moving average must count updates."""
    schedule = tf_keras.optimizers.schedules.PolynomialDecay(0.05, 20, 0.0)
    return tf_keras.optimizers.AdamW(
        schedule, weight_decay=0.1, global_clipnorm=0.5, use_ema=True, ema_momentum=0.9
    )


def accumulating(scale: str, steps: int) -> tf_keras.optimizers.Optimizer:
    """Return an accumulating optimizer with its loss scale `inner`, `outer` or `none`."""
    inner = LossScale(adamw()) if scale == "inner" else adamw()
    optimizer = AccumulatingOptimizer(inner, steps)
    return LossScale(optimizer) if scale == "outer" else optimizer


def fit(
    make_optimizer: Callable[[], tf_keras.optimizers.Optimizer],
    batch: int,
    overflow: bool = False,
    **options: object,
) -> tuple[np.ndarray, tf_keras.Model]:
    """Fit a model for two epochs; return its trainable variables as a vector, and the model."""
    network = options.pop("network", model)()
    network.compile(make_optimizer(), "mse", **options)
    network.fit(*data(overflow), batch_size=batch, epochs=EPOCHS, shuffle=False, verbose=0)
    return np.concatenate([w.numpy().ravel() for w in network.trainable_variables]), network


def make_strategy(replicas: int) -> tf.distribute.Strategy:
    if not replicas:
        return tf.distribute.MultiWorkerMirroredStrategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(cpu, logical)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def count_reductions() -> set[int]:
    """Return a set that collects the sizes of all later reductions of a replica, in elements."""
    sizes: set[int] = set()
    all_reduce = tf.distribute.ReplicaContext.all_reduce

    def counted(self, operation, value, *rest):
        tensors = tf.nest.flatten(value)
        sizes.add(sum(tensor.shape.num_elements() for tensor in tensors))
        return all_reduce(self, operation, value, *rest)

    tf.distribute.ReplicaContext.all_reduce = counted
    return sizes


# Number of examples per replica, of eight in all, by the number of replicas.
SHARES = {1: [8], 2: [3, 5], 4: [1, 2, 2, 3]}


def loop() -> tuple[np.ndarray, tf_keras.Model]:
    """Train like `fit`, but with the explicit interface in windows of two micro-steps.

    The function uses the current strategy.
    """
    strategy = tf.distribute.get_strategy()
    network, optimizer = model(), AccumulatingOptimizer(LossScale(adamw()))
    network.optimizer = optimizer
    ends = np.cumsum([0, *SHARES[strategy.num_replicas_in_sync]])

    def micro_step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum((network(x, training=True) - y) ** 2))
        pairs = zip(tape.gradient(loss, network.variables), network.variables, strict=True)
        optimizer.accumulate(pairs, len(x))

    run = tf.function(lambda *batch: strategy.run(micro_step, batch))
    # `apply` and `flush` are called in cross-replica context; the last update tests `flush`.
    apply, flush = tf.function(optimizer.apply), tf.function(optimizer.flush)
    x, y = (np.concatenate([array] * EPOCHS) for array in data())
    for micro in range(EPOCHS * EXAMPLES // 8):

        def share(context: Any, array: np.ndarray, start: int = 8 * micro) -> np.ndarray:
            replica = context.replica_id_in_sync_group
            return array[start + ends[replica] : start + ends[replica + 1]]

        distribute = strategy.experimental_distribute_values_from_function
        run(*(distribute(functools.partial(share, array=array)) for array in (x, y)))
        last = micro + 1 == EPOCHS * EXAMPLES // 8
        assert micro % 2 == 0 or (flush() if last else apply())
    assert not flush()
    optimizer.finalize_variable_values(network.trainable_variables)
    return np.concatenate([w.numpy().ravel() for w in network.trainable_variables]), network


def count_collectives(network: tf_keras.Model) -> str:
    """Return a training step's collectives: elements outside of branches, counts per branch."""
    concrete = network.train_tf_function._list_all_concrete_functions()[0]
    kind = "CollectiveReduceV2"
    outside = [op for op in concrete.graph.get_operations() if op.type == kind]
    functions = concrete.graph.as_graph_def().library.function
    inside = [sum(node.op == kind for node in f.node_def) for f in functions]
    elements = sorted(op.inputs[0].shape.num_elements() for op in outside)
    return f"{elements} branches {[count for count in inside if count]}"


def main(replicas: int, scale: str, overflow: bool = False, executions: int = 1) -> None:
    """Print the largest difference of the weights, the number of updates, and the communication.

    The latter are the sizes of the reductions over replicas in one trace (in elements), and the
    collectives in the graph.

    Args:
      replicas: Number of logical CPUs; 0 for one of several workers, with a TF_CONFIG.
      scale: Where the loss scale is: `inner`, `outer` or `none`. `model` accumulates with
        `accumulate_gradients`, and with batches of different sizes. `loop` uses the explicit
        interface instead of `fit`, with replicas of unequal shares.
      overflow: Whether a target is infinite.
      executions: Number of batches per execution, with `model`.
    """
    strategy = make_strategy(replicas)
    # With `model`, windows have 15 examples in batches of 5, which two replicas cannot share
    # equally; the last window has 4 examples.
    window = UNEVEN_WINDOW if scale == "model" else WINDOW
    with tf.device("CPU:0"), tf.distribute.OneDeviceStrategy("CPU:0").scope():
        expected, _ = fit(lambda: LossScale(adamw()), window, overflow, run_eagerly=True)
    sizes = count_reductions()
    with strategy.scope():
        if scale == "model":
            network = lambda: accumulate_gradients(model(), 3)  # noqa: E731
            options = {"network": network, "steps_per_execution": executions}
            weights, network = fit(adamw, window // 3, **options)
        elif scale == "loop":
            weights, network = loop()
        else:
            weights, network = fit(lambda: accumulating(scale, 4), window // 4, overflow)
    difference = np.abs(weights - expected).max()
    updates = int(network.optimizer.iterations.numpy())
    print(f"difference {difference:.3e} updates {updates} reduced {sorted(sizes)}")
    if network.train_tf_function is not None:
        print("collectives", count_collectives(network))
