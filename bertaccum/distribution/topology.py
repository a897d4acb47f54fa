"""Devices and processes that share the windows of a run."""

from __future__ import annotations

import functools
import json
import math
import os
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from bertaccum import _tf_compat
from bertaccum.distribution.cluster import in_slurm_step
from bertaccum.distribution.device_memory import gpus
from bertaccum.distribution.launcher import named_gpus
from bertaccum.errors import ConfigError, RunError, reason

# TensorFlow can connect a process to the other workers only once, so later runs in the process use
# the same strategy.
_connected: dict[tuple[tuple[str, ...], int], Topology] = {}

# TensorFlow waits this many seconds longer than the watch does. A reduction that TensorFlow times
# out keeps using freed memory and can abort the process; a reduction that the watch ends does not.
MARGIN_SECONDS = 30
# TensorFlow aborts a worker after this many seconds without a heartbeat. Finding and reporting the
# worker at fault takes up to fifteen seconds and must come first.
_HEARTBEAT_SECONDS = 40
_SLURM_PORT = 8888  # The first task on a node has it, as in TensorFlow's SlurmClusterResolver.


@dataclass(frozen=True)
class Topology:
    """The replicas of a run, and the place of this process among them."""

    # Strategy that creates and runs the model.
    strategy: tf.distribute.Strategy = field(default_factory=tf.distribute.get_strategy)
    local_replicas: int = 1  # Number of devices of this process.
    worker: int = 0  # Number of this process; 0 is the chief, the only one that writes files.
    # Addresses of all workers as `host:port`; empty if this process is the only one.
    addresses: tuple[str, ...] = ()
    timeout_seconds: float = math.inf  # How long to wait for a worker that does not answer.

    @property
    def workers(self) -> int:
        """Return the number of processes."""
        return max(len(self.addresses), 1)

    @property
    def replicas(self) -> int:
        """Return the number of devices of all workers; each worker has the same number."""
        return self.workers * self.local_replicas

    @property
    def first_replica(self) -> int:
        """Return the number of this worker's first replica."""
        return self.worker * self.local_replicas

    @property
    def chief(self) -> bool:
        """Return whether this worker is the chief, which writes files."""
        return self.worker == 0

    def present_replica(self) -> int:
        """Return the number, among this worker's replicas, of the replica that runs this code."""
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        return int(tf.get_static_value(tf.convert_to_tensor(number))) - self.first_replica


def make_topology(kind: str, replicas: int | None, timeout_seconds: float) -> Topology:
    """Find the devices and connect the workers, waiting until all have started.

    Args:
      replicas: Number of devices of this process; None for all its GPUs, or one CPU device. Without
        GPUs, this many virtual CPU devices are created.

    Raises:
      RunError: The other workers cannot be reached.
    """
    cluster = _cluster()
    if kind == "auto":
        kind = "multi-worker" if cluster else "mirrored"
    count = _local(replicas)
    if kind == "multi-worker" and (cluster is None or count * len(cluster.addresses) > 1):
        return _multi_worker(cluster, replicas, timeout_seconds)
    if cluster and kind != "multi-worker":
        raise ConfigError(
            f"`strategy` {kind} is for one process, but {cluster.source} describes workers",
            "choose `strategy` multi-worker, or start the process without that description",
        )
    if kind == "one" or count == 1:  # A single replica needs no strategy.
        return Topology()
    return Topology(_tf_compat.mirrored_strategy(_devices(count)), count)


def replicas_to_come(kind: str, replicas: int | None) -> tuple[int, int]:
    """Return the devices per worker and the workers of `make_topology`, without connecting them."""
    cluster = _cluster() if kind in ("auto", "multi-worker") else None
    local = 1 if kind == "one" else _local(replicas)
    return local, len(cluster.addresses) if cluster else 1


# --- One process ------------------------------------------------------------------------


def _local(replicas: int | None) -> int:
    return replicas or len(gpus()) or 1


def _devices(count: int) -> list[str]:
    """Return the names of this many devices: GPUs, or virtual devices of the CPU."""
    found = gpus()
    if found and count > len(found):
        raise ConfigError(
            f"`replicas` {count} is above the number of GPUs, {len(found)}",
            "lower it, or set CUDA_VISIBLE_DEVICES='' to use virtual devices of the CPU",
        )
    if not found:
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration()] * count
        try:
            tf.config.set_logical_device_configuration(cpu, parts)
        except RuntimeError:
            if len(tf.config.list_logical_devices("CPU")) < count:
                raise ConfigError(
                    f"`replicas` {count} cannot take effect: TensorFlow has already started",
                    "set it before TensorFlow is first used",
                ) from None
    return [f"{'GPU' if found else 'CPU'}:{number}" for number in range(count)]


# --- Several processes ------------------------------------------------------------------


@dataclass(frozen=True)
class _Cluster:
    """A description of the workers and of this one's number, with its source."""

    source: str
    resolver: Any
    addresses: tuple[str, ...]
    worker: int

    @staticmethod
    def of(source: str, resolver: Any) -> _Cluster:
        """Return the workers that a resolver finds; if one is named chief, it comes first."""
        jobs = resolver.cluster_spec().as_dict()
        chiefs, workers = jobs.get("chief", []), jobs.get("worker", [])
        number = int(resolver.task_id) + (len(chiefs) if resolver.task_type == "worker" else 0)
        return _Cluster(source, resolver, (*chiefs, *workers), number)


def _cluster() -> _Cluster | None:
    """Return the workers that TF_CONFIG or Slurm describes, or None."""
    if os.environ.get("TF_CONFIG"):
        try:
            described = json.loads(os.environ["TF_CONFIG"])
            resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
            jobs = resolver.cluster_spec().as_dict()
            if not jobs:
                return None
            kind, number = described["task"]["type"], int(described["task"]["index"])
            if kind not in ("chief", "worker") or not 0 <= number < len(jobs[kind]):
                raise ValueError(f"task {kind} {number} is not in its cluster")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"TF_CONFIG cannot be used ({error})",
                'write it as {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker",'
                ' "index": 0}}',
            ) from None
        return _Cluster.of("TF_CONFIG", resolver)
    return _slurm_cluster() if in_slurm_step() else None


@functools.cache  # A second call would divide the GPUs of this task again.
def _slurm_cluster() -> _Cluster:
    """Return the workers of a Slurm step, and hide the GPUs of the other tasks on this node."""
    try:
        tasks, rank = _tf_compat.slurm_tasks(), int(os.environ["SLURM_PROCID"])
        places = [(node, number) for node, count in tasks.items() for number in range(count)]
        node, number = places[rank]
        here = {"SLURM_NODEID": list(tasks).index(node), "SLURM_LOCALID": number}
        told = {name: int(os.environ.get(name, own)) for name, own in here.items()}
    except (RuntimeError, ValueError, LookupError) as error:
        raise ConfigError(
            f"the variables of Slurm cannot be used ({reason(error)})",
            "start the command with srun, or unset SLURM_STEP_NUM_TASKS to train in one process",
        ) from None
    if told != here:  # The other workers would look for this one on another node.
        raise ConfigError(
            "Slurm has distributed the tasks over the nodes in turn, not node by node",
            "start the command with srun --distribution=block",
        )
    # If a node has fewer GPUs than tasks, each task uses all those that it can see.
    visible = named_gpus()
    is_divided = "SLURM_GPUS_PER_TASK" in os.environ  # With --gpus-per-task, a task sees its own.
    if not is_divided and (share := len(visible) // max(tasks.values())):
        own = visible[number * share : (number + 1) * share]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(own)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": [f"{node}:{_SLURM_PORT + i}" for node, i in places]}),
        task_type="worker",
        task_id=rank,
        num_accelerators={"GPU": len(gpus())},
        rpc_layer="grpc",
    )
    return _Cluster.of("Slurm", resolver)


def _multi_worker(
    cluster: _Cluster | None, replicas: int | None, timeout_seconds: float
) -> Topology:
    if cluster is None:
        raise ConfigError(
            "`strategy` multi-worker needs a description of the workers",
            "set TF_CONFIG, use Slurm, or start the command with `bertaccum launch`",
        )
    count = _local(replicas)
    known = _connected.get((cluster.addresses, count))
    if known is not None:
        return known
    if gpus() and count != len(gpus()):
        raise ConfigError(
            f"`replicas` {replicas} cannot be used with `strategy` multi-worker on GPUs",
            "omit `replicas`; each worker uses all GPUs that it can see",
        )
    _devices(count)
    options = tf.distribute.experimental.CommunicationOptions(
        timeout_seconds=timeout_seconds + MARGIN_SECONDS
    )
    _tf_compat.set_heartbeat_timeout(cluster.resolver, _HEARTBEAT_SECONDS)
    try:
        if gpus() or count == 1:
            strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster.resolver, options)
        else:
            strategy = _tf_compat.CpuWorkersStrategy(cluster.resolver, options, count)
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        addresses = ", ".join(cluster.addresses)
        raise RunError(
            f"the workers {addresses} cannot be connected ({reason(error)})",
            "check that all workers have started and that their ports can be reached",
        ) from None
    topology = Topology(strategy, count, cluster.worker, cluster.addresses, timeout_seconds)
    return _connected.setdefault((cluster.addresses, count), topology)
