"""Launching workers on this machine: their numbers, GPUs and exit codes."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import click
import pytest

from bertaccum.cli.program import cli
from bertaccum.distribution import launcher as module
from bertaccum.distribution.launcher import launch
from bertaccum.errors import ConfigError

TEMPORARY = """
import os, pathlib, sys
number = int(os.environ["TF_CONFIG"].rsplit(":", 1)[1].strip(" }"))
pathlib.Path(f"{sys.argv[1]}-{number}").write_text(os.environ["BERTACCUM_TEMPORARY_CACHE"])
"""
ADDRESSES = ["127.0.0.1:1", "127.0.0.1:2"]


def test_each_worker_has_its_own_number_and_gpus() -> None:
    for number, gpus in ((0, "0,2"), (1, "1,3")):
        told = module._environment(number, ADDRESSES, ["0", "1", "2", "3"])
        task = json.loads(told["TF_CONFIG"])
        assert task["cluster"] == {"worker": ADDRESSES}
        assert task["task"] == {"type": "worker", "index": number}
        assert told["CUDA_VISIBLE_DEVICES"] == gpus
    assert "CUDA_VISIBLE_DEVICES" not in module._environment(0, ADDRESSES, [])


def test_only_visible_gpus_are_shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("0000:01", "0000:02", "0000:03"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(module, "_DRIVER", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert module.named_gpus() == ["0", "1", "2"]
    with pytest.raises(ConfigError, match="2 workers cannot share 3 GPUs evenly"):
        launch(2, ["train"])
    for named, gpus in (("", []), ("-1", []), ("1,0", ["1", "0"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        assert module.named_gpus() == gpus


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "2", "--", "eval"], "launch starts train or a Python file, not eval"),
        (["--workers", "1", "--", "train"], "x>=2"),
        (["--", "train"], "workers"),
        (["--workers", "2"], "COMMAND"),
    ],
)
def test_invalid_launch_is_a_usage_error(arguments: list[str], message: str) -> None:
    with pytest.raises(click.UsageError) as error:
        cli.main(["launch", *arguments], standalone_mode=False)
    assert message.lower() in error.value.format_message().lower()


@pytest.mark.usefixtures("data_prep_of_the_user")
def test_exit_code_is_that_of_the_first_failure(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(2, ["train", "--target-batch", "none"]) == 2
    errors = capfd.readouterr().err
    for worker in (0, 1):
        assert f"[{worker}] error: Invalid value for '--target-batch'" in errors


def test_line_of_a_worker_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    module._prefix(1, io.StringIO("a\tb\x1b[31m\x9bc\n"))
    assert capsys.readouterr().err == "[1] a\tb\\x1b[31m\\x9bc\n"


def test_python_file_gets_its_worker_number(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "mine.py"
    program.write_text(
        "import json, os, sys\n"
        "number = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        "print(number, *sys.argv[1:])\n"
        "print('a word', file=sys.stderr)\n"
        "sys.exit(3 * number)\n"
    )
    with pytest.raises(SystemExit) as ended:
        cli.main(["launch", "--workers", "2", "--", str(program), "--epochs", "3"])
    assert ended.value.code == 3
    out, err = capfd.readouterr()
    assert out == "0 --epochs 3\n"
    *said, last = err.splitlines()
    assert sorted(said) == ["[0] a word", "[1] a word"]
    assert last == "error: the first worker to fail exited with code 3"
    with pytest.raises(ConfigError, match=r"none.py is not a file"):
        cli.main(["launch", "--workers", "2", "--", "none.py"], standalone_mode=False)


def launch_and_send(number: int, folder: Path, beginning: str = "", seconds: int = 600) -> int:
    """Launch two workers that sleep, send a signal to the launcher, and return its exit code."""
    program, started = folder / "mine.py", folder / "started"
    program.write_text(
        "import os, pathlib, signal, sys, time\n"
        f"{beginning}\n"
        "pathlib.Path(sys.argv[1], str(os.getpid())).touch()\n"
        f"time.sleep({seconds})\n"
    )
    started.mkdir()

    def send() -> None:
        while len(list(started.iterdir())) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()
    return launch(2, [str(program), str(started)])


def test_python_file_that_ignores_sigterm_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOP_SECONDS", 0.5)
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    assert launch_and_send(signal.SIGTERM, tmp_path, ignore) == 128 + signal.SIGKILL


@pytest.mark.parametrize("ignored", [False, True])
def test_workers_end_when_the_terminal_is_closed(tmp_path: Path, ignored: bool) -> None:
    """`nohup` ignores the signal, and so does the launcher then."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        code = launch_and_send(signal.SIGHUP, tmp_path, seconds=1 if ignored else 600)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert code == (0 if ignored else 128 + signal.SIGTERM)


class Ending:
    """A process that ends when it is asked for its exit code for the last time."""

    def __init__(self, code: int, times: int) -> None:
        self.returncode, self.left, self.terminated = code, times, 0

    def poll(self) -> int | None:
        self.left -= 1
        return self.returncode if self.left < 0 else None

    def terminate(self) -> None:
        self.terminated += 1


@pytest.mark.parametrize("signals", [0, 1])
def test_workers_get_a_signal_once(monkeypatch: pytest.MonkeyPatch, signals: int) -> None:
    """Their second one would end a chief that still saves a checkpoint."""
    monkeypatch.setattr(module, "FIND_OUT_SECONDS", 0.0)
    monkeypatch.setattr(module, "STOP_SECONDS", math.inf)
    processes: Any = [Ending(1, 10), Ending(143, 0)]
    assert module._wait(processes, [time.monotonic()] * signals, math.inf) == 143
    assert processes[0].terminated == 1 - signals


def test_workers_share_the_folder_that_replaces_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BERTACCUM_TEMPORARY_CACHE", "")
    (tmp_path / "file").touch()
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "file/cache"))
    (tmp_path / "worker.py").write_text(TEMPORARY)
    program = [str(tmp_path / "worker.py"), str(tmp_path / "seen")]
    with pytest.raises(SystemExit) as end:
        cli.main(["launch", "--workers", "2", "--", *program])
    assert end.value.code == 0
    seen = {(tmp_path / f"seen-{number}").read_text() for number in (0, 1)}
    assert seen == {os.environ["BERTACCUM_TEMPORARY_CACHE"]} != {""}
    assert capfd.readouterr().err.count("so nothing new is cached") == 1
