"""One update as a `tf.function`: a loop over micro-batches, then one optimizer step.

Loops and conditions are written out, without AutoGraph, which would convert every layer and the
optimizer and take a quarter of the time before the first update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from bertaccum.accumulation.gradient_products import GradientProducts
from bertaccum.accumulation.optimizer import AccumulatingOptimizer
from bertaccum.accumulation.replicas import here
from bertaccum.bert.dropout import Masks, draw_masks, dropout_masks
from bertaccum.data.windows import Window, fields, signature
from bertaccum.distribution.topology import Topology
from bertaccum.distribution.watchdog import WAITING, Watch
from bertaccum.errors import RunError
from bertaccum.planning.device_memory import survive_lack_of_memory
from bertaccum.tasks import forward
from bertaccum.tasks.task import Task


def make_update(
    task: Task,
    model: tf_keras.Model,
    optimizer: AccumulatingOptimizer,
    seed: int,
    accumulate: bool,
    stopped: tf.Variable | None = None,
    dropout_stream: str = "example",
) -> Callable[[Window], dict[str, Any]]:
    """Build a function that runs one update of `model` with `optimizer`.

    Args:
      task: Task of the model.
      model: Model that takes the inputs returned by `encoder_inputs`.
      optimizer: Optimizer that accumulates and applies the gradients.
      seed: Seed of dropout. With `dropout_stream` "example", a mask depends on the seed, the number
        of the update and the example's position in the window.
      accumulate: Whether windows may have several micro-batches; if not, there are no accumulators.
      stopped: Boolean variable in host memory. Once it is True, no further micro-batch starts and
        the update is not applied.
      dropout_stream: How dropout masks are seeded, "example" or "micro-batch".

    Returns:
      A function that takes a `Window`, updates the weights and returns a dict. `loss` is the
        weighted mean loss of the window, and `losses` contains each micro-batch's contribution to
        it. `grad_norm` is the global norm of the mean gradient before clipping. `learning_rate` is
        the rate of the update. `finished` is False if the update was stopped; in that case, the
        accumulated sums remain. `applied` is False if the update was stopped, or skipped because a
        gradient was not finite.
    """
    if stopped is None:
        with tf.device("CPU"):
            stopped = tf.Variable(False, trainable=False)
    survive_lack_of_memory()
    run = _accumulated if accumulate else _single
    optimizer.build(model.trainable_variables)

    @tf.function(input_signature=signature(task.label_shape, task.label_dtype), autograph=False)
    def update(*window: tf.Tensor) -> dict[str, tf.Tensor]:
        share = open_share(model, optimizer, seed, dropout_stream, window)
        return run(task, model, optimizer, share, stopped) | of_update(optimizer)

    return lambda window: in_python(update(*fields(window)))


def of_update(optimizer: AccumulatingOptimizer) -> dict[str, tf.Tensor]:
    """Return gradient norm, learning rate and gradient products of the optimizer's last update."""
    values = {"grad_norm": optimizer.gradient_norm, "learning_rate": optimizer.learning_rate}
    if isinstance(products := optimizer.observer, GradientProducts):
        values |= {"gradient_square": products.square, "gradient_product": products.product}
    return {name: tf.identity(value) for name, value in values.items()}


def in_python(results: dict[str, tf.Tensor]) -> dict[str, Any]:
    """Convert tensors to Python numbers and lists."""
    return {name: value.numpy().tolist() for name, value in results.items()}


@dataclass(frozen=True)
class Share:
    """The tensors of a window, or of a replica's share of a window, with dropout masks.

    Args:
      tokens: Token ids, [examples, (length)] int32.
      labels: Labels, [examples, *label_shape].
      weights: Weights of the examples in the loss, [examples] float32.
      window_weight: Sum of the weights in the whole window, [] float32.
      cuts: Index of each micro-batch's first example, then the number of examples,
        [micro_steps + 1] int32.
      masks: Dropout masks of these examples.
      window_examples: Number of examples in the whole window, [] int32.
    """

    tokens: tf.RaggedTensor
    labels: tf.Tensor
    weights: tf.Tensor
    window_weight: tf.Tensor
    cuts: tf.Tensor
    masks: Masks
    window_examples: tf.Tensor


def open_share(
    model: tf_keras.Model,
    optimizer: AccumulatingOptimizer,
    seed: int,
    dropout_stream: str,
    window: tuple[tf.Tensor, ...],
) -> Share:
    """Build the share from the tensors of `fields`, with dropout masks for the next update."""
    token_ids, row_splits, labels, cuts, positions, examples, weights, total = window
    tokens = tf.RaggedTensor.from_row_splits(token_ids, row_splits, validate=False)
    own_seed = tf.stack([tf.constant(seed, tf.int64), here(optimizer.iterations).read_value()])
    masks = draw_masks(model, own_seed, examples, positions, dropout_stream)
    return Share(tokens, labels, weights, total, cuts, masks, examples)


def _accumulated(
    task: Task,
    model: tf_keras.Model,
    optimizer: AccumulatingOptimizer,
    share: Share,
    stopped: tf.Variable,
) -> dict[str, tf.Tensor]:
    def apply() -> tf.Tensor:
        optimizer.avoid_copies()
        return optimizer.apply()

    results = accumulate_share(task, model, optimizer, share, stopped)
    applied = tf.cond(results["finished"], apply, lambda: tf.constant(False))
    return results | {"applied": applied}


def accumulate_share(
    task: Task,
    model: tf_keras.Model,
    optimizer: AccumulatingOptimizer,
    share: Share,
    stopped: tf.Variable,
) -> dict[str, tf.Tensor]:
    """Run the micro-steps of a share without communication, until they end or `stopped` is set."""
    steps = tf.size(share.cuts) - 1

    def unfinished(step: tf.Tensor, *_: Any) -> tf.Tensor:
        return (step < steps) & ~stopped.read_value()

    def run(step: tf.Tensor, total: tf.Tensor, losses: tf.TensorArray) -> tuple[Any, ...]:
        start, end = share.cuts[step], share.cuts[step + 1]
        part = share.tokens[start:end], share.labels[start:end], share.weights[start:end]
        with dropout_masks(share.masks.of_micro_batch(start)):
            loss, pairs = micro_step(task, model, optimizer, *part, share.window_weight)
        optimizer.accumulate(pairs, weight=(end - start) / share.window_examples)
        return step + 1, total + loss, losses.write(step, loss)

    losses = tf.TensorArray(tf.float32, steps, element_shape=[])
    # Parallel iterations would keep the activations of several micro-batches in memory.
    step, total, losses = tf.while_loop(
        unfinished, run, (tf.constant(0), tf.constant(0.0), losses), parallel_iterations=1
    )
    return {"loss": total, "losses": losses.stack(), "finished": step == steps}


def _single(
    task: Task,
    model: tf_keras.Model,
    optimizer: AccumulatingOptimizer,
    share: Share,
    _: tf.Variable,
) -> dict[str, tf.Tensor]:
    # The window is a single micro-batch.
    with dropout_masks(share.masks.of_micro_batch(share.cuts[0])):
        loss, pairs = micro_step(
            task,
            model,
            optimizer,
            share.tokens,
            share.labels,
            share.weights,
            share.window_weight,
        )
    applied = optimizer.apply_sums(pairs, weight=1.0)
    finished = tf.constant(True)
    return {"loss": loss, "losses": loss[tf.newaxis], "finished": finished, "applied": applied}


def micro_step(
    task: Task,
    model: tf_keras.Model,
    optimizer: AccumulatingOptimizer,
    tokens: tf.RaggedTensor,
    labels: tf.Tensor,
    weights: tf.Tensor,
    window_weight: tf.Tensor,
) -> tuple[tf.Tensor, list[Any]]:
    """Return a micro-batch's contribution to the window's mean loss, and its gradients.

    The contribution is the weighted sum of the losses divided by the sum of the weights in the
    whole window, not in the micro-batch; otherwise the update would depend on the micro-batch size.
    With a loss scale, float16 therefore overflows exactly when it would if the whole window were
    one micro-batch.

    Args:
      task: Task of the model.
      model: Model to differentiate.
      optimizer: Optimizer that scales the loss.
      tokens: Token ids, [micro_batch, (length)] int32.
      labels: Labels, [micro_batch, *label_shape].
      weights: Weights of the examples, [micro_batch] float32.
      window_weight: Sum of the weights in the whole window, [] float32. If it is 0, loss and
        gradients are 0.
    """
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        logits = forward.logits_of(model, tokens, training=True)
        losses = task.losses(logits, labels)  # [micro_batch]
        loss = tf.math.divide_no_nan(tf.reduce_sum(losses * weights), window_weight)
        scaled = optimizer.scale_loss(loss)
    return loss, list(zip(tape.gradient(scaled, variables), variables, strict=True))


# Numbers that the replicas sum together with the gradients. If the sum of the objections is not 0,
# the window is dropped.
REPORTED = ("objections", "loss", "micro_steps", "padded_tokens")


class SharedUpdate:
    """Updates that several replicas run together, each in two parts.

    `accumulate` is local to each worker. If a worker runs out of memory, it repeats `accumulate`
    with smaller micro-batches while the others wait in `apply`, which communicates once.

    Args:
      task, model, optimizer, seed, dropout_stream, stopped: Arguments of `make_update`.
      topology: Replicas of the run; model and optimizer were created in its strategy's scope.
      watch: Watch to which the update reports the activity of this worker.
    """

    def __init__(
        self,
        task: Task,
        model: tf_keras.Model,
        optimizer: AccumulatingOptimizer,
        seed: int,
        dropout_stream: str,
        stopped: tf.Variable,
        topology: Topology,
        watch: Watch,
    ) -> None:
        survive_lack_of_memory()
        self._watch = watch
        self._strategy, number = topology.strategy, topology.present_replica
        with self._strategy.scope():
            optimizer.build(model.trainable_variables)

        one_share = signature(task.label_shape, task.label_dtype)
        width = len(one_share)

        @tf.function(input_signature=one_share * topology.local_replicas, autograph=False)
        def accumulate(*flat: tf.Tensor) -> Any:
            def own() -> dict[str, tf.Tensor]:
                start = width * number()
                window = flat[start : start + width]
                share = open_share(model, optimizer, seed, dropout_stream, window)
                return accumulate_share(task, model, optimizer, share, stopped)

            return self._strategy.run(own)

        @tf.function(input_signature=[tf.TensorSpec([len(REPORTED)], tf.float64)], autograph=False)
        def apply(report: tf.Tensor) -> dict[str, tf.Tensor]:
            def one() -> dict[str, tf.Tensor]:
                optimizer.avoid_copies()
                own = report if number() == 0 else tf.zeros_like(report)
                applied, total = optimizer.apply(own)
                return {"applied": applied, "total": total} | of_update(optimizer)

            results = self._strategy.run(one)
            return {name: self._local(value)[0] for name, value in results.items()}

        self._accumulate, self._apply = accumulate, apply

    def __call__(self, shares: list[Window]) -> dict[str, Any]:
        """Run one update: accumulate this worker's gradients, then apply the sum of all workers.

        Args:
          shares: One share of the window for each replica of this worker.

        Returns:
          The values returned by a function that `make_update` built, and the `REPORTED` numbers
            summed over workers. `losses` contains one list for each replica of this worker.

        Raises:
          tf.errors.ResourceExhaustedError: This worker's shares do not fit in memory. Drop the
            accumulated sums and try again with smaller micro-batches.
          RunError: The reduction or the optimizer step does not fit in memory.
        """
        self._watch.doing("training")
        own = self.accumulate(shares)
        finished = all(part["finished"] for part in own)
        report = [
            float(not finished),
            sum(part["loss"] for part in own),
            sum(share.micro_steps for share in shares),
            sum(share.padded_tokens for share in shares),
        ]
        self._watch.doing(WAITING)
        try:
            results = self.apply(report)
        except tf.errors.ResourceExhaustedError:
            raise RunError(
                "out of memory while replicas added up their gradients",
                "lower `micro_batch` or raise `memory_limit`, then run again with `resume`",
            ) from None
        losses = [part["losses"] for part in own]
        return results | {"losses": losses, "finished": results["objections"] == 0}

    def accumulate(self, shares: Sequence[Window]) -> list[dict[str, Any]]:
        """Run all micro-steps of this worker's shares.

        Args:
          shares: One share of the window for each replica of this worker.

        Returns:
          For each replica, its `loss` (its contribution to the window's mean loss), the `losses`
            of its micro-batches, and `finished`.
        """
        results = self._accumulate(*(field for share in shares for field in fields(share)))
        parts = {name: self._local(value) for name, value in results.items()}
        return [
            in_python({name: values[number] for name, values in parts.items()})
            for number in range(len(shares))
        ]

    def apply(self, report: Sequence[float]) -> dict[str, Any]:
        """Sum the gradients over all replicas and apply them, unless a worker objects.

        If a worker objects, all workers drop the window.

        Args:
          report: This worker's `REPORTED` numbers.

        Returns:
          The sums of these numbers over workers, and `applied`, `grad_norm` and `learning_rate`,
            keyed by name.
        """
        results = in_python(self._apply(np.array(report, np.float64)))
        return results | dict(zip(REPORTED, results.pop("total"), strict=True))

    def _local(self, value: Any) -> tuple[Any, ...]:
        return self._strategy.experimental_local_results(value)
