"""Runs trainings in child processes, so that one that hangs or dies does not affect others."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from exactness_cases.columns import COMPLETE, Job

Result = dict[str, Any]
BENCHMARKS = Path(__file__).resolve().parents[1]
START_SECONDS, CASE_SECONDS = 60, 60


def run_jobs(
    python: str, framework: str, dtype: str, jobs: list[Job], folder: Path
) -> Iterator[tuple[Job, Result]]:
    """Run jobs in as few processes as possible, and yield each result when it arrives.

    Jobs on one device share a process. If this process dies or times out, an error becomes the
    result of its current job, and a new process runs the remaining jobs.
    """
    local = [job for job in jobs if job.placement == "local"]
    for batch in [local] + [[job] for job in jobs if job.placement != "local"]:
        workers = 2 if batch and batch[0].placement == "2 workers" else 1
        paths = [folder / f"{framework}-{dtype}-{worker}.jsonl" for worker in range(workers)]
        while batch:
            for path in paths:
                path.unlink(missing_ok=True)
            with started(python, [framework, dtype], paths, json.dumps(batch)) as processes:
                done = 0
                for result in arriving(processes, paths):
                    yield batch[done], result
                    done += 1
            batch = batch[done:]
            if batch:
                status = f"exit status {processes[0].returncode}"
                yield batch.pop(0), {"error": "died", "message": status}


def arriving(processes: list[subprocess.Popen[bytes]], paths: list[Path]) -> Iterator[Result]:
    """Yield results as they arrive, until all processes have exited or one times out."""
    done, deadline = 0, time.monotonic() + START_SECONDS + CASE_SECONDS
    while True:
        ended = all(process.poll() is not None for process in processes)
        results = [merged(parts) for parts in zip(*map(read, paths), strict=False)]
        yield from results[done:]
        if len(results) > done:
            done, deadline = len(results), time.monotonic() + CASE_SECONDS
        if ended:
            return
        if time.monotonic() > deadline:
            yield {"error": "Timeout", "message": f"no result in {CASE_SECONDS} s"}
            return
        time.sleep(0.2)


@contextmanager
def started(
    python: str, arguments: list[str], paths: list[Path], jobs: str
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start one process per path, with a log beside each path, and kill them at the end."""
    processes = []
    try:
        for path, cluster in zip(paths, clusters(len(paths)), strict=True):
            command = [python, "-m", "exactness_cases.run", *arguments, str(path)]
            path.with_suffix(".jobs").write_text(jobs)
            with (
                path.with_suffix(".jobs").open() as stdin,
                path.with_suffix(".log").open("a") as log,
            ):
                processes.append(
                    subprocess.Popen(
                        command,
                        stdin=stdin,
                        stdout=log,
                        stderr=log,
                        env=environment(arguments[0]) | cluster,
                    )
                )
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def environment(framework: str) -> dict[str, str]:
    """Return the environment variables of a process; all frameworks run on the CPU."""
    backend = framework.partition(".")[2] or "tensorflow"
    folders = [str(BENCHMARKS), str(BENCHMARKS.parent), os.environ.get("PYTHONPATH")]
    found = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "-1",
        "KERAS_BACKEND": backend,
    }
    if backend == "jax":
        found["JAX_ENABLE_X64"] = "1"
        found["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    return found


def clusters(workers: int) -> list[dict[str, str]]:
    """Return each worker's environment variables; a single worker needs none."""
    if workers == 1:
        return [{}]
    sockets = [socket.socket() for _ in range(workers)]
    for free in sockets:
        free.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{free.getsockname()[1]}" for free in sockets]
    for free in sockets:
        free.close()
    tasks = [{"type": "worker", "index": index} for index in range(workers)]
    cluster = {"worker": addresses}
    return [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks]


def read(path: Path) -> list[Result]:
    """Return the results of all complete lines."""
    if not path.exists():
        return []
    complete = path.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in complete.splitlines()]


def merged(parts: tuple[Result, ...]) -> Result:
    """Return the common result of all workers, or an error if one failed or weights differ."""
    for part in parts:
        if part != parts[0]:
            failures = [p for p in parts if "error" in p]
            return failures[0] if failures else {"error": "Diverged", "message": "two workers"}
    return parts[0]


def environment_python(name: str, python: str, folder: Path) -> str:
    """Return the interpreter of a peer's environment, after installing missing packages.

    Complete requirements are installed without resolving dependencies. This is also the only way to
    install gradient-accumulator, which requires a NumPy too old for its TensorFlow.
    """
    requirements = BENCHMARKS / "peers" / f"{name}.txt"
    installed = folder / name / "bin" / "python"
    print(f"{name}: in {folder / name}", file=sys.stderr)
    if not installed.exists():
        subprocess.run([python, "-m", "venv", str(folder / name)], check=True)
    # This also completes an interrupted installation. With nothing missing, pip needs no network.
    pip = [str(installed), "-m", "pip", "install", "--quiet"]
    pip += ["--no-deps"] if name in COMPLETE else []
    subprocess.run([*pip, "-r", str(requirements)], check=True, stdout=sys.stderr)
    return str(installed)
