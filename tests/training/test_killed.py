"""Signals and kills at random moments, on the program in separate processes.

`BERTACCUM_KILLS=4` kills each run four times instead of twice.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import PROGRAM, QUICK_XLA, Forked
from resuming import result
from small import write_google_checkpoint, write_small_model, write_small_task
from test_task_updates import CASES, write_case

from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.encoder_config import read_bert_config
from bertaccum.bert.tokenizer_files import learn_vocabulary
from bertaccum.options.prepare import PrepareConfig
from bertaccum.system.files import read_text
from bertaccum.system.progress import silent
from data_prep.preparation import prepare

Start = Callable[..., Forked]
PAIRS = "weighted pairs of scores"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create sample reviews with a small encoder, a run on them, and data of other tasks."""
    folder = tmp_path_factory.mktemp("inputs")
    reviews = folder / "reviews"
    prepare(PrepareConfig(source="sample", out=str(reviews)), silent, learn_vocabulary)
    path = write_small_model(reviews / "bert_config.json", reviews / "vocab.txt")
    write_google_checkpoint(build_encoder(read_bert_config(path)), reviews / "bert_model.ckpt")
    for name in ("tags", PAIRS, "multi-label"):
        write_case(folder / name, CASES[name])
    (folder / "more.txt").write_text("".join(f"the food was {n} times good\n" for n in range(40)))
    teacher = Forked(PROGRAM, *new_run("teacher", max_updates=2), cwd=folder)
    _, errors = teacher.communicate()
    assert teacher.returncode == 0, errors
    return folder


@pytest.fixture
def start(inputs: Path, tmp_path: Path) -> Start:
    """Return a function that starts the program in the test's own folder."""
    for path in inputs.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return lambda *arguments: Forked(PROGRAM, *arguments, cwd=tmp_path, env=QUICK_XLA)


def new_run(
    name: str, command: str = "train", data: str | None = "reviews", **options: object
) -> list[object]:
    """Return the arguments of a small run."""
    values = {"data": data, "bert_config": f"{data}/bert_config.json", "init_checkpoint": "none"}
    values |= {"max_seq_length": 32, "target_batch": 32, "micro_batch": 8, "save_every": 1}
    values |= {"max_updates": 1000, "eval_every": 10, "out": name}
    given = {key: value for key, value in (values | options).items() if value is not None}
    flags = ((f"--{key.replace('_', '-')}", value) for key, value in given.items())
    return [command, *(part for flag in flags for part in flag)]


def updates_of(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def wait_for(process: Forked, run: Path, updates: int) -> None:
    """Wait until this many updates are logged, or the process ends."""
    while process.poll() is None and updates_of(run) < updates:
        time.sleep(0.01)


def killed_until_through(start: Start, folder: Path, new: list[object], name: str) -> int:
    """Kill and resume a run at random moments, then let it finish; return the number of kills."""
    chance, run, killed = random.Random(name), folder / "killed", 0
    # The run may not have started, or may be about to save, evaluate or log.
    updates = chance.sample([0, 1, 1, 2], 4)
    while True:
        begun = (run / "config.yaml").exists()
        arguments = [new[0], "--resume", "killed"] if begun else new
        process, before = start(*arguments), updates_of(run)
        if killed < KILLS:
            wait_for(process, run, before + updates[killed % 4])
            time.sleep(chance.random() * 0.1)
            process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        if process.returncode == 0:
            return killed
        assert process.returncode == -signal.SIGKILL, errors
        killed += 1


PRETRAINED = {"init_checkpoint": "reviews", "bert_config": None}
# How often each run is killed.
KILLS = int(os.environ.get("BERTACCUM_KILLS", "2"))
# Options of runs.
KILLED: dict[str, dict[str, object]] = {
    "reviews": {},
    "tags, compiled": {"data": "tags", "compile": "on"},
    "pairs, moments offloaded": {"data": PAIRS, "recompute": "layer", "offload": "moments"},
    "several labels, all offloaded": {
        "data": "multi-label",
        "recompute": "layer",
        "offload": "all",
    },
    "adapters, recomputed": {
        **{"adapt": "lora", "lora_dropout": 0.2, "frozen_dtype": "bfloat16"},
        **{"recompute": "layer", **PRETRAINED},
    },
    "biases": {"adapt": "bias", "recompute": "layer", "offload": "all", **PRETRAINED},
    "teacher": {"teacher": "teacher", "unlabelled": "more.txt"},
    "pretraining": {
        "command": "pretrain",
        "data": None,
        "text": "more.txt",
        "bert_config": "reviews/bert_config.json",
        "vocab": "reviews/vocab.txt",
    },
}


@pytest.mark.parametrize("name", KILLED)
@pytest.mark.slow
def test_random_kills_do_not_change_the_result(start: Start, tmp_path: Path, name: str) -> None:
    given = KILLED[name]
    options = {"recompute": "none", "offload": "none", "epochs": 100, **given}
    options["max_updates"] = max(24, 8 * KILLS)
    if given.get("data") in CASES:
        options["task"] = CASES[str(given["data"])].labels.task
    whole, killed = start(*new_run("whole", **options)), new_run("killed", **options)
    assert killed_until_through(start, tmp_path, killed, name) == KILLS
    _, errors = whole.communicate()
    assert whole.returncode == 0, errors
    assert result(tmp_path / "killed") == result(tmp_path / "whole")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.slow
def test_signal_in_a_long_window_saves_a_checkpoint(
    start: Start, tmp_path: Path, number: int, code: int
) -> None:
    # A window has hundreds of micro-steps, so the signal arrives in the middle of the second one.
    long = {"target_batch": 800, "micro_batch": 1, "cut": "count", "epochs": 100}
    process = start(*new_run("run", **long, save_every=1000))
    wait_for(process, tmp_path / "run", 1)
    done = updates_of(tmp_path / "run")
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == code, errors
    assert updates_of(tmp_path / "run") == done
    message = f"error: stopped by a signal after update {done}; resume with"
    assert errors.splitlines()[-1] == f"{message} `bertaccum train --resume run`"
    assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()] == [f"update-{done}"]


@pytest.mark.slow
def test_second_signal_stops_immediately(start: Start, tmp_path: Path) -> None:
    """The signals arrive during a single micro-batch that takes seconds."""
    long = {"target_batch": 128, "micro_batch": 128, "epochs": 100, "eval_every": 1000}
    arguments = new_run("run", **long)
    at = arguments.index("--bert-config")
    arguments[at : at + 2] = ["--model", "bert-small"]
    process = start(*arguments)
    wait_for(process, tmp_path / "run", 1)
    while not list((tmp_path / "run/checkpoints").glob("update-1")):
        time.sleep(0.01)
    saved = {p.name: p.read_bytes() for p in (tmp_path / "run/checkpoints/update-1").iterdir()}
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    done = updates_of(tmp_path / "run")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert (process.returncode, updates_of(tmp_path / "run")) == (130, done)
    last = errors.splitlines()[-1]
    assert last == "error: stopped immediately; resume from the last checkpoint with --resume"
    folder = tmp_path / "run/checkpoints"
    assert {p.name: p.read_bytes() for p in (folder / "update-1").iterdir()} == saved
    assert "digest" in read_text(folder / "update-1/position.json")


def test_signal_during_preparation_leaves_no_files(tmp_path: Path) -> None:
    write_small_task(tmp_path / "reviews", train=8, dev=4)
    command = [sys.executable, "-m", "bertaccum", *map(str, new_run("run"))]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    process.stderr.readline()
    os.kill(process.pid, signal.SIGTERM)
    _, errors = process.communicate()
    assert (process.returncode, errors.splitlines()[-1]) == (143, "error: terminated")
    assert not (tmp_path / "run").exists()
