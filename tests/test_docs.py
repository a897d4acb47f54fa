"""The documentation: snippets print the output shown, links work, and tables are complete."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from bertaccum.cli.program import cli
from bertaccum.options.cards import CARDS
from bertaccum.options.other_names import explain_option
from bertaccum.system.stopping import GRACE_SECONDS

ROOT = Path(__file__).resolve().parents[1]
# Pages with snippets, each followed by its output, and the number of snippets.
PAGES = {"explanation/accumulation": 5, "migration/estimator": 2, "migration/keras3": 2}
# Runs each snippet in a process of its own, with two replicas even on a machine without GPUs.
# Modules that the snippets import are loaded once.
RUN = """
import functools, json, os, sys
import tensorflow as tf, tf_keras
import bertaccum.accumulation
for snippet in json.load(sys.stdin):
    if not os.fork():
        cpu = tf.config.list_physical_devices("CPU")[0]
        configuration = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, configuration)
        mirrored = functools.partial(tf.distribute.MirroredStrategy, ["CPU:0", "CPU:1"])
        tf.distribute.MirroredStrategy = mirrored
        exec(snippet, {})
        sys.exit()
    assert os.wait()[1] == 0
    print("end of snippet", flush=True)
"""


@pytest.mark.slow
def test_snippets_print_the_output_shown(tmp_path: Path) -> None:
    texts = [(ROOT / f"docs/{page}.md").read_text(encoding="utf-8") for page in PAGES]
    form = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
    found = [form.findall(text) for text in texts]
    assert [*map(len, found)] == [*PAGES.values()]
    snippets = [*itertools.chain(*found)]
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps([code for code, _ in snippets]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TF_USE_LEGACY_KERAS": "0"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("end of snippet\n") == [*(printed for _, printed in snippets), ""]


def test_kubernetes_job_sets_tf_config_for_each_worker() -> None:
    text = (ROOT / "docs/how-to/several-devices.md").read_text(encoding="utf-8")
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


# The flags of run_classifier.py at the last commit of google-research/bert.
RUN_CLASSIFIER_FLAGS = re.findall(
    r"\w+",
    """
data_dir bert_config_file task_name vocab_file output_dir init_checkpoint do_lower_case
max_seq_length do_train do_eval do_predict train_batch_size eval_batch_size predict_batch_size
learning_rate num_train_epochs warmup_proportion save_checkpoints_steps iterations_per_loop use_tpu
tpu_name tpu_zone gcp_project master num_tpu_cores
""",
)


def test_page_lists_every_flag_of_run_classifier() -> None:
    """Every option of ours on the page exists, and belongs to the command named before it."""
    page = (ROOT / "docs/migration/run-classifier.md").read_text(encoding="utf-8")
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


# From transformers 5.24.0: [field.name for field in dataclasses.fields(TrainingArguments)].
TRAINING_ARGUMENTS = re.findall(
    r"\w+",
    """
output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate lr_scheduler_type
lr_scheduler_kwargs warmup_steps optim optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon
optim_target_modules gradient_accumulation_steps average_tokens_across_devices max_grad_norm
label_smoothing_factor bf16 fp16 bf16_full_eval fp16_full_eval tf32 activation_checkpointing
activation_checkpointing_kwargs gradient_checkpointing gradient_checkpointing_kwargs torch_compile
torch_compile_backend torch_compile_mode use_liger_kernel liger_kernel_config use_cache
neftune_noise_alpha torch_empty_cache_steps auto_find_batch_size logging_strategy logging_steps
logging_first_step log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen log_level
log_level_replica disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id
trackio_static_space_id eval_strategy eval_steps eval_delay per_device_eval_batch_size
prediction_loss_only eval_on_start eval_do_concat_batches eval_use_gather_object
eval_accumulation_steps include_for_metrics batch_eval_metrics save_only_model save_strategy
save_steps save_on_each_node save_total_limit enable_jit_checkpoint push_to_hub hub_token
hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision load_best_model_at_end
metric_for_best_model greater_is_better ignore_data_skip restore_callback_states_from_checkpoint
full_determinism seed data_seed use_cpu accelerator_config parallelism_config dataloader_drop_last
dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order
remove_unused_columns label_names train_sampling_strategy length_column_name
ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend
ddp_timeout fsdp fsdp_config deepspeed debug skip_memory_metrics do_train do_eval do_predict
resume_from_checkpoint local_rank
""",
)


def test_page_lists_every_field_of_training_arguments() -> None:
    """A field without a counterpart has a reason, and every option of ours on the page exists."""
    page = (ROOT / "docs/migration/huggingface.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]+) \|([^|]*)\|$", page, re.MULTILINE)
    named = [field for fields, *_ in rows for field in re.findall(r"\w+", fields)]
    assert sorted(named) == sorted(TRAINING_ARGUMENTS)
    assert all(ours != "none" or reason.strip() for _, ours, reason in rows)
    known = {name: _options(command) for name, command in cli.commands.items()}
    assert set(re.findall(r"--[a-z][\w-]*", page)) <= set().union(*known.values())
    called = [ours for _, ours, _ in rows if ours != "none"]
    called += re.findall(r"^bertaccum (?:.*\\\n)*.*$", page, re.MULTILINE)
    assert len(called) > 25
    for line in called:
        command, *words = line.replace("`", "").removeprefix("bertaccum ").split()
        assert {word for word in words if word.startswith("--")} <= known[command], line


@pytest.mark.slow
def test_list_of_training_arguments_equals_that_of_transformers(transformers_python: Path) -> None:
    code = "import dataclasses as d, transformers as t; print(*(f.name for f in d.fields(t.{})))"
    command = [transformers_python, "-c", code.format("TrainingArguments")]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert sorted(done.stdout.split()) == sorted(TRAINING_ARGUMENTS)


@pytest.mark.parametrize(
    ("page", "fields"),
    [("run-classifier", RUN_CLASSIFIER_FLAGS), ("huggingface", TRAINING_ARGUMENTS)],
)
def test_error_about_an_option_of_another_program_agrees_with_the_page(
    page: str, fields: list[str]
) -> None:
    text = (ROOT / f"docs/migration/{page}.md").read_text(encoding="utf-8")
    known = {
        name: {flag.strip("-").replace("-", "_") for flag in _options(command)}
        for name, command in cli.commands.items()
    }
    checked, row = set(), r"^\| (`(?:--)?\w+`(?:, `\w+`)*) \| ([^|]+) \|"
    for names, ours in re.findall(row, text, re.MULTILINE):
        for field in {*re.findall(r"\w+", names)} & {*fields} - known["train"]:
            explained = explain_option(field, "train", known)
            assert explained, field
            flags = {flag.replace("-", "_") for flag in re.findall(r"--([\w-]+)", ours)}
            called = {*re.findall(r"`(\w+)`", explained.partition(",")[0])}
            assert called <= flags or "calls this" not in explained, (field, explained)
            checked.add(field)
    assert checked == {*fields} - known["train"]


def _options(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub derives from the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")], ids=lambda p: str(p.relative_to(ROOT))
)
def test_links_lead_to_committed_files_and_headings(page: Path) -> None:
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


def test_contributing_lists_every_package() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    packages = [path.parent for path in ROOT.glob("bertaccum/*/__init__.py")]
    assert packages
    for package in [*packages, ROOT / "data_prep"]:
        assert f"`{package.relative_to(ROOT)}/`" in text, package


def test_errors_page_lists_the_errors_of_the_source() -> None:
    pytest.importorskip("sphinx", reason="Sphinx needs Python 3.11")
    from error_list import Message, messages

    found = list(messages())
    assert len(found) > 150
    assert Message("InputError", "is a folder, not a file", "pass a file in it") in found
    assert {m.error for m in found} == {"InputError", "ConfigError", "RunError"}


def test_page_of_cards_lists_all_of_them() -> None:
    text = (ROOT / "docs/reference/cards.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(.*?)` \| (.*) \|$", text, re.MULTILINE)
    assert [name for name, _ in listed] == list(CARDS)
    for (_, cells), card in zip(listed, CARDS.values(), strict=True):
        capability = ".".join(map(str, card.capability))
        rates = [f"{card.float32:.3g}", f"{card.half:.3g}", f"{card.bandwidth:,.4g}"]
        expected = [card.title, f"{card.memory_mib:,}", capability, *rates, f"{card.bus:.3g}"]
        assert cells.split(" | ") == [*expected, card.source]


def test_grace_period_is_the_documented_one() -> None:
    text = (ROOT / "docs/explanation/reliability.md").read_text()
    assert f"not finished after {GRACE_SECONDS:g} seconds" in " ".join(text.split())
