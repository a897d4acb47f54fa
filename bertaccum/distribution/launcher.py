"""Launches several workers on this machine, as processes that start and end together.

The workers load TensorFlow; the launcher does not.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from bertaccum.errors import ConfigError
from bertaccum.system.child_process import module_command
from bertaccum.system.printable import printable

# After a worker fails, the others have `FIND_OUT_SECONDS` to find out which one failed. They then
# receive SIGTERM, if no signal was passed on to them before, and SIGKILL `STOP_SECONDS` later.
FIND_OUT_SECONDS = 12.0
STOP_SECONDS = 10.0
_HOST = "127.0.0.1"
# The NVIDIA driver lists the GPUs in this folder.
_DRIVER = Path("/proc/driver/nvidia/gpus")


def launch(workers: int, arguments: Sequence[str]) -> int:
    """Run a command, or a Python file, as several workers of one run, each with its own TF_CONFIG.

    Each line that a worker writes to stderr appears on the launcher's stderr, preceded by the
    worker's number. Only the chief's stdout is shown. SIGINT and SIGTERM are passed on to the
    workers. TensorFlow makes its workers ignore SIGTERM, so workers that run a Python file are
    killed if they do not stop.

    Returns:
      0, or the exit code of the first worker that failed.
    """
    gpus = named_gpus()
    if gpus and len(gpus) % workers:
        raise ConfigError(
            f"{workers} workers cannot share {len(gpus)} GPUs evenly",
            "choose another number of workers, or set CUDA_VISIBLE_DEVICES='' to use the CPU",
        )
    addresses = [f"{_HOST}:{port}" for port in _free_ports(workers)]
    processes: list[subprocess.Popen[str]] = []
    readers = []
    patience_seconds = STOP_SECONDS if is_file(arguments[0]) else math.inf
    with _forwarding_signals(processes) as signal_times:
        for number in range(workers):
            process = _start(number, _environment(number, addresses, gpus), arguments)
            processes.append(process)
            assert process.stderr is not None
            reader = threading.Thread(target=_prefix, args=(number, process.stderr), daemon=True)
            reader.start()
            readers.append(reader)
        try:
            code = _wait(processes, signal_times, patience_seconds)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    for reader in readers:
        reader.join()
    if code and not signal_times and is_file(arguments[0]):  # Commands report their own errors.
        _say(f"error: the first worker to fail exited with code {code}")
    return code


def is_file(command: str) -> bool:
    """Return whether a command to launch is a Python file rather than a `bertaccum` command."""
    return command.endswith(".py")


def _free_ports(count: int) -> list[int]:
    """Return ports on which no process listens."""
    # All sockets stay open until the last port is found, so that the ports differ.
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((_HOST, 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def named_gpus() -> list[str]:
    """Return the GPUs to divide among workers, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [str(number) for number, _ in enumerate(_DRIVER.glob("*"))]
    return [gpu for gpu in named.split(",") if gpu not in ("", "-1")]


def _environment(number: int, addresses: list[str], gpus: list[str]) -> dict[str, str]:
    """Return the environment variables that give a worker its number and its GPUs."""
    task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": number}}
    own = {"CUDA_VISIBLE_DEVICES": ",".join(gpus[number :: len(addresses)])} if gpus else {}
    return {"TF_CONFIG": json.dumps(task), **own}


def _start(
    number: int, environment: dict[str, str], arguments: Sequence[str]
) -> subprocess.Popen[str]:
    of_file = is_file(arguments[0])
    command = [sys.executable, *arguments] if of_file else module_command("bertaccum", *arguments)
    return subprocess.Popen(
        command,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=None if number == 0 else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        # In a session of its own, the worker does not receive Ctrl-C; the launcher passes it on.
        start_new_session=True,
    )


def _prefix(number: int, lines: IO[str]) -> None:
    for line in lines:
        _say(f"[{number}] {line.rstrip()}")


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(printable(line, "\t") + "\n")
        sys.stderr.flush()


@contextlib.contextmanager
def _forwarding_signals(processes: list[subprocess.Popen[str]]) -> Iterator[list[float]]:
    """Pass SIGINT and SIGTERM on to the workers, and SIGHUP as SIGTERM.

    The workers have no terminal, so they do not notice that it was closed.
    """
    signal_times: list[float] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        signal_times.append(time.monotonic())
        for process in processes:
            # This does nothing if the process has ended.
            process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # As with nohup.
        numbers.remove(signal.SIGHUP)
    handlers = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield signal_times
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _wait(
    processes: list[subprocess.Popen[str]], signal_times: list[float], patience_seconds: float
) -> int:
    """Wait for all workers to end, and return the first nonzero exit code, or 0."""
    failed, since, asked = 0, 0.0, False
    while any(process.poll() is None for process in processes):
        time.sleep(0.05)
        codes = [process.poll() for process in processes]
        if not failed and (bad := [code for code in codes if code]):
            failed, since = bad[0], time.monotonic()
        waited = time.monotonic() - since if failed else 0.0
        # A second signal would end a worker immediately, even while it saves a checkpoint.
        if waited > FIND_OUT_SECONDS and not asked and not signal_times:
            asked = True
            for process in processes:
                process.terminate()
        ignored = bool(signal_times) and time.monotonic() - signal_times[0] > patience_seconds
        if waited > FIND_OUT_SECONDS + STOP_SECONDS or ignored:
            for process in processes:
                process.kill()
    failed = failed or next((code for code in (p.returncode for p in processes) if code), 0)
    return failed if failed >= 0 else 128 - failed
