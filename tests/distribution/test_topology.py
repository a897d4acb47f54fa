"""Devices and processes of a run, as requested or as described by TF_CONFIG or Slurm."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import tensorflow as tf

from bertaccum.distribution import launcher
from bertaccum.distribution import topology as module
from bertaccum.distribution.collectives import differences
from bertaccum.distribution.device_memory import gpus
from bertaccum.distribution.topology import Topology, make_topology
from bertaccum.errors import ConfigError

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_NTASKS": "3",
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "card[1-3]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
}


@pytest.fixture(autouse=True)
def nothing_described(monkeypatch: pytest.MonkeyPatch) -> None:
    module._slurm_cluster.cache_clear()
    for name in ("TF_CONFIG", *SLURM, "SLURM_NODEID", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)


def describe(monkeypatch: pytest.MonkeyPatch, cluster: object, task: object) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))


def test_one_device_is_its_own_chief() -> None:
    for kind in ("auto", "one"):
        found = make_topology(kind, None, 60)
        assert (found.workers, found.replicas, found.chief) == (1, 1, True)


@pytest.mark.parametrize("kind", ["mirrored", "multi-worker", "auto"])
def test_one_replica_needs_no_strategy(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    # Jobs on clusters may be scaled to one worker.
    if kind != "mirrored":
        describe(monkeypatch, {"chief": ["127.0.0.1:1"]}, {"type": "chief", "index": 0})
    found = make_topology(kind, None, 60)
    assert found.strategy is tf.distribute.get_strategy()
    assert (found.workers, found.replicas, found.chief) == (1, 1, True)


def test_first_replica_follows_from_the_worker() -> None:
    found = Topology(local_replicas=4, worker=2, addresses=("a:1", "b:1", "c:1"))
    assert (found.workers, found.replicas, found.first_replica) == (3, 12, 8)
    assert not found.chief


def test_named_chief_is_worker_0(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    describe(monkeypatch, cluster, {"type": "worker", "index": 1})
    found = module._cluster()
    assert found is not None
    assert (found.addresses, found.worker) == (("a:1", "b:1", "c:1"), 2)
    describe(monkeypatch, cluster, {"type": "chief", "index": 0})
    found = module._cluster()
    assert found is not None
    assert found.worker == 0


@pytest.mark.parametrize("gpus", ["", None, "0"])
@pytest.mark.parametrize(("nodes", "tasks"), [("card[1-3]", "1(x3)"), ("card1", "3")])
def test_slurm_step_describes_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: str | None, nodes: str, tasks: str
) -> None:
    changes = {"SLURM_STEP_NODELIST": nodes, "SLURM_STEP_TASKS_PER_NODE": tasks}
    for name, value in (SLURM | changes).items():
        monkeypatch.setenv(name, value)
    if gpus is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(launcher, "_DRIVER", tmp_path)  # There is no GPU.
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    found = module._cluster()
    assert found is not None
    assert len(set(found.addresses)) == 3
    hosts = ["card1", "card2", "card3"] if tasks == "1(x3)" else ["card1"] * 3
    assert [address.split(":")[0] for address in found.addresses] == hosts
    assert found.worker == 2


@pytest.mark.parametrize(
    ("visible", "own"),
    [
        ("4,6,7", "7"),
        ("0,1,2,3,4,5,6,7,8", "6,7,8"),
        ("GPU-a,GPU-b,GPU-c", "GPU-c"),
        ("2", "2"),
        ("", ""),
    ],
)
def test_tasks_of_a_node_divide_the_gpus_that_they_see_once(
    monkeypatch: pytest.MonkeyPatch, visible: str, own: str
) -> None:
    one_node = {"SLURM_STEP_NODELIST": "card1", "SLURM_STEP_TASKS_PER_NODE": "3"}
    for name, value in (SLURM | one_node | {"CUDA_VISIBLE_DEVICES": visible}).items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        found = module._cluster()
        assert found is not None
        assert os.environ["CUDA_VISIBLE_DEVICES"] == own
        assert found.resolver.num_accelerators() == {"GPU": len(gpus())}
    monkeypatch.setenv("SLURM_GPUS_PER_TASK", "3")  # Slurm has divided them.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    module._slurm_cluster.cache_clear()
    module._cluster()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


def test_addresses_have_the_order_of_the_node_list(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"SLURM_STEP_NODELIST": "node[9-10],a1", "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)"}
    changes |= {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4"}
    for name, value in (SLURM | changes).items():
        monkeypatch.setenv(name, value)
    found = module._cluster()
    assert found is not None
    assert found.addresses == ("node9:8888", "node9:8889", "node10:8888", "a1:8888")
    assert found.worker == 2


@pytest.mark.parametrize(("node", "local"), [("1", "1"), ("0", "0")])
def test_tasks_that_slurm_numbers_across_nodes_are_refused(
    monkeypatch: pytest.MonkeyPatch, node: str, local: str
) -> None:
    """With --distribution=cyclic, rank 1 is on the second node. Its address would be another's."""
    changes = {"SLURM_STEP_NODELIST": "card[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    changes |= {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4"}
    for name, value in (SLURM | changes | {"SLURM_NODEID": "1", "SLURM_LOCALID": "0"}).items():
        monkeypatch.setenv(name, value)
    found = module._cluster()
    assert found is not None
    assert found.worker == 2
    monkeypatch.setenv("SLURM_NODEID", node)
    monkeypatch.setenv("SLURM_LOCALID", local)
    module._slurm_cluster.cache_clear()
    with pytest.raises(ConfigError, match=r"not node by node; .* srun --distribution=block"):
        module._cluster()


def test_incomplete_slurm_step_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    message = r"Slurm cannot be used .*PROCID.*; start .* with srun, or unset SLURM_STEP_NUM_TASKS"
    with pytest.raises(ConfigError, match=message):
        make_topology("one", None, 60)
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS")
    assert make_topology("one", None, 60).workers == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "TF_CONFIG cannot be used .*write it as"),
        ('{"cluster": {"worker": ["a:1"]}}', "TF_CONFIG cannot be used .*task"),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
            "task worker 1 is not in its cluster",
        ),
    ],
)
def test_invalid_tf_config_is_an_error(
    monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ConfigError, match=message):
        make_topology("auto", None, 60)


def test_conflicting_strategies_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="needs a description of the workers; set TF_CONFIG"):
        make_topology("multi-worker", None, 60)
    describe(monkeypatch, {"worker": ["a:1", "b:1"]}, {"type": "worker", "index": 0})
    with pytest.raises(ConfigError, match="is for one process, but TF_CONFIG describes workers"):
        make_topology("mirrored", 2, 60)
    monkeypatch.setattr(module, "gpus", lambda: ["one"])
    with pytest.raises(ConfigError, match="each worker uses all GPUs"):
        make_topology("multi-worker", 2, 60)


def test_updates_and_epochs_are_different_intervals() -> None:
    """In Python, 1 update and 1.0 epochs are equal."""
    found = differences([{"`eval_every`": 1}, {"`eval_every`": 1.0}, {"`eval_every`": 1}])
    assert found == ["`eval_every` (1.0 on worker 1, 1 on worker 0)"]
