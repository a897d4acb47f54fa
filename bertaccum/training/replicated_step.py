"""The update of several replicas: each accumulates its share, then all agree and apply at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from bertaccum.accumulation.optimizer import AccumulatingOptimizer
from bertaccum.data.windows import SIGNATURE, Window, fields
from bertaccum.distribution.topology import Topology
from bertaccum.distribution.watchdog import WAITING, Watch
from bertaccum.errors import RunError
from bertaccum.planning.device_memory import survive_lack_of_memory
from bertaccum.training.step import accumulate_share, in_python, of_update, open_share

# What travels with the gradients, one number each. The first is not 0 where somebody objects.
REPORTED = ("objections", "loss", "micro_steps", "padded_tokens")


class SharedUpdate:
    """Updates of a model that several replicas make together, in two parts.

    `accumulate` is each worker's own affair: it may fail for lack of memory and be done again,
    cut otherwise, while the others wait in `apply`, which communicates once.

    Args:
      model, optimizer, seed, dropout_stream, stopped: as for `make_update`.
      topology: under whose strategy model and optimizer were made.
      watch: is told what is being done.
    """

    def __init__(
        self,
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

        width = len(SIGNATURE)

        @tf.function(input_signature=SIGNATURE * topology.local_replicas)
        def accumulate(*flat: tf.Tensor) -> Any:
            def own() -> dict[str, tf.Tensor]:
                start = width * number()
                window = flat[start : start + width]
                share = open_share(model, optimizer, seed, dropout_stream, window)
                return accumulate_share(model, optimizer, share, stopped)

            return self._strategy.run(own)

        @tf.function(input_signature=[tf.TensorSpec([len(REPORTED)], tf.float64)])
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
        """One update: this worker's shares, then what all have.

        Returns:
          As an update of one replica does, with the sums over workers of what is `REPORTED`;
          `losses` are of this worker's replicas.

        Raises:
          tf.errors.ResourceExhaustedError: this worker's shares do not fit; drop what has been
            accumulated, and try again, cut otherwise.
          RunError: the reduction, or the change of the weights, does not fit.
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
                "lower `micro_batch` or raise `memory_limit`, and go on with `resume`",
            ) from None
        losses = [part["losses"] for part in own]
        return results | {"losses": losses, "finished": results["objections"] == 0}

    def accumulate(self, shares: Sequence[Window]) -> list[dict[str, Any]]:
        """Runs all micro-steps of this worker's shares, one a replica.

        Returns:
          For each replica `loss` (its part of the window's mean), `losses` of its micro-steps,
          `finished`.
        """
        results = self._accumulate(*(field for share in shares for field in fields(share)))
        parts = {name: self._local(value) for name, value in results.items()}
        return [
            in_python({name: values[number] for name, values in parts.items()})
            for number in range(len(shares))
        ]

    def apply(self, report: Sequence[float]) -> dict[str, Any]:
        """Adds up over all replicas and updates; forgets the window if somebody objects.

        Args:
          report: this worker's numbers, as in `REPORTED`.

        Returns:
          Their sums over workers by name, `applied`, `grad_norm` and `learning_rate`.
        """
        results = in_python(self._apply(np.array(report, np.float64)))
        return results | dict(zip(REPORTED, results.pop("total"), strict=True))

    def _local(self, value: Any) -> tuple[Any, ...]:
        return self._strategy.experimental_local_results(value)
