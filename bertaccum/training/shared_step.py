"""One update on several replicas, in two parts: the shares of the replicas, then their sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from bertaccum.accumulation.replicas import run_on_all
from bertaccum.data.windows import Window
from bertaccum.distribution.device_memory import disable_fused_matmul
from bertaccum.distribution.topology import Topology
from bertaccum.distribution.watchdog import WAITING, Watch
from bertaccum.errors import RunError
from bertaccum.training.step import Trainee, in_python

# Numbers that the replicas sum together with the gradients. If the sum of the objections is not 0,
# the window is dropped.
_REPORTED = ("objections", "loss", "micro_steps", "padded_tokens")


def make_shared_update(
    trainee: Trainee, stopped: tf.Variable, topology: Topology, watch: Watch
) -> Callable[[list[Window]], dict[str, Any]]:
    """Build a function that runs one update on several replicas, in two parts.

    The first part is local to each worker. If a worker runs out of memory, it repeats this part
    with smaller micro-batches while the others wait in the second part, which communicates once.

    Args:
      trainee: Its model and optimizer were created in the scope of the topology's strategy.
      stopped: Boolean variable in host memory; once it is True, all workers drop the window.
      topology: Replicas of the run.
      watch: Watch to which the update reports the activity of this worker.

    Returns:
      A function that takes a share of the window for each replica of this worker. It returns what
        the function of `make_update` returns, with one list of `losses` for each share, and the
        sums of the `_REPORTED` numbers. It raises ResourceExhaustedError if this worker's shares do
        not fit in memory: drop the sums and try again. It raises RunError if the second part does
        not fit.
    """
    disable_fused_matmul()
    with topology.strategy.scope():
        trainee.optimizer.build(trainee.model.trainable_variables)
    accumulate = _shared_accumulation(trainee, stopped, topology)
    apply = _shared_application(trainee, topology)

    def update(shares: list[Window]) -> dict[str, Any]:
        watch.doing("training")
        own = accumulate(shares)
        finished = all(part["finished"] for part in own)
        report = [
            float(not finished),
            sum(part["loss"] for part in own),
            sum(share.micro_steps for share in shares),
            sum(share.padded_tokens for share in shares),
        ]
        watch.doing(WAITING)
        try:
            results = in_python(apply(np.array(report, np.float64)))
        except tf.errors.ResourceExhaustedError:
            raise RunError(
                "out of memory while replicas added up their gradients",
                "lower `micro_batch` or raise `memory_limit`, then run again with `resume`",
            ) from None
        results |= dict(zip(_REPORTED, results.pop("total"), strict=True))
        losses = [part["losses"] for part in own]
        return results | {"losses": losses, "finished": results["objections"] == 0}

    return update


def _shared_accumulation(
    trainee: Trainee, stopped: tf.Variable, topology: Topology
) -> Callable[[list[Window]], list[dict[str, Any]]]:
    """Build a function that returns the results of `Trainee.accumulate` for each share."""
    strategy, number, one_share = topology.strategy, topology.present_replica, trainee.signature()
    width = len(one_share)

    @tf.function(input_signature=one_share * topology.local_replicas, autograph=False)
    def accumulate(*flat: tf.Tensor) -> Any:
        def own() -> dict[str, tf.Tensor]:
            start = width * number()
            return trainee.accumulate(trainee.open_share(flat[start : start + width]), stopped)

        return strategy.run(own)

    def run(shares: list[Window]) -> list[dict[str, Any]]:
        results = accumulate(*(field for share in shares for field in share.tensors))
        parts = {n: strategy.experimental_local_results(v) for n, v in results.items()}
        return [
            in_python({name: values[number] for name, values in parts.items()})
            for number in range(len(shares))
        ]

    return run


def _shared_application(
    trainee: Trainee, topology: Topology
) -> Callable[[np.ndarray], dict[str, tf.Tensor]]:
    """Build a function that sums the gradients over all replicas and applies them.

    If a worker objects, all workers drop the window. The function takes this worker's `_REPORTED`
    numbers, and returns their sums over workers (`total`), `applied`, and `Trainee.of_update`.
    """
    strategy, number = topology.strategy, topology.present_replica

    @tf.function(input_signature=[tf.TensorSpec([len(_REPORTED)], tf.float64)], autograph=False)
    def apply(report: tf.Tensor) -> dict[str, tf.Tensor]:
        def one() -> dict[str, tf.Tensor]:
            trainee.optimizer.avoid_copies()
            own = report if number() == 0 else tf.zeros_like(report)
            applied, total = trainee.optimizer.apply(own)
            return {"applied": applied, "total": total} | trainee.of_update()

        return run_on_all(strategy, one)

    return apply
