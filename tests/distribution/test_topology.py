"""Devices and processes of a run, as requested or as described by TF_CONFIG or Slurm."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf

from bertaccum.distribution import topology as module
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
    for name in ("TF_CONFIG", *SLURM):
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
    monkeypatch: pytest.MonkeyPatch, gpus: str | None, nodes: str, tasks: str
) -> None:
    changes = {"SLURM_STEP_NODELIST": nodes, "SLURM_STEP_TASKS_PER_NODE": tasks}
    for name, value in (SLURM | changes).items():
        monkeypatch.setenv(name, value)
    if gpus is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setenv("PATH", "")  # There is no nvidia-smi.
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    found = module._cluster()
    assert found is not None
    assert len(set(found.addresses)) == 3
    hosts = ["card1", "card2", "card3"] if tasks == "1(x3)" else ["card1"] * 3
    assert [address.split(":")[0] for address in found.addresses] == hosts
    assert found.worker == 2


def test_incomplete_slurm_step_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    with pytest.raises(ConfigError, match=r"Slurm cannot be used .*PROCID.*; start .* with srun"):
        module._cluster()


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
