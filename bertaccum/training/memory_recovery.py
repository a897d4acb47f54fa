"""Running out of memory: the same update runs again in a way that needs less memory.

Weights change only when an update is applied, so a window that ran out of memory is dropped and
run again: in micro-batches of half the size, then with recomputed layers, then with moments and
accumulators in host memory.
"""

from __future__ import annotations

import dataclasses
import gc
from contextlib import suppress

import tensorflow as tf

from bertaccum.accumulation.window import WindowOptimizer
from bertaccum.bert.encoder import set_recompute
from bertaccum.errors import RunError
from bertaccum.options.offload_rungs import OFFLOAD_NONE, offloads_sums
from bertaccum.planning.cost import check_host_memory
from bertaccum.planning.plan import BatchPlan, Saving
from bertaccum.planning.planner import remember_out_of_memory
from bertaccum.training.noise_scale import gradient_products
from bertaccum.training.recipe import make_optimizer, offload
from bertaccum.training.resume import deciding_options
from bertaccum.training.setup import Setup


def build_optimizer(setup: Setup, plan: BatchPlan) -> tuple[WindowOptimizer, list[str], BatchPlan]:
    """Build the optimizer and its state; offload more than planned if it does not fit in memory.

    Returns:
      The optimizer, the groups of weights whose noise scale it observes, and the plan.
    """
    while True:
        _check_host_memory(setup, plan.offload, OFFLOAD_NONE)
        with suppress(tf.errors.ResourceExhaustedError), setup.session.topology.strategy.scope():
            return *_new_optimizer(setup, plan), plan
        gc.collect()
        saving = plan.saving.offloading_more()
        if saving is None or setup.session.topology.workers > 1:
            raise RunError(
                "the optimizer's state does not fit in memory",
                "raise `memory_limit` or choose a smaller `model`"
                if saving is None
                else f"set `offload` {saving.offload}, or raise `memory_limit`",
            )
        plan = setup.batch_plan(plan.micro_batch, saving)


def _new_optimizer(setup: Setup, plan: BatchPlan) -> tuple[WindowOptimizer, list[str]]:
    config = dataclasses.replace(setup.config, offload=plan.offload)
    steps = 2 if plan.accumulates else 1
    optimizer = make_optimizer(config, setup.scheduled_updates, steps, setup.schedule)
    variables, groups = setup.model.trainable_variables, list[str]()
    optimizer.build(variables)
    if config.noise_scale != "none":
        grouped = config.noise_scale == "groups"
        optimizer.observer, groups = gradient_products(variables, grouped)
    return optimizer, groups


def recover(setup: Setup, optimizer: WindowOptimizer, plan: BatchPlan, update: int) -> BatchPlan:
    """Drop the window of an update that ran out of memory, and return the plan to repeat it with.

    Args:
      setup: The run.
      optimizer: Its optimizer; more of its state may be offloaded.
      plan: The plan that ran out of memory, which later plans will avoid.
      update: Number of the update, counted from 1.

    Raises:
      RunError: No plan needs less memory, or some weights have already been changed.
    """
    if optimizer.half_updated.numpy():
        raise RunError(
            f"out of memory while update {update} was being applied",
            "lower `micro_batch`, `offload` more or raise `memory_limit`, then run again with"
            " `resume`",
        )
    with setup.session.topology.strategy.scope():
        optimizer.drop()
    remember_out_of_memory(setup.request, plan.micro_batch, plan.saving)
    if plan.micro_batch > 1:
        return setup.batch_plan(plan.micro_batch // 2, plan.saving)
    return setup.batch_plan(1, _save_more(setup, optimizer, plan, update))


def _save_more(setup: Setup, optimizer: WindowOptimizer, plan: BatchPlan, update: int) -> Saving:
    """Recompute or offload more than a plan that has micro-batches of one example."""
    saving, topology = plan.saving.more(), setup.session.topology
    # The workers sum accumulators on the device and on the host in different ways.
    if saving is None or (offloads_sums(saving.offload) and topology.workers > 1):
        fixed = "offload" in deciding_options(setup.config)
        again = "start a new run with" if fixed else "run again with `resume` and"
        raise RunError(
            f"out of memory in update {update}, with one example at a time"
            f" (`recompute` {plan.recompute}, `offload` {plan.offload})",
            "lower `max_seq_length`, choose a smaller `model`, or raise `memory_limit`"
            if saving is None
            else f"{again} `offload` {saving.offload}",
        )
    _check_host_memory(setup, saving.offload, plan.offload)
    set_recompute(setup.model.checkpoint_items["encoder"], saving.recompute == "layer")
    with topology.strategy.scope():
        offload(optimizer, saving.offload, setup.config.offload_folder)
    return saving


def _check_host_memory(setup: Setup, offload: str, before: str) -> None:
    weights, replicas = setup.model.trainable_variables, setup.session.topology.local_replicas
    parameters = sum(weight.shape.num_elements() for weight in weights) * replicas
    check_host_memory(offload, before, parameters, setup.config.offload_folder)
