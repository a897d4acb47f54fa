"""The job descriptions in deploy/: their form, and that the program accepts their commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from bertaccum.cli.program import cli
from bertaccum.distribution import topology

FOLDER = Path(__file__).resolve().parents[1] / "deploy"
SLURM = (FOLDER / "slurm.sbatch").read_text(encoding="utf-8")


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def commands(script: str) -> list[list[str]]:
    """Return the arguments of each call of bertaccum in a shell script."""
    joined = re.sub(r"\\\n\s*", "", script)
    return [
        shlex.split(line)
        for line in re.findall(r"bertaccum (train .*?)(?: \|\| .*)?$", joined, re.M)
    ]


def check(arguments: list[str]) -> dict[str, Any]:
    """Return the options of a command line, which the real parser must accept."""
    name, *rest = arguments
    context = cli.commands[name].make_context(name, list(rest))
    return context.params


def kubernetes_script() -> str:
    _, job = documents("kubernetes-job.yaml")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["/bin/sh", "-c"]
    return str(container["args"][0])


def tfjob_worker() -> dict[str, Any]:
    (job,) = documents("kubeflow-tfjob.yaml")
    return dict(job["spec"]["tfReplicaSpecs"]["Worker"])


def test_check_refuses_an_unknown_option() -> None:
    with pytest.raises(click.UsageError, match="No such option"):
        check(["train", "--batch", "32"])


def test_batch_script_is_valid_and_its_command_is_accepted() -> None:
    subprocess.run(["bash", "-n", str(FOLDER / "slurm.sbatch")], check=True)
    ((*arguments,),) = commands(SLURM)
    assert check(arguments)["target_batch"] == 32
    settings = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", SLURM, re.MULTILINE))
    assert settings["ntasks-per-node"] == "1"
    assert settings["signal"].startswith("TERM@")  # bertaccum saves a checkpoint on SIGTERM.


@pytest.mark.parametrize("code", [0, 143, 1])
def test_batch_script_requeues_the_job_after_sigterm_only(tmp_path: Path, code: int) -> None:
    programs = {"srun": f'echo "$@" >> {tmp_path}/called; exit {code}'}
    programs["scontrol"] = f'echo "$@" > {tmp_path}/requeued'
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/activate").write_text("")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    environment |= {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "8"}
    environment |= {"BERTACCUM_FOLDER": str(tmp_path)}
    done = subprocess.run(["bash", str(FOLDER / "slurm.sbatch")], env=environment)
    assert done.returncode == code
    called = (tmp_path / "called").read_text()
    assert f"bertaccum train --data {tmp_path}/data/yelp" in called
    # Since Slurm 22.05, the tasks of srun would have one CPU otherwise.
    assert "--cpus-per-task=8 " in called
    requeued = tmp_path / "requeued"
    assert (requeued.read_text() if requeued.exists() else "") == ("requeue 7\n" * (code == 143))


def assert_downloads_are_kept(container: dict[str, Any]) -> None:
    (mount,) = container["volumeMounts"]
    found = {variable["name"]: variable["value"] for variable in container["env"]}
    assert found.keys() == {"BERTACCUM_CACHE", "HF_HOME"}
    assert all(value.startswith(f"{mount['mountPath']}/") for value in found.values())


def test_kubernetes_job_has_the_right_form() -> None:
    claim, job = documents("kubernetes-job.yaml")
    assert (claim["apiVersion"], claim["kind"]) == ("v1", "PersistentVolumeClaim")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (volume,) = pod["volumes"]
    (mount,) = container["volumeMounts"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert (mount["name"], mount["mountPath"]) == (volume["name"], "/data")
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert_downloads_are_kept(container)
    assert pod["restartPolicy"] == "OnFailure"


def test_kubernetes_job_resumes_a_run_that_exists(tmp_path: Path) -> None:
    first, second = commands(kubernetes_script())
    assert (first[1], check(first)["resume"]) == ("--resume", "/data/runs/yelp")
    assert check(second)["out"] == "/data/runs/yelp"
    script = kubernetes_script().replace("/data", str(tmp_path)).replace("exec bert", "exec echo b")
    run = ["/bin/sh", "-c", script]
    started = subprocess.run(run, capture_output=True, text=True, check=True)
    assert f"train --data {tmp_path}/yelp --target-batch 32" in started.stdout
    (tmp_path / "runs/yelp").mkdir(parents=True)
    (tmp_path / "runs/yelp/config.yaml").write_text("")
    resumed = subprocess.run(run, capture_output=True, text=True, check=True)
    assert f"train --resume {tmp_path}/runs/yelp" in resumed.stdout


def test_kubeflow_job_has_the_right_form() -> None:
    (job,) = documents("kubeflow-tfjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "TFJob")
    pod = tfjob_worker()["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "tensorflow"  # The operator adds TF_CONFIG to this container only.
    assert check(container["args"])["out"] == "/data/runs/yelp"
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    assert_downloads_are_kept(container)


@pytest.mark.parametrize("index", [0, 1])
def test_tf_config_of_kubeflow_describes_the_workers(
    index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = tfjob_worker()["replicas"]
    hosts = [f"bertaccum-worker-{number}.default.svc:2222" for number in range(workers)]
    described = {
        "cluster": {"worker": hosts},
        "task": {"type": "worker", "index": index},
        "environment": "cloud",  # The operator adds it, and other TensorFlow tools read it.
    }
    monkeypatch.setenv("TF_CONFIG", json.dumps(described))
    found = topology._cluster()
    assert found is not None
    assert (found.addresses, found.worker) == (tuple(hosts), index)
