"""The snippets in docs/ run as they are, and print what stands below them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import click
import pytest
import yaml

from bertaccum.cli import cli

ROOT = Path(__file__).resolve().parents[1]
SNIPPETS = {
    f"{page}-{number}": snippet
    for page in ("gradient-accumulation", "from-estimator")
    for number, snippet in enumerate(
        re.findall(
            r"```python\n(.*?)```\n\n```text\n(.*?)```",
            (ROOT / f"docs/{page}.md").read_text(encoding="utf-8"),
            re.DOTALL,
        )
    )
}
# Two replicas, also on a machine without GPUs.
TWO_DEVICES = """
import functools
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
mirrored = functools.partial(tf.distribute.MirroredStrategy, ["CPU:0", "CPU:1"])
tf.distribute.MirroredStrategy = mirrored
"""


def test_there_are_snippets() -> None:
    pages = [name.rsplit("-", 1)[0] for name in SNIPPETS]
    assert Counter(pages) == {"gradient-accumulation": 5, "from-estimator": 2}


@pytest.mark.parametrize("name", SNIPPETS)
def test_snippet(name: str, tmp_path: Path) -> None:
    code, printed = SNIPPETS[name]
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES + code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed


def test_the_kubernetes_job_describes_its_workers() -> None:
    text = (ROOT / "docs/scaling.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    service, job = yaml.safe_load_all(block)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == service["metadata"]["name"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    script = container["args"][0].replace("exec bertaccum", 'echo "$TF_CONFIG"; exec echo')
    for index in range(job["spec"]["completions"]):
        environment = os.environ | {"JOB_COMPLETION_INDEX": str(index)}
        command = [*container["command"], script]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        said, called = done.stdout.splitlines()
        described = json.loads(said)
        assert described["cluster"]["worker"] == [
            f"bertaccum-{number}.bertaccum:2222" for number in range(job["spec"]["completions"])
        ]
        assert described["task"] == {"type": "worker", "index": index}
        assert called.startswith("train --data")


# Of google-research/bert, at its last commit.
RUN_CLASSIFIER_FLAGS = re.findall(
    r"\w+",
    """
data_dir bert_config_file task_name vocab_file output_dir init_checkpoint do_lower_case
max_seq_length do_train do_eval do_predict train_batch_size eval_batch_size predict_batch_size
learning_rate num_train_epochs warmup_proportion save_checkpoints_steps iterations_per_loop use_tpu
tpu_name tpu_zone gcp_project master num_tpu_cores
""",
)


def test_every_flag_of_run_classifier_has_its_counterpart() -> None:
    """And what is called an option of ours is one, of the command before it."""
    page = (ROOT / "docs/from-run-classifier.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `--(\w+)` \| ([^|]+) \|([^|]*)\|$", page, re.MULTILINE)
    assert sorted(flag for flag, *_ in rows) == sorted(RUN_CLASSIFIER_FLAGS)
    assert all(ours != "none" or reason.strip() for _, ours, reason in rows)
    known = {name: _options(command) for name, command in cli.commands.items()}
    everything = set().union(*known.values())
    theirs = {f"--{flag}" for flag in RUN_CLASSIFIER_FLAGS} | {"--do_"}
    assert set(re.findall(r"--[a-z_][\w-]*", page)) <= theirs | everything
    named = [ours for _, ours, _ in rows if ours != "none"]
    named += re.findall(r"^bertaccum (?:.*\\\n)*.*$", page, re.MULTILINE)
    assert len(named) > 18
    for called in named:
        command, *words = called.replace("`", "").removeprefix("bertaccum ").split()
        assert {w.rstrip(",") for w in words if w.startswith("--")} <= known[command], called


def _options(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda p: p.name
)
def test_links_lead_somewhere(page: Path) -> None:
    committed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        known = committed.stdout.splitlines()
        assert not known or target.is_dir() or str(target.relative_to(ROOT)) in known, link
        assert not anchor or anchor in anchors(target), link
