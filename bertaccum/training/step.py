"""One update as a `tf.function`: a loop over micro-batches, then one optimizer step.

Loops and conditions are written out, without AutoGraph, which would convert every layer and the
optimizer and take a quarter of the time before the first update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum.accumulation.compiled import maybe_compiled
from bertaccum.accumulation.gradient_products import GradientProducts
from bertaccum.accumulation.replicas import here
from bertaccum.accumulation.window import WindowOptimizer
from bertaccum.bert.dropout import Masks, draw_masks, dropout_masks
from bertaccum.bert.packed_tokens import PaddedTexts
from bertaccum.data.windows import Window, signature
from bertaccum.distribution.device_memory import disable_fused_matmul
from bertaccum.tasks import forward
from bertaccum.tasks.task import Objective


@dataclass(frozen=True)
class Share:
    """A replica's share of a window: tensors that `windows.fields` returned, and dropout masks."""

    micro_batches: tf.Tensor
    tokens: tf.Tensor
    passages: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor
    window_examples: tf.Tensor
    window_weight: tf.Tensor
    masks: Masks
    # Returns the positions that the head reads in tokens [rows, length].
    read: Callable[[tf.Tensor], tf.Tensor | None]

    @property
    def micro_steps(self) -> tf.Tensor:
        return tf.shape(self.micro_batches)[0]

    def micro_batch(self, step: Any) -> MicroBatch:
        """Return the micro-batch with the number `step`."""
        token, row, rows, length, examples = tf.unstack(self.micro_batches[step])
        tokens = tf.reshape(tf.slice(self.tokens, [token], [rows * length]), [rows, length])
        passages = tf.slice(self.passages, [row, 0], [rows, 3])
        lengths, texts, numbers = tf.unstack(passages, num=3, axis=1)
        return MicroBatch(
            PaddedTexts(tokens, lengths, texts, numbers, self.read(tokens)),
            self.labels[row : row + rows],
            self.weights[row : row + rows],
            self.masks.of_micro_batch(row, rows),
            tf.math.divide_no_nan(
                tf.cast(examples, tf.float64), tf.cast(self.window_examples, tf.float64)
            ),
            self.window_weight,
        )


@dataclass(frozen=True)
class MicroBatch:
    """The tensors of a micro-batch; there may be more examples than it has, with weight 0.

    Args:
      texts: Tokens of the examples.
      labels: Labels, [rows, *label_shape].
      weights: Weights of the examples in the loss, [rows] float32.
      masks: Dropout masks of the examples.
      share: The micro-batch's share of the window's examples, [] float64.
      window_weight: Sum of the weights in the whole window, [] float32.
    """

    texts: PaddedTexts
    labels: tf.Tensor
    weights: tf.Tensor
    masks: Masks
    share: tf.Tensor
    window_weight: tf.Tensor


@dataclass(frozen=True)
class Trainee:
    """A model in training, and everything else that updates use besides their windows.

    Args:
      objective: Labels and losses of the updates, such as a task.
      model: Model that takes the inputs returned by `encoder_inputs`.
      optimizer: Optimizer that accumulates and applies the gradients.
      seed: Seed of dropout. With `dropout_stream` "example", a mask depends on the seed, the number
        of the update and the example's position in the window.
      dropout_stream: How dropout masks are seeded, "example" or "micro-batch".
      compile: Whether XLA compiles the micro-steps.
    """

    objective: Objective
    model: tf_keras.Model
    optimizer: WindowOptimizer
    seed: int
    dropout_stream: str = "example"
    compile: bool = False

    def signature(self) -> list[tf.TensorSpec]:
        """Return the shapes and dtypes of the tensors of a window."""
        return signature(self.objective.label_shape, self.objective.label_dtype)

    def open_share(self, window: tuple[tf.Tensor, ...]) -> Share:
        """Build the share from the tensors of `fields`, with dropout masks for the next update."""
        micro_batches, tokens, passages, positions, labels, weights, examples, total = window
        number = here(self.optimizer.iterations).read_value()
        seed = tf.stack([tf.constant(self.seed, tf.int64), number])
        masks = draw_masks(
            self.model, seed, examples, positions, self.dropout_stream, self._maybe_compiled
        )
        # XLA needs the number of positions before it compiles a micro-step.
        read = partial(forward.read_positions, self.model, static=self.compile)
        return Share(micro_batches, tokens, passages, labels, weights, examples, total, masks, read)

    def _maybe_compiled(self, function: Callable[[], Any]) -> Any:
        return maybe_compiled(function, self.compile)

    def micro_step(self, batch: MicroBatch) -> tuple[tf.Tensor, list[Any]]:
        """Return a micro-batch's contribution to the window's mean loss, and its gradients.

        The contribution is the weighted sum of the losses divided by the sum of the weights in the
        whole window, not in the micro-batch; otherwise the update would depend on the micro-batch
        size. With a loss scale, float16 therefore overflows exactly when it would if the whole
        window were one micro-batch. If the window's weight is 0, loss and gradients are 0.
        """
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape, dropout_masks(batch.masks):
            losses = forward.losses_in_training(
                self.objective, self.model, batch.texts, batch.labels
            )
            loss = tf.math.divide_no_nan(tf.reduce_sum(losses * batch.weights), batch.window_weight)
            scaled = self.optimizer.scale_loss(loss)
        return loss, tape.gradient(scaled, variables)

    def accumulate(self, share: Share, stopped: tf.Variable) -> dict[str, tf.Tensor]:
        """Run the micro-steps of a share without communication, until they end or are stopped."""
        steps = share.micro_steps

        def unfinished(step: tf.Tensor, *_: Any) -> tf.Tensor:
            return (step < steps) & ~stopped.read_value()

        def run(step: tf.Tensor, total: tf.Tensor, losses: tf.TensorArray) -> tuple[Any, ...]:
            batch = share.micro_batch(step)
            loss, gradients = self._maybe_compiled(lambda: self.micro_step(batch))
            pairs = list(zip(gradients, self.model.trainable_variables, strict=True))
            # Compiled apart from the gradients: XLA writes the sums in place, and if a program that
            # does so runs out of memory, TensorFlow 2.20 frees them although they are still in use.
            self._maybe_compiled(lambda: self.optimizer.accumulate(pairs, weight=batch.share))
            return step + 1, total + loss, losses.write(step, loss)

        losses = tf.TensorArray(tf.float32, steps, element_shape=[])
        # Parallel iterations would keep the activations of several micro-batches in memory.
        step, total, losses = tf.while_loop(
            unfinished, run, (tf.constant(0), tf.constant(0.0), losses), parallel_iterations=1
        )
        return {"loss": total, "losses": losses.stack(), "finished": step == steps}

    def accumulate_and_apply(self, share: Share, stopped: tf.Variable) -> dict[str, tf.Tensor]:
        """Run an update whose window may have several micro-batches, in one replica."""

        def apply() -> tf.Tensor:
            self.optimizer.avoid_copies()
            return self.optimizer.apply()

        results = self.accumulate(share, stopped)
        due = results["finished"] & (share.window_examples > 0)
        applied = tf.cond(due, apply, lambda: tf.constant(False))
        return results | {"applied": applied}

    def apply_single(self, share: Share, _: tf.Variable) -> dict[str, tf.Tensor]:
        """Run an update whose window is a single micro-batch."""
        batch = share.micro_batch(0)
        loss, gradients = self._maybe_compiled(lambda: self.micro_step(batch))
        pairs = list(zip(gradients, self.model.trainable_variables, strict=True))

        def apply() -> tf.Tensor:
            return self.optimizer.apply_sums(pairs, weight=1.0)

        # A window without examples only compiles the step.
        given, nothing = share.window_examples > 0, lambda: tf.constant(False)
        applied = tf.cond(given, apply, nothing) if self.compile else apply()
        finished = tf.constant(True)
        return {"loss": loss, "losses": loss[tf.newaxis], "finished": finished, "applied": applied}

    def of_update(self) -> dict[str, tf.Tensor]:
        """Return gradient norm, learning rate and gradient products of the last update."""
        optimizer = self.optimizer
        values = {"grad_norm": optimizer.gradient_norm, "learning_rate": optimizer.learning_rate}
        if isinstance(products := optimizer.observer, GradientProducts):
            values |= {"gradient_square": products.square, "gradient_product": products.product}
        return {name: tf.identity(value) for name, value in values.items()}


def make_update(
    objective: Objective,
    model: tf_keras.Model,
    optimizer: WindowOptimizer,
    seed: int,
    accumulate: bool,
    stopped: tf.Variable | None = None,
    dropout_stream: str = "example",
    compile: bool = False,
) -> Callable[[Window], dict[str, Any]]:
    """Build a function that runs one update of `model` with `optimizer`.

    Args:
      objective: What the model is trained for.
      model: Model to train.
      optimizer: Optimizer that accumulates and applies the gradients.
      seed: Seed of dropout.
      accumulate: Whether windows may have several micro-batches; if not, there are no accumulators.
      stopped: Boolean variable in host memory. Once it is True, no further micro-batch starts and
        the update is not applied.
      dropout_stream: How dropout masks are seeded, "example" or "micro-batch".
      compile: Whether XLA compiles the steps, for each shape of a micro-batch. Accumulators must be
        on the device.

    Returns:
      A function that takes a `Window`, updates the weights and returns a dict: `loss`, the weighted
        mean loss; `losses`, what each micro-batch contributes to it; `grad_norm`, the norm of the
        mean gradient before clipping; `learning_rate`; `finished`, False if the update was stopped,
        so that the accumulated sums remain; and `applied`, False if the update was stopped, or
        skipped because a gradient was not finite.
    """
    if stopped is None:
        with tf.device("CPU"):
            stopped = tf.Variable(False, trainable=False)
    disable_fused_matmul()
    optimizer.compile_steps(compile)
    trainee = Trainee(objective, model, optimizer, seed, dropout_stream, compile)
    run = trainee.accumulate_and_apply if accumulate else trainee.apply_single
    optimizer.build(model.trainable_variables)

    @tf.function(input_signature=trainee.signature(), autograph=False)
    def update(*window: tf.Tensor) -> dict[str, tf.Tensor]:
        return run(trainee.open_share(window), stopped) | trainee.of_update()

    return lambda window: in_python(update(*window.tensors))


def in_python(results: dict[str, tf.Tensor]) -> dict[str, Any]:
    """Convert tensors to Python numbers and lists."""
    return {name: value.numpy().tolist() for name, value in results.items()}
