"""Runs on several replicas and workers, each worker a process, make the same updates."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from forked import PROGRAM, SEVERAL_RUNS, Forked, output
from resuming import killed_copy
from small import write_small_model, write_small_task
from teaching import make_teacher

from bertaccum.distribution.launcher import _free_ports
from bertaccum.tasks.labels import Labels
from bertaccum.training.checkpoints import saved_states

Start = Callable[..., Any]
UPDATES = 10
# The arrays of tests are smaller than the pieces in which replicas sum them in host memory.
IN_PIECES = f"""
from bertaccum.accumulation.offload import host_memory
host_memory._PIECE_BYTES = host_memory._PART = 100
{SEVERAL_RUNS}"""
# Options of the runs that are interrupted repeatedly.
LONG = {"workers": 2, "max_updates": 40, "eval_every": 20}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create reviews and a small encoder; windows of ten divide evenly by neither 3 nor 4."""
    folder = tmp_path_factory.mktemp("together")
    write_small_task(folder / "reviews", train=47, dev=10)
    return folder


def arguments_of(name: str, **options: object) -> list[str]:
    """Return the arguments of `train` for a run of this name."""
    values = {"data": "reviews", "bert_config": "reviews/bert_config.json", "out": name}
    values |= {"init_checkpoint": "none", "max_seq_length": 16, "target_batch": 10}
    values |= {"micro_batch": 2, "max_updates": UPDATES, "eval_every": 4, "save_every": 1}
    values |= {"learning_rate": 5e-4, "epochs": 100}
    flags = ((f"--{k.replace('_', '-')}", v) for k, v in (values | options).items())
    return ["train", *(str(part) for flag in flags for part in flag)]


def environments(workers: int, addresses: list[str] | None = None) -> list[dict[str, str]]:
    """Return the environment variables of each worker."""
    if workers == 1:
        return [{}]
    cluster = {"worker": addresses or [f"127.0.0.1:{port}" for port in _free_ports(workers)]}
    tasks = ({"type": "worker", "index": number} for number in range(workers))
    return [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks]


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Return a function that starts the workers of a run; leftover processes are killed.

    Options that are lists have a value for each worker. `before` is code that a worker runs first.
    """
    started: list[Forked] = []

    def run(
        name: str, workers: int = 1, addresses: list[str] | None = None, **options: object
    ) -> list[Forked]:
        processes = []
        for number, environment in enumerate(environments(workers, addresses)):
            own = {k: v[number] if isinstance(v, list) else v for k, v in options.items()}
            code = str(own.pop("before", "")) + PROGRAM
            arguments = arguments_of(name, **own)
            processes.append(Forked(code, *arguments, cwd=folder, env=environment))
        started.extend(processes)
        return processes

    yield run
    kill(started)


def kill(processes: list[Forked]) -> None:
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.fixture
def popen(folder: Path) -> Iterator[Start]:
    """Return a function that starts a command with a new interpreter."""
    started: list[subprocess.Popen] = []

    def run(*command: str) -> subprocess.Popen:
        pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(subprocess.Popen(command, cwd=folder, text=True, **pipes))
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.communicate()


def ended(process: Forked | subprocess.Popen) -> tuple[int | None, str]:
    """Return a process's exit code, and its error lines on stderr."""
    _, errors = process.communicate()
    lines = [line for line in errors.splitlines() if re.match(r"(\[\d\] )?error: ", line)]
    return process.returncode, "\n".join(lines)


def assert_success(processes: list[Forked]) -> None:
    assert [ended(process) for process in processes] == [(0, "")] * len(processes)


def state(run: Path) -> dict[str, np.ndarray]:
    """Return weights, moments and counters of a run's last checkpoint."""
    last = saved_states(run / "checkpoints")[-1]
    reader = tf.train.load_checkpoint(str(last / "state"))
    names = [name for name in reader.get_variable_to_shape_map() if "OBJECT_GRAPH" not in name]
    return {"update": np.array(float(last.name.removeprefix("update-")))} | {
        name: reader.get_tensor(name).astype(np.float64) for name in names
    }


def difference(run: Path, other: Path) -> float:
    one, two = state(run), state(other)
    assert one.keys() == two.keys()
    return max(float(np.abs(one[name] - two[name]).max()) for name in one)


def processes_of(launcher: subprocess.Popen) -> list[int]:
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    return [int(number) for number in children.read_text().split()] if children.exists() else []


def wait_for(process: Forked | subprocess.Popen, run: Path, updates: int) -> None:
    while process.poll() is None and updates_of(run) < updates:
        time.sleep(0.01)


def updates_of(run: Path) -> int:
    log = run / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def runs_of(folder: Path, name: str, pairs: list[tuple[int, float]], **options: object) -> str:
    """Return the options of runs with micro-batches and dropout rates, for `SEVERAL_RUNS`."""
    values = {"data": str(folder / "reviews"), "init_checkpoint": "none", "max_seq_length": 16}
    values |= {"bert_config": str(folder / "reviews/bert_config.json"), "target_batch": 10}
    values |= {"max_updates": UPDATES, "eval_every": 4, "save_every": "1", "epochs": 100.0}
    several = [
        {"out": str(folder / f"{name}-m{size}-{dropout}"), "micro_batch": size, "dropout": dropout}
        for size, dropout in pairs
    ]
    return json.dumps([values | {"learning_rate": 5e-4} | options | own for own in several])


def train_on_workers(runs: str, workers: int) -> None:
    """Train runs in turn; each worker is one process for all of them."""
    processes = [Forked(IN_PIECES, runs, env=env) for env in environments(workers)]
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors


@pytest.fixture(scope="module")
def alone(folder: Path) -> Path:
    """Train `one-m10-0.0` and `one-m10-0.1` on one device with one micro-batch per window."""
    output(SEVERAL_RUNS, runs_of(folder, "one", [(10, 0.0), (10, 0.1)]))
    return folder


def assert_same_logs(run: Path, other: Path) -> None:
    for log in ("metrics.jsonl", "eval.jsonl"):
        ours, theirs = (
            [json.loads(line) for line in (one / log).read_text().splitlines()]
            for one in (run, other)
        )
        assert [o["update"] for o in ours] == [t["update"] for t in theirs]
        for one, two in zip(ours, theirs, strict=True):
            assert one["loss"] == pytest.approx(two["loss"], abs=1e-6)
            assert one.get("examples") == two.get("examples")


# Each number of workers, each rung of offloading, several workers with and without offloading. The
# chief of two workers starts some updates early, and others only after a checkpoint; worker 1
# starts all of them early.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "replicas", "offload", "size", "dropout", "save_every"),
    [
        (2, 1, "none", 2, 0.1, 3),
        (3, 2, "none", 1, 0.1, 1),
        (1, 2, "moments", 4, 0.0, 1),
        (2, 2, "all", 1, 0.1, 1),
    ],
)
def test_topology_and_micro_batch_do_not_change_the_weights(
    alone: Path,
    workers: int,
    replicas: int,
    offload: str,
    size: int,
    dropout: float,
    save_every: int,
) -> None:
    name, options = f"w{workers}-r{replicas}", {"save_every": str(save_every), "keep": UPDATES}
    options |= {"replicas": replicas, "offload": offload}
    train_on_workers(runs_of(alone, name, [(size, dropout)], **options), workers)
    wanted, found = alone / f"one-m10-{dropout}", alone / f"{name}-m{size}-{dropout}"
    assert difference(wanted, found) < (1e-5 if dropout else 1e-6)
    assert_same_logs(wanted, found)
    summary, plan = (json.loads((found / f"{n}.json").read_text()) for n in ("summary", "plan"))
    assert (summary["updates"], plan["replicas"]) == (UPDATES, workers * replicas)
    if offload == "none":
        return
    # The weights are on the device, and the moments in host memory, which are copied in other ways.
    # A replica with other weights or moments would change the last bits of the next gradient.
    resumed = killed_copy(found, alone / f"{name}-resumed", 2)
    train_on_workers(json.dumps([{"resume": str(resumed)}]), workers)
    assert difference(found, resumed) == 0


@pytest.mark.slow
def test_lost_worker_is_named_and_the_same_command_resumes(folder: Path, start: Start) -> None:
    chance = np.random.default_rng(0)
    for victim, number in ((0, signal.SIGKILL), (1, signal.SIGSTOP)):
        done = updates_of(folder / "hurt")
        processes = start("hurt", collective_timeout="4s", **LONG)
        wait_for(processes[0], folder / "hurt", done + 2)
        time.sleep(float(chance.random()) * 0.1)
        assert processes[victim].poll() is None, "the run ended before it could be hurt"
        processes[victim].send_signal(number)
        code, errors = ended(processes[1 - victim])
        kill(processes)
        what = "has exited" if number == signal.SIGKILL else "does not answer"
        assert code == 1
        assert f"error: worker {victim} (127.0.0.1:" in errors
        assert f") {what}" in errors and "start the same command again" in errors
    assert_success(start("hurt", **LONG))
    assert_success(start("undisturbed", **LONG))
    assert difference(folder / "hurt", folder / "undisturbed") == 0


@pytest.mark.slow
def test_signal_to_one_worker_stops_all(folder: Path, start: Start, popen: Start) -> None:
    """The workers are those of `bertaccum launch`."""
    options = {"epochs": 100_000, "save_every": "10m", "eval_every": 10**6}
    command = [sys.executable, "-m", "bertaccum", "launch", "--workers", "2", "--"]
    process = popen(*command, *arguments_of("stopped", max_updates=100_000, **options))
    wait_for(process, folder / "stopped", 3)
    os.kill(processes_of(process)[1], signal.SIGTERM)
    code, errors = ended(process)
    assert code == 143
    (last,) = saved_states(folder / "stopped/checkpoints")
    done = last.name.removeprefix("update-")
    for worker in (0, 1):
        assert f"[{worker}] error: stopped by a signal after update {done}; run the same" in errors
    # The checkpoint contains nothing of the interrupted window.
    assert_success(start("so-far", workers=2, max_updates=int(done), **options))
    assert difference(folder / "stopped", folder / "so-far") == 0


# The grace period is short. The chief's last checkpoint takes until worker 1 has been asked, at the
# end of its own grace period, whether it waits for others.
SLOW_CHIEF = """
import os, time
from pathlib import Path
from bertaccum.distribution.watchdog import Watch
from bertaccum.system.stopping import Stopping
from bertaccum.training.checkpoints import Checkpoints

is_waiting, save, asked = Watch.is_waiting, Checkpoints.save, Path("asked")

def tell(self):
    if self._topology.worker == 1 and saving.exists():
        asked.touch()
    return is_waiting(self)

def save_slowly(self, *values):
    saving.touch()
    deadline = time.monotonic() + 30
    while not asked.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    save(self, *values)

saving = Path("saving")
Stopping.__init__.__defaults__ = (None, 3.0)
Watch.is_waiting, Checkpoints.save = tell, save_slowly
"""


@pytest.mark.slow
def test_workers_wait_while_the_chief_saves_a_checkpoint(folder: Path, start: Start) -> None:
    options = {"epochs": 100_000, "max_updates": 100_000, "save_every": "10m", "eval_every": 10**6}
    processes = start("slow-chief", workers=2, before=SLOW_CHIEF, **options)
    wait_for(processes[0], folder / "slow-chief", 3)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    said = [ended(process) for process in processes]
    (last,) = saved_states(folder / "slow-chief/checkpoints")
    done = last.name.removeprefix("update-")
    for code, errors in said:
        assert code == 143
        assert f"error: stopped by a signal after update {done};" in errors
    assert (folder / "asked").exists()


@pytest.mark.slow
def test_signal_to_one_worker_stops_a_shared_evaluation(folder: Path, start: Start) -> None:
    """The signal goes to a worker that is not the chief."""
    large = write_small_task(folder / "large-dev", train=20, dev=100_000)
    options = {"data": "large-dev", "bert_config": str(large), "save_every": 1, "eval_every": 2}
    processes = start("in-eval", workers=2, **options)
    wait_for(processes[0], folder / "in-eval", 2)
    time.sleep(0.5)
    processes[1].send_signal(signal.SIGTERM)
    (code, errors), _ = map(ended, processes)
    assert code == 143
    assert "error: stopped by a signal after update 2;" in errors
    assert not (folder / "in-eval/eval.jsonl").exists()


@pytest.mark.slow
def test_workers_with_different_options_name_them(folder: Path, start: Start) -> None:
    options = {"seed": [0, 1], "target_batch": [10, 11], "patience": [1, 2]}
    for process in start("unlike", workers=2, **options):
        code, errors = ended(process)
        assert code == 2
        assert "--target-batch (11 on worker 1, 10 on worker 0)" in errors
        assert "--seed (1 on worker 1, 0 on worker 0)" in errors
        assert "--patience (2 on worker 1, 1 on worker 0)" in errors
    assert not (folder / "unlike").exists()


@pytest.mark.slow
def test_worker_out_of_memory_shrinks_only_its_own_micro_batches(
    folder: Path, start: Start
) -> None:
    wide = write_small_task(folder / "wide", train=256, dev=10)
    large = {"intermediate_size": 16_384, "num_hidden_layers": 2}
    write_small_model(wide, folder / "wide/vocab.txt", **large)
    options = {"data": "wide", "bert_config": "wide/bert_config.json", "target_batch": 256}
    options |= {"micro_batch": 128, "cut": "count", "max_updates": 2, "workers": 2}
    processes = start("short", memory_limit=["3GiB", "150MiB"], **options)
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert "update 1: out of memory with micro-batches of 128" in said[1]
    assert "out of memory" not in said[0]
    assert json.loads((folder / "short/plan.json").read_text())["micro_batch"] == 128
    assert_success(start("roomy", **options))
    assert difference(folder / "short", folder / "roomy") < 1e-6


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Create two connected network namespaces with the addresses 10.77.0.1 and 10.77.0.2."""
    names = [f"bertaccum-{os.getpid()}-{number}" for number in (0, 1)]
    ends = [f"ba{os.getpid() % 10**6}-{number}" for number in (0, 1)]
    commands = [f"netns add {name}" for name in names]
    commands.append(f"link add {ends[0]} type veth peer name {ends[1]}")
    for number, (name, end) in enumerate(zip(names, ends, strict=True)):
        commands.append(f"link set {end} netns {name} name wire")
        commands.append(f"-n {name} addr add 10.77.0.{number + 1}/24 dev wire")
        commands += [f"-n {name} link set wire up", f"-n {name} link set lo up"]
    try:
        for command in commands:
            done = subprocess.run(["ip", *command.split()], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"needs root for network namespaces: {done.stderr.strip()}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


# Moves the process to the network namespace of a host.
ENTER = """
import ctypes, os
assert ctypes.CDLL(None).setns(os.open("{}", os.O_RDONLY), 0) == 0
"""


@pytest.mark.slow
def test_disconnected_host_is_named(folder: Path, start: Start, hosts: list[str]) -> None:
    """Each host has its own network; the link between them is cut during the run."""
    addresses = ["10.77.0.1:2222", "10.77.0.2:2222"]
    own = {"addresses": addresses, "before": [ENTER.format(f"/run/netns/{h}") for h in hosts]}
    options = {"collective_timeout": "5s", "max_updates": 10_000}
    processes = start("hosts", workers=2, **own, **options)
    wait_for(processes[0], folder / "hosts", 5)
    subprocess.run(["ip", "-n", hosts[1], "link", "set", "wire", "down"], check=True)
    for worker, process in enumerate(processes):
        code, errors = ended(process)
        assert code == 1
        assert f"error: worker {1 - worker} ({addresses[1 - worker]}) does not answer" in errors
    subprocess.run(["ip", "-n", hosts[1], "link", "set", "wire", "up"], check=True)
    assert_success(start("hosts", workers=2, **own))


@pytest.mark.slow
def test_workers_learn_from_the_same_teacher(start: Start, folder: Path) -> None:
    """Both workers compute the logits at the same time, and one waits for the other."""
    for length in (16, 12):
        make_teacher(folder / f"teacher-{length}", Labels.numbered(2), max_seq_length=length)
    (folder / "more.txt").write_text("very good food\nthe food was bad\nbad\n" * 4)
    taught = {"teacher": "teacher-16", "unlabelled": "more.txt"}
    assert_success(start("taught-2", workers=2, **taught))
    assert_success(start("taught-1", **taught))
    assert difference(folder / "taught-1", folder / "taught-2") < 1e-5
    others = start("others", workers=2, **taught | {"teacher": ["teacher-16", "teacher-12"]})
    for code, errors in map(ended, others):
        assert code == 2 and "the workers disagree on teacher (" in errors
