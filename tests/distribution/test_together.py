"""Runs on several replicas and workers, in real processes, make the same updates."""

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

import numpy as np
import pytest
import tensorflow as tf
from small import write_small_model, write_small_task

from bertaccum.distribution.launcher import _free_ports
from bertaccum.training.checkpoints import saved_states

Start = Callable[..., subprocess.Popen]
UPDATES = 10
# Options of the runs that are interrupted repeatedly.
LONG = {"workers": 2, "max_updates": 60}
SEVERAL_RUNS = str(Path(__file__).with_name("several_runs.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create reviews and a small encoder; windows of ten divide evenly by neither 3 nor 4."""
    folder = tmp_path_factory.mktemp("together")
    write_small_task(folder / "reviews", train=47, dev=10)
    return folder


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Return a function that starts `train`, alone or launched; leftover processes are stopped."""
    started: list[subprocess.Popen] = []

    def run(
        name: str, workers: int = 1, before: list[str] | None = None, **options: object
    ) -> subprocess.Popen:
        values = {"data": "reviews", "bert_config": "reviews/bert_config.json", "out": name}
        values |= {"init_checkpoint": "none", "max_seq_length": 16, "target_batch": 10}
        values |= {"micro_batch": 2, "max_updates": UPDATES, "eval_every": 4, "save_every": 1}
        values |= {"learning_rate": 5e-4, "epochs": 100}
        flags = ((f"--{k.replace('_', '-')}", v) for k, v in (values | options).items())
        train = ["train", *(str(part) for flag in flags for part in flag)]
        command = [sys.executable, "-m", "bertaccum"]
        if workers > 1:
            command += ["launch", "--workers", str(workers), "--"]
        process = subprocess.Popen(
            [*(before or []), *command, *train],
            cwd=folder,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.communicate()


def ended(process: subprocess.Popen) -> tuple[int, str]:
    """Return a process's exit code, and its error lines on stderr."""
    _, errors = process.communicate()
    lines = [line for line in errors.splitlines() if re.match(r"(\[\d\] )?error: ", line)]
    return process.returncode, "\n".join(lines)


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


def wait_for(process: subprocess.Popen, run: Path, updates: int) -> None:
    while process.poll() is None and updates_of(run) < updates:
        time.sleep(0.01)


def updates_of(run: Path) -> int:
    log = run / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def undisturbed(folder: Path, start: Start) -> Path:
    """Return the run that the interrupted runs must equal; train it at the first call."""
    if not (folder / "undisturbed/summary.json").exists():
        assert ended(start("undisturbed", **LONG)) == (0, "")
    return folder / "undisturbed"


@pytest.mark.slow
def test_mirrored_and_workers_make_the_same_updates(folder: Path, start: Start) -> None:
    alone, mirrored = start("alone"), start("mirrored", replicas=2, micro_batch=3)
    assert ended(alone) == (0, "")
    assert ended(mirrored) == (0, "")
    # The chief starts some updates early, and others only after a checkpoint; worker 1 starts all
    # of them early.
    assert ended(start("workers", workers=2, save_every=3)) == (0, "")
    for other in ("mirrored", "workers"):
        assert difference(folder / "alone", folder / other) < 1e-5
        for log in ("metrics.jsonl", "eval.jsonl"):
            ours, theirs = (
                [json.loads(line) for line in (folder / name / log).read_text().splitlines()]
                for name in ("alone", other)
            )
            assert [o["update"] for o in ours] == [t["update"] for t in theirs]
            for one, two in zip(ours, theirs, strict=True):
                assert one["loss"] == pytest.approx(two["loss"], abs=1e-6)
                assert one.get("examples") == two.get("examples")
    summary = json.loads((folder / "workers/summary.json").read_text())
    plan = json.loads((folder / "workers/plan.json").read_text())
    assert (summary["updates"], plan["replicas"], plan["accumulation_steps"]) == (UPDATES, 2, 3)


def runs_of(folder: Path, name: str, micro_batches: list[int], **options: object) -> str:
    """Return the options of runs with and without dropout, as JSON for `several_runs.py`."""
    values = {"data": str(folder / "reviews"), "init_checkpoint": "none", "max_seq_length": 16}
    values |= {"bert_config": str(folder / "reviews/bert_config.json"), "target_batch": 10}
    values |= {"max_updates": UPDATES, "eval_every": 4, "save_every": "1", "epochs": 100.0}
    several = [
        {"out": str(folder / f"{name}-m{size}-{dropout}"), "micro_batch": size, "dropout": dropout}
        for size in micro_batches
        for dropout in (0.0, 0.1)
    ]
    return json.dumps([values | {"learning_rate": 5e-4} | options | own for own in several])


@pytest.fixture(scope="module")
def alone(folder: Path) -> Path:
    """Train `one-m10-0.0` and `one-m10-0.1` on one device with one micro-batch per window."""
    runs = runs_of(folder, "one", [10])
    subprocess.run([sys.executable, SEVERAL_RUNS, runs], check=True, capture_output=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "replicas", "offload"),
    [(1, 2, "none"), (3, 2, "none"), (1, 2, "moments"), (1, 2, "all"), (2, 2, "all")],
)
def test_topology_and_micro_batch_do_not_change_the_weights(
    alone: Path, workers: int, replicas: int, offload: str
) -> None:
    """Each worker is one process that trains four runs in turn, with and without dropout."""
    name, sizes = f"w{workers}-r{replicas}-{offload}", [1, 4] if offload == "none" else [4]
    runs = runs_of(alone, name, sizes, replicas=replicas, offload=offload)
    command = [SEVERAL_RUNS, runs]
    if workers > 1:
        command = ["-m", "bertaccum", "launch", "--workers", str(workers), "--", *command]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for size in sizes:
        for dropout, bound in ((0.0, 1e-6), (0.1, 1e-5)):
            wanted, found = alone / f"one-m10-{dropout}", alone / f"{name}-m{size}-{dropout}"
            assert difference(wanted, found) < bound, (size, dropout)


@pytest.mark.slow
def test_lost_worker_is_named_and_the_same_command_resumes(folder: Path, start: Start) -> None:
    for victim, number in ((0, signal.SIGKILL), (1, signal.SIGSTOP)):
        done = updates_of(folder / "hurt")
        process = start("hurt", collective_timeout="4s", **LONG)
        wait_for(process, folder / "hurt", done + 2)
        os.kill(processes_of(process)[victim], number)
        code, errors = ended(process)
        assert code == (137 if number == signal.SIGKILL else 1)
        what = "has exited" if number == signal.SIGKILL else "does not answer"
        assert f"[{1 - victim}] error: worker {victim} (127.0.0.1:" in errors
        assert f") {what}" in errors and "start the same command again" in errors
    assert ended(start("hurt", **LONG)) == (0, "")
    assert difference(folder / "hurt", undisturbed(folder, start)) == 0


@pytest.mark.slow
def test_random_kills_do_not_change_the_weights(folder: Path, start: Start) -> None:
    chance, kills = np.random.default_rng(0), 0
    while kills < 4:
        process = start("random", collective_timeout="20s", **LONG)
        run = folder / "random"
        wait_for(process, run, updates_of(run) + int(chance.integers(0, 3)))
        time.sleep(float(chance.random()) * 0.1)
        while len(victims := processes_of(process)) < 2:
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(0.01)
        os.kill(victims[int(chance.integers(2))], signal.SIGKILL)
        kills += 1
        ended(process)
    assert ended(start("random", **LONG)) == (0, "")
    assert difference(folder / "random", undisturbed(folder, start)) == 0


@pytest.mark.slow
def test_signal_to_one_worker_stops_all(folder: Path, start: Start) -> None:
    options = {"workers": 2, "epochs": 100_000, "save_every": "10m", "eval_every": 10**6}
    process = start("stopped", max_updates=100_000, **options)
    wait_for(process, folder / "stopped", 3)
    os.kill(processes_of(process)[1], signal.SIGTERM)
    code, errors = ended(process)
    assert code == 143
    (last,) = saved_states(folder / "stopped/checkpoints")
    done = last.name.removeprefix("update-")
    for worker in (0, 1):
        assert f"[{worker}] error: stopped by a signal after update {done}; run the same" in errors
    # The checkpoint contains nothing of the interrupted window.
    assert ended(start("so-far", max_updates=int(done), **options)) == (0, "")
    assert difference(folder / "stopped", folder / "so-far") == 0


@pytest.mark.slow
def test_signal_to_one_worker_stops_a_shared_evaluation(folder: Path, start: Start) -> None:
    """The signal goes to a worker that is not the chief."""
    large = write_small_task(folder / "large-dev", train=20, dev=100_000)
    options = {"data": "large-dev", "bert_config": str(large), "save_every": 1, "eval_every": 2}
    process = start("in-eval", workers=2, **options)
    wait_for(process, folder / "in-eval", 2)
    time.sleep(0.5)
    os.kill(processes_of(process)[1], signal.SIGTERM)
    code, errors = ended(process)
    assert code == 143
    assert "[0] error: stopped by a signal after update 2;" in errors
    assert not (folder / "in-eval/eval.jsonl").exists()


@pytest.mark.slow
def test_workers_with_different_options_name_them(folder: Path, start: Start) -> None:
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(2)]
    processes = [
        start(
            "unlike",
            before=told(addresses, worker),
            seed=worker,
            target_batch=10 + worker,
            patience=1 + worker,
        )
        for worker in (0, 1)
    ]
    for process in processes:
        code, errors = ended(process)
        assert code == 2
        assert "--target-batch (11 on worker 1, 10 on worker 0)" in errors
        assert "--seed (1 on worker 1, 0 on worker 0)" in errors
        assert "--patience (2 on worker 1, 1 on worker 0)" in errors
    assert not (folder / "unlike").exists()


def told(addresses: list[str], worker: int) -> list[str]:
    """Return the prefix that makes a command run as a worker."""
    task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": worker}}
    return ["env", f"TF_CONFIG={json.dumps(task)}"]


@pytest.mark.slow
def test_worker_out_of_memory_shrinks_only_its_own_micro_batches(
    folder: Path, start: Start
) -> None:
    wide = write_small_task(folder / "wide", train=256, dev=10)
    large = {"intermediate_size": 16_384, "num_hidden_layers": 2}
    write_small_model(wide, folder / "wide/vocab.txt", **large)
    options = {"data": "wide", "bert_config": "wide/bert_config.json", "target_batch": 256}
    options |= {"micro_batch": 128, "cut": "count", "max_updates": 2}
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(2)]
    processes = [
        start("short", before=told(addresses, worker), memory_limit=limit, **options)
        for worker, limit in enumerate(("3GiB", "150MiB"))
    ]
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert "update 1: out of memory with micro-batches of 128" in said[1]
    assert "out of memory" not in said[0]
    assert json.loads((folder / "short/plan.json").read_text())["micro_batch"] == 128
    assert ended(start("roomy", workers=2, **options)) == (0, "")
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


@pytest.mark.slow
def test_disconnected_host_is_named(folder: Path, start: Start, hosts: list[str]) -> None:
    """Each host has its own network; the link between them is cut during the run."""
    addresses = ["10.77.0.1:2222", "10.77.0.2:2222"]

    def both(**options: object) -> list[subprocess.Popen]:
        return [
            start("hosts", before=["ip", "netns", "exec", host, *told(addresses, n)], **options)
            for n, host in enumerate(hosts)
        ]

    processes = both(collective_timeout="5s", max_updates=10_000)
    wait_for(processes[0], folder / "hosts", 5)
    subprocess.run(["ip", "-n", hosts[1], "link", "set", "wire", "down"], check=True)
    for worker, process in enumerate(processes):
        code, errors = ended(process)
        assert code == 1
        assert f"error: worker {1 - worker} ({addresses[1 - worker]}) does not answer" in errors
    subprocess.run(["ip", "-n", hosts[1], "link", "set", "wire", "up"], check=True)
    for process in both():
        code, errors = ended(process)
        assert (code, errors) == (0, "")
