"""Which devices, of which processes, share the windows of a run."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from bertaccum import _tf_compat
from bertaccum.distribution.cluster import in_slurm_step
from bertaccum.errors import ConfigError, RunError, reason

# TensorFlow connects a process to the other workers once; its later runs use the same strategy.
_connected: dict[tuple[tuple[str, ...], int], Topology] = {}

# Seconds that TensorFlow waits longer than the watch. A reduction that times out goes on with
# memory that TensorFlow has freed, and can abort the process; one that the watch ends does not.
_MARGIN_SECONDS = 30
# Seconds without a heartbeat after which TensorFlow aborts a worker. They have to suffice to find
# and report the worker to blame, which takes up to fifteen.
_HEARTBEAT_SECONDS = 40


@dataclass(frozen=True)
class Topology:
    """The replicas of a run, and this process' place among them.

    Args:
      strategy: what the model is made under, and run by.
      local_replicas: devices of this process.
      worker: this process' number; 0 is the chief, and alone writes.
      addresses: of all workers, `host:port`; none if this process is the only one.
      timeout_seconds: how long to wait for a worker that does not answer.
    """

    strategy: tf.distribute.Strategy = field(default_factory=tf.distribute.get_strategy)
    local_replicas: int = 1
    worker: int = 0
    addresses: tuple[str, ...] = ()
    timeout_seconds: float = math.inf

    @property
    def workers(self) -> int:
        """Processes."""
        return max(len(self.addresses), 1)

    @property
    def replicas(self) -> int:
        """Devices of all workers, as many to each."""
        return self.workers * self.local_replicas

    @property
    def first_replica(self) -> int:
        """The number of this worker's first replica."""
        return self.worker * self.local_replicas

    @property
    def chief(self) -> bool:
        """Whether this worker is the one that writes."""
        return self.worker == 0

    def present_replica(self) -> int:
        """The number, among this worker's, of the replica that runs the present function."""
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        return int(tf.get_static_value(tf.convert_to_tensor(number))) - self.first_replica


def make_topology(kind: str, replicas: int | None, timeout_seconds: float) -> Topology:
    """Finds the devices and connects the workers; waits until all are there.

    Args:
      kind: auto, one, mirrored or multi-worker, as `strategy`.
      replicas: devices of this process; None for all its GPUs, or one. Without GPUs, of the CPU
        as many are made.
      timeout_seconds: how long workers wait for each other in an update.

    Raises:
      ConfigError: there are no such devices, or no description of the workers.
      RunError: the other workers are not to be found.
    """
    cluster = _cluster()
    if kind == "auto":
        kind = "multi-worker" if cluster else "one" if _local(replicas) == 1 else "mirrored"
    if kind == "multi-worker":
        return _multi_worker(cluster, replicas, timeout_seconds)
    if cluster:
        raise ConfigError(
            f"`strategy` {kind} is for one process, but {cluster.source} describes workers",
            "choose `strategy` multi-worker, or unset it",
        )
    if kind == "one":
        return Topology()
    count = _local(replicas)
    devices = _devices(count)
    return Topology(tf.distribute.MirroredStrategy(devices), count)


def replicas_to_come(kind: str, replicas: int | None) -> tuple[int, int]:
    """Of each worker, and the workers: what `make_topology` will make; connects nothing."""
    cluster = _cluster() if kind in ("auto", "multi-worker") else None
    local = 1 if kind == "one" else _local(replicas)
    return local, len(cluster.addresses) if cluster else 1


# --- One process ------------------------------------------------------------------------


def _gpus() -> list[tf.config.PhysicalDevice]:
    return tf.config.list_physical_devices("GPU")


def _local(replicas: int | None) -> int:
    return replicas or len(_gpus()) or 1


def _devices(count: int) -> list[str]:
    """So many devices of this process: GPUs, or logical ones of the CPU."""
    gpus = _gpus()
    if gpus and count > len(gpus):
        raise ConfigError(
            f"`replicas` {count} is above the number of GPUs, {len(gpus)}",
            "lower it; CUDA_VISIBLE_DEVICES='' rehearses on the CPU",
        )
    if not gpus:
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration()] * count
        try:
            tf.config.set_logical_device_configuration(cpu, parts)
        except RuntimeError:
            if len(tf.config.list_logical_devices("CPU")) < count:
                raise ConfigError(
                    f"`replicas` {count} comes too late: TensorFlow has started",
                    "set it before anything else is done with TensorFlow",
                ) from None
    return [f"{'GPU' if gpus else 'CPU'}:{number}" for number in range(count)]


# --- Several ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cluster:
    """The workers, this one's number, and where it is said."""

    source: str
    resolver: Any

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of the chief, if one is named so, and the workers."""
        jobs = self.resolver.cluster_spec().as_dict()
        return tuple([*jobs.get("chief", []), *jobs.get("worker", [])])

    @property
    def worker(self) -> int:
        jobs = self.resolver.cluster_spec().as_dict()
        kind, number = self.resolver.task_type, self.resolver.task_id
        return int(number) + (len(jobs.get("chief", [])) if kind == "worker" else 0)


def _cluster() -> _Cluster | None:
    """What TF_CONFIG or Slurm says of the workers."""
    if os.environ.get("TF_CONFIG"):
        try:
            described = json.loads(os.environ["TF_CONFIG"])
            resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
            jobs = resolver.cluster_spec().as_dict()
            if not jobs:
                return None
            kind, number = described["task"]["type"], int(described["task"]["index"])
            if kind not in ("chief", "worker") or not 0 <= number < len(jobs[kind]):
                raise ValueError(f"task {kind} {number} is not among its workers")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"TF_CONFIG cannot be used ({error})",
                'write it as {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker",'
                ' "index": 0}}',
            ) from None
        return _Cluster("TF_CONFIG", resolver)
    if in_slurm_step():
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver()
        resolver.cluster_spec()  # After which it knows which task this is.
        return _Cluster("Slurm", resolver)
    return None


def _multi_worker(
    cluster: _Cluster | None, replicas: int | None, timeout_seconds: float
) -> Topology:
    if cluster is None:
        raise ConfigError(
            "`strategy` multi-worker needs a description of the workers",
            "set TF_CONFIG, use Slurm, or start it with `bertaccum launch`",
        )
    count = _local(replicas)
    known = _connected.get((cluster.addresses, count))
    if known is not None:
        return known
    if _gpus() and count != len(_gpus()):
        raise ConfigError(
            f"`replicas` {replicas} and `strategy` multi-worker: each worker takes all its GPUs",
            "leave `replicas` out; CUDA_VISIBLE_DEVICES can hide some",
        )
    _devices(count)
    options = tf.distribute.experimental.CommunicationOptions(
        timeout_seconds=timeout_seconds + _MARGIN_SECONDS
    )
    _tf_compat.set_heartbeat_timeout(cluster.resolver, _HEARTBEAT_SECONDS)
    try:
        if _gpus() or count == 1:
            strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster.resolver, options)
        else:
            strategy = _tf_compat.CpuWorkersStrategy(cluster.resolver, options, count)
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        addresses = ", ".join(cluster.addresses)
        raise RunError(
            f"the workers {addresses} cannot be connected ({reason(error)})",
            "see that all are started, and that their ports can be reached",
        ) from None
    topology = Topology(strategy, count, cluster.worker, cluster.addresses, timeout_seconds)
    return _connected.setdefault((cluster.addresses, count), topology)
