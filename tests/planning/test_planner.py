"""Planning with simulated training steps, and with real ones in the last tests."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from simulated import Simulated
from small import Notes, flip_a_bit

from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.data.run_inputs import RunInputs, Unlabelled
from bertaccum.errors import BertAccumError, RunError
from bertaccum.options.cards import CARDS
from bertaccum.options.commands import PlanConfig, TrainConfig
from bertaccum.options.offload_rungs import LADDER
from bertaccum.options.pretraining import PretrainConfig, train_config
from bertaccum.options.task_names import MASKED_LM, TASKS
from bertaccum.planning import measured_plan, planner
from bertaccum.planning.advice import reason_for
from bertaccum.planning.calculated_time import CalculatedTime
from bertaccum.planning.cost import state_bytes
from bertaccum.planning.measurement import MeasurementProcess, MeasurementRequest, PlanRequest
from bertaccum.planning.plan import Saving, make_plan
from bertaccum.planning.plan_result import Candidate, PlanResult
from bertaccum.planning.planner import learned_limits, plan_for_options, remember_out_of_memory
from bertaccum.system.progress import silent
from bertaccum.tasks.head import output_tokens
from bertaccum.tasks.labels import Labels
from bertaccum.training import step_measurement
from bertaccum.training.agreed_plan import find_plan
from data_prep.tables.corpus import Corpus

MIB = 2**20


@pytest.fixture
def make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[PlanResult, dict[str, Any]]]:
    """Return a function that plans with simulated processes and returns the plan and its file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measured_plan, "MeasurementProcess", Simulated)
    Simulated.started = []

    def call(**options: Any) -> tuple[PlanResult, dict[str, Any]]:
        report = plan_for_options(PlanConfig(**options), silent)
        return report, json.loads((tmp_path / "plan.json").read_text())

    return call


def step_config(job: dict[str, Any]) -> TrainConfig:
    """Return the options with which a measurement process builds its model."""
    return train_config(job["config"] | {"task": job["labels"]["task"]})


def test_fastest_plan_that_fits_is_chosen_and_written(make: Callable[..., Any]) -> None:
    report, written = make(memory_limit="4GiB")
    assert report.values == written
    reason = "because prepared data in data/yelp_polarity is missing"
    assert report.timed_on == f"full-length windows, {reason}"
    assert (report.plan.micro_batch, report.plan.accumulation_steps) == (8, 4)
    assert written["why"].startswith("the whole update fits, but smaller micro-batches are faster:")
    rows = {(c["micro_batch"], c["recompute"]): c for c in written["candidates"]}
    assert rows[4, "none"]["predicted_peak_bytes"] == pytest.approx(598 * MIB, rel=1e-3)
    assert rows[32, "none"]["predicted_peak_bytes"] == pytest.approx(1524 * MIB, rel=1e-3)
    assert all(row["fits"] for row in rows.values())
    # The second process may use the limit minus half of the margin.
    assert [job["limit_bytes"] / MIB for job in Simulated.started][1] == int(4096 * 0.98)

    # With equal lengths, many cuts by cost are equally good, and rounding decides between them.
    small, written = make(memory_limit="720MiB", offload="none", cut="count")
    assert small.plan.micro_batch == 6
    assert written["why"].startswith("the fastest of the")
    assert written["peak_memory_bytes"] <= 720 * MIB * 0.98


def test_whole_window_needs_no_accumulation(make: Callable[..., Any]) -> None:
    report, written = make(memory_limit="4GiB", target_batch=8)
    assert report.plan.accumulation_steps == 1
    assert written["why"] == "the whole update fits: no accumulation is needed"
    assert Simulated.started[1]["accumulation_steps"] == 1


def test_same_request_is_measured_once(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = make(memory_limit="2GiB")
    again, _ = make(memory_limit="2GiB")
    assert (first.cached, again.cached) == (False, True)
    assert first.values == again.values
    assert len(Simulated.started) == 2
    others = [
        {"memory_limit": "3GiB"},
        {"max_seq_length": 64},
        {"precision": "mixed_bfloat16"},
        {"target_batch": 64},
        {"model": "bert-mini"},
        {"dropout": 0.0},
        {"recompute": "none"},
        {"micro_batch": 4},
        {"accumulator_dtype": "bfloat16"},
        {"offload": "moments"},
        {"fresh": True},
    ]
    for other in others:
        report, _ = make(**({"memory_limit": "2GiB"} | other))
        assert not report.cached, other
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert not make(memory_limit="2GiB")[0].cached


def test_processes_use_the_folder_that_replaces_the_cache(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTACCUM_TEMPORARY_CACHE", "")
    (tmp_path / "cache").touch()
    seen: list[str] = []

    class Recording(Simulated):
        def __init__(self, *arguments: Any) -> None:
            seen.append(os.environ["BERTACCUM_TEMPORARY_CACHE"])
            super().__init__(*arguments)

    monkeypatch.setattr(measured_plan, "MeasurementProcess", Recording)
    assert [make(memory_limit="2GiB")[0].cached for _ in range(2)] == [False, True]
    assert not make(memory_limit="2GiB", fresh=True)[0].cached
    assert len({*seen}) == 1 and seen[0]


def test_error_if_nothing_fits_proposes_changes(make: Callable[..., Any]) -> None:
    report, written = make(memory_limit="510MiB", recompute="none", offload="none")
    assert written["micro_batch"] is None
    with pytest.raises(RunError) as error:
        report.require_plan()
    assert error.value.exit_code == 1
    message = str(error.value)
    assert message.startswith("nothing fits: one example of 128 tokens takes at least 500 MiB;")
    assert "490 MiB is usable after the safety margin" in message
    assert "use `accumulator_dtype` bfloat16 (about 445 MiB)" in message
    assert "use `offload` moments (about 280 MiB)" in message
    assert "use `adapt` lora, which trains adapters instead of whole layers (about " in message
    assert "use `model` bert-mini" in message
    # Recomputation was measured for the advice, although the options do not allow it.
    assert set(written["example_bytes"]) == {"none", "layer"}


def test_auto_saves_no_memory_if_the_size_is_set_as_in_a_run(make: Callable[..., Any]) -> None:
    """720 MiB are too little for eight examples whose activations are all stored."""
    report, written = make(memory_limit="720MiB", micro_batch=8)
    (row,) = written["candidates"]
    assert report.plan is None and (row["recompute"], row["offload"]) == ("none", "none")
    inputs = RunInputs(
        ModelSource("bert-small", EncoderConfig(), None, None), Labels.numbered(2), [], [], []
    )
    _, planned = find_plan(TrainConfig(micro_batch=8), inputs, 1, 1, silent)
    assert planned.require_plan().saving == Saving(row["recompute"], row["offload"])
    report, _ = make(memory_limit="720MiB", micro_batch=8, recompute="layer")
    assert report.plan.saving == Saving("layer", "none")


@pytest.mark.parametrize("task", [None, *TASKS])
def test_task_counts_without_prepared_data(make: Callable[..., Any], task: str | None) -> None:
    """It decides how many tokens the last layer computes, and which options are allowed."""
    tags = task == "token-classification"
    make(task=task, **({"label_pieces": "all"} if tags else {}))
    labels = Labels(**Simulated.started[0]["labels"])
    assert labels.task == (task or "classification")
    assert labels.outputs == (1 if task == "regression" else 2)
    assert (output_tokens(step_config(Simulated.started[0])) == "positions") == tags


def test_tags_of_all_words_take_more_time_on_a_card(make: Callable[..., Any]) -> None:
    tags, classes = (
        make(card="gtx-1050-ti", task=task)[1]["examples_per_second"]
        for task in ("token-classification", "classification")
    )
    assert tags < classes


def test_plan_for_a_gpu_that_is_not_present(make: Callable[..., Any]) -> None:
    _, written = make(device_memory="1100MiB")
    assert written["memory_bytes"] == (1100 - 250 - 225) * MIB
    assert Simulated.started[0]["environment"] == {"CUDA_VISIBLE_DEVICES": ""}
    _, written = make(device_memory="4GiB")
    assert written["memory_bytes"] == (4096 - 250 - 500) * MIB
    with pytest.raises(BertAccumError, match="too little memory left after the CUDA context"):
        make(device_memory="500MiB")


def test_plan_for_a_card_has_calculated_speeds(make: Callable[..., Any]) -> None:
    report, written = make(card="rtx-3060")
    assert (written["card"], written["device"]) == ("RTX 3060", "RTX 3060, simulated on the CPU")
    assert written["memory_bytes"] == (12288 - 250 - 1536) * MIB
    assert written["precision"] == "mixed_bfloat16"
    # `Simulated` is fastest with micro-batches of eight, and the card with the largest one.
    assert written["micro_batch"] == 32
    time = CalculatedTime(CARDS["rtx-3060"], PRESET_CONFIGS["bert-small"], "mixed_bfloat16")
    request = MeasurementRequest([[(1, 128)] * 32], "none", accumulate=False)
    assert written["examples_per_second"] == pytest.approx(32 / time.update_seconds(request), 1e-3)
    assert written["compiled_examples_per_second"] > written["examples_per_second"]
    assert report.timed_on.startswith("full-length windows")
    # Each other way to save memory would be slower, so it is not measured.
    assert written["update_bytes"].keys() == {"none"}
    again, _ = make(card="rtx-3060")
    assert (again.cached, again.card) == (True, "RTX 3060")
    smaller, written = make(card="rtx-3060", device_memory="8GiB")
    assert (smaller.cached, smaller.card) == (False, "RTX 3060")
    assert written["memory_bytes"] == (8192 - 250 - 1536) * MIB


def test_plan_for_a_card_says_how_long_it_takes(make: Callable[..., Any]) -> None:
    for model, took in (("bert-small", "1 minute"), ("bert-large", "3 minutes")):
        options = PlanConfig(card="h200", model=model, max_seq_length=512)
        progress = Notes()
        plan_for_options(options, progress)
        assert progress.lines == [
            f"planning takes about {took} on two cores that nothing else uses"
        ]
        plan_for_options(options, progress)
        assert len(progress.lines) == 1  # The second plan comes from the cache.
    progress = Notes()
    plan_for_options(PlanConfig(memory_limit="4GiB"), progress)
    assert progress.lines == []


def test_plan_for_a_card_says_that_this_machine_has_too_little_memory(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = make(card="rtx-3060")
    monkeypatch.setattr(measured_plan, "available_bytes", lambda: 900 * MIB)
    options = PlanConfig(card="rtx-3060", fresh=True)
    for _ in range(2):
        progress = Notes()
        short = plan_for_options(options, progress)
        assert "this machine has less free memory than the card" in progress.lines[-1]
        assert not short.cached and short.plan.micro_batch < whole.plan.micro_batch
        options = dataclasses.replace(options, fresh=False)


def test_float16_of_a_card_is_measured_in_bfloat16(make: Callable[..., Any]) -> None:
    _, written = make(card="t4")
    assert written["precision"] == "mixed_float16"
    assert Simulated.started[0]["config"]["precision"] == "mixed_bfloat16"


def test_memory_alone_means_the_smallest_card_that_has_it(make: Callable[..., Any]) -> None:
    report, written = make(device_memory="5GiB")
    assert (report.card, written["precision"]) == ("GTX 1060 6 GB", "float32")
    assert written["memory_bytes"] == (5120 - 250 - 500) * MIB


@pytest.mark.parametrize(
    ("rates", "reason"),
    [
        # Micro-batches of a window of 6; the planner chose 2.
        ({1: 9.0, 2: 10.0}, "the fastest of the 2 candidates that fit: 10.0 examples/s"),
        (
            {2: 10.0, 3: 10.1},
            "it needs the least memory of those that fit and are about as fast: 10.0 examples/s",
        ),
        (
            {2: 10.0, 6: 9.0},
            "the whole update fits, but smaller micro-batches are faster: 10.0 examples/s instead"
            " of 9.0",
        ),
        (
            {2: 10.0, 6: 10.1},
            "the whole update fits, but smaller micro-batches need less memory: 10.0 examples/s"
            " instead of 10.1",
        ),
    ],
)
def test_reason_never_calls_a_slower_candidate_the_fastest(
    rates: dict[int, float], reason: str
) -> None:
    found = [
        Candidate(make_plan(6, size), 0.0, None, rates.get(size), fits=size in rates)
        for size in (1, 2, 3, 6)
    ]
    assert reason_for(found[1], found, shared=False) == reason


def test_no_micro_batch_is_smaller_than_one_example() -> None:
    for size, end in ((1, "needed"), (6, "needed; smaller micro-batches were not timed")):
        only = Candidate(make_plan(size, size), 0.0, None, None, fits=True)
        assert reason_for(only, [only], shared=False).endswith(f"is {end}")


def test_moments_are_offloaded_from_a_gpu_that_is_not_present(make: Callable[..., Any]) -> None:
    _, plain = make(device_memory="900MiB", offload="none")
    _, offloaded = make(device_memory="900MiB", offload="moments")
    assert plain["micro_batch"] is None
    assert offloaded["micro_batch"] is not None
    assert offloaded["offload"] == "moments"
    chosen = make(device_memory="900MiB")[1]
    assert chosen["offload"] != "none"
    # No plan trains adapters, but the reason names them.
    adapters = "`adapt` lora should fit without offloading (about "
    assert adapters in chosen["why"] and adapters not in plain["why"]
    adapted = make(device_memory="900MiB", adapt="lora")[1]
    assert adapted["offload"] != "none" and "adapt" not in adapted["why"]
    assert offloaded["static_bytes"] == plain["static_bytes"] | {"slots": 0}
    assert offloaded["memory_bytes"] == plain["memory_bytes"]
    assert offloaded["peak_memory_bytes"] <= offloaded["memory_bytes"]
    proving = Simulated.started[-3]
    assert proving["config"]["offload"] == "moments"
    assert proving["limit_bytes"] == pytest.approx(0.98 * offloaded["memory_bytes"], abs=MIB)


def test_what_cannot_fit_is_not_built(make: Callable[..., Any]) -> None:
    make(memory_limit="460MiB")
    # BERT-Small's weights, moments and accumulators take 440 MiB, so building is tried.
    assert Simulated.started[0]["config"]["offload"] == "none"
    Simulated.started.clear()
    make(memory_limit="400MiB")
    assert Simulated.started[0]["config"]["offload"] == "moments"


def test_size_that_ran_out_of_memory_is_not_planned_again(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    read = planner.find_fastest_plan
    monkeypatch.setattr(
        planner, "find_fastest_plan", lambda s, *rest: seen.append(s) or read(s, *rest)
    )
    assert make(memory_limit="4GiB")[0].plan.micro_batch == 8
    remember_out_of_memory(seen[0], 8, Saving())
    remember_out_of_memory(seen[0], 16, Saving())
    report, written = make(memory_limit="4GiB")
    assert report.cached
    assert report.plan.micro_batch < 8
    assert written["learned_limits"] == {"none": 8}
    assert "ran out of memory before; plan with `fresh` to retry them" in written["why"]
    # A resumed run names the precision that `auto` chose.
    resumed = dataclasses.replace(seen[0].config, precision="float32")
    assert learned_limits(dataclasses.replace(seen[0], config=resumed)) == {"none": 8}
    # The limit also holds for another target batch, but not with more memory.
    assert make(memory_limit="4GiB", target_batch=64)[0].plan.micro_batch < 8
    assert make(memory_limit="5GiB")[0].plan.micro_batch == 8
    # It is that of each device, and of all texts.
    texts = Unlabelled(tmp_path / "more.txt", "a", "b")
    inputs = dataclasses.replace(seen[0].inputs, unlabelled=texts)
    several = dataclasses.replace(seen[0], inputs=inputs, devices=2, shared=True)
    assert several.digest() != seen[0].digest() and learned_limits(several) == {"none": 8}
    remember_out_of_memory(several, 4, Saving())
    assert learned_limits(seen[0]) == {"none": 4}
    assert make(memory_limit="4GiB", fresh=True)[0].plan.micro_batch == 8
    assert learned_limits(several) == {}


def test_sizes_of_pretraining_are_retried_without_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`plan` cannot plan such a run."""
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measured_plan, "MeasurementProcess", Simulated)
    config = PretrainConfig(text="t.txt", memory_limit="4GiB", target_batch=32)
    source = ModelSource("small", EncoderConfig(), None, None)
    labels, corpus = Labels([], [], task=MASKED_LM), Corpus((tmp_path / "t.txt",))
    request = PlanRequest(config, RunInputs(source, labels, [], [], ["a"], None, corpus))
    remember_out_of_memory(request, 8, Saving())
    (path,) = (tmp_path / "cache/plans").iterdir()
    found = planner.find_fastest_plan(request, silent)
    assert found.why is not None and f" before; delete {path} to retry them" in found.why
    path.unlink()
    assert planner.find_fastest_plan(request, silent).plan.micro_batch == 8


def test_plan_that_avoids_a_size_has_costs_of_its_own(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that offloads is replaced by one that offloads more."""
    seen = []
    read = planner.find_fastest_plan
    monkeypatch.setattr(
        planner, "find_fastest_plan", lambda s, *rest: seen.append(s) or read(s, *rest)
    )
    first, _ = make(memory_limit="530MiB")
    assert first.plan.offload == "moments"
    for kind in ("none", "layer"):
        remember_out_of_memory(seen[-1], 1, first.plan.saving._replace(recompute=kind))
    again, written = make(memory_limit="530MiB")
    assert again.plan.offload != first.plan.offload
    moved = LADDER[again.plan.offload].moved
    assert [part for part, size in written["static_bytes"].items() if not size] == [*moved]
    state = state_bytes(PRESET_CONFIGS["bert-small"].trained_parameters(None, freeze=False))
    assert written["host_bytes"] == sum(state[part] for part in moved)
    assert written.keys().isdisjoint({"compiled_examples_per_second"})


def test_process_is_replaced_if_less_is_offloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process, tensors move only to the host, and a device with them needs less memory."""
    asked: list[str] = []

    class Recording(MeasurementProcess):
        def start(self) -> None:
            asked.append("start")

        def end(self) -> None:
            pass

        @property
        def has_ended(self) -> bool:
            return False

        def ask(self, request: dict[str, Any]) -> dict[str, Any]:
            if "config" in request:
                asked.append(f"build {request['config']['offload']}")
                return {}
            asked.append(request["offload"])
            return {"seconds": 1.0, "peak_bytes": 1.0, "resting_bytes": 1.0}

    process = Recording(silent, {})
    process.build(job(config={"offload": "moments"}))
    for offload in ("moments", "all", "none", "moments"):
        process.run(MeasurementRequest([[(1, 64)]], "none", offload))
    runs = ["moments", "all", "start", "build none", "none", "moments"]
    assert asked == ["start", "build moments", *runs]


def test_damaged_cache_file_is_measured_again(make: Callable[..., Any], tmp_path: Path) -> None:
    make(memory_limit="4GiB")
    (path,) = (tmp_path / "cache" / "plans").iterdir()
    path.write_text("{")
    report, _ = make(memory_limit="4GiB")
    assert not report.cached


def test_changed_plan_in_the_cache_is_measured_again(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    whole, _ = make(memory_limit="4GiB")
    (path,) = (tmp_path / "cache" / "plans").iterdir()
    text = path.read_text()
    assert '"micro_batch": 8' in text
    path.write_text(text.replace('"micro_batch": 8', '"micro_batch": 7'))
    progress = Notes()
    found = plan_for_options(PlanConfig(memory_limit="4GiB"), progress)
    assert (found.cached, found.plan) == (False, whole.plan)
    assert progress.lines == [f"{path} does not match its recorded digest, so it is not used"]
    path.write_text('{"plan": {}}')
    assert not plan_for_options(PlanConfig(memory_limit="4GiB"), progress).cached
    assert progress.lines[1:] == [f"{path} has no recorded digest, so it is not used"]
    path.unlink()
    make(memory_limit="4GiB", target_batch=8)
    (other,) = (tmp_path / "cache" / "plans").iterdir()
    other.rename(path)
    assert make(memory_limit="4GiB")[0].plan == whole.plan


def test_changed_limits_in_the_cache_are_forgotten(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    read = planner.find_fastest_plan
    monkeypatch.setattr(
        planner, "find_fastest_plan", lambda s, *rest: seen.append(s) or read(s, *rest)
    )
    make(memory_limit="4GiB")
    remember_out_of_memory(seen[0], 8, Saving())
    (path,) = (tmp_path / "cache" / "plans").glob("*.learned.json")
    path.write_text(path.read_text().replace('"none": 8', '"none": 1'))
    progress = Notes()
    assert plan_for_options(PlanConfig(memory_limit="4GiB"), progress).plan.micro_batch == 8
    assert progress.lines == [f"{path} does not match its recorded digest, so it is not used"]


def test_failed_fresh_plan_keeps_the_cached_one(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    make(memory_limit="4GiB")
    with monkeypatch.context() as patch:
        patch.setattr(planner, "measure_plan", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make(memory_limit="4GiB", fresh=True)
    assert make(memory_limit="4GiB")[0].cached


def job(**changes: Any) -> dict[str, Any]:
    config = {"target_batch": 8, "max_seq_length": 64, "dropout": 0.0} | changes.pop("config", {})
    encoder = {
        "hidden_size": 64,
        "num_hidden_layers": changes.pop("layers", 2),
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 100,
    }
    values = {
        "config": config,
        "encoder": encoder,
        "labels": dataclasses.asdict(Labels.numbered(2)),
        "vocabulary": None,
        "tsvs": [],
        "limit_bytes": 300 * MIB,
        "accumulation_steps": 2,
        "devices": 1,
    }
    return values | changes


@pytest.mark.slow
def test_text_costs_the_memory_of_all_its_windows() -> None:
    with MeasurementProcess(silent, {}) as worker:
        built = worker.build(job(config={"windows": 4}))
        assert built["largest"] == [4, 64] and built["windows"] == [[[4, 64]] * 8]
        shapes = ([(4, 64)] * 16, [(1, 64)] * 64, [(1, 64)] * 16)
        several, single, few = (
            worker.run(MeasurementRequest([micro_batch], "none")).peak_bytes
            for micro_batch in shapes
        )
        assert several == pytest.approx(single, rel=0.1) and several > 2 * few


@pytest.mark.slow
def test_killed_measurement_process_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / ".bertaccum-state-0123456789ab").mkdir()  # By a process that was killed earlier.
    with MeasurementProcess(silent, {}) as worker:
        built = worker.build(job(layers=1))
        assert built["largest"] == [1, 64] and built["windows"] == [[[1, 64]] * 8]
        parts = built["static_bytes"]
        assert parts["slots"] >= 2 * parts["parameters"] > 2 * parts["embeddings"] > 0
        assert parts["accumulators"] == parts["parameters"]
        one = (1, 64)
        small, large = (worker.run(MeasurementRequest([[one] * n], "none")) for n in (2, 16))
        assert large.peak_bytes > small.peak_bytes > small.resting_bytes
        assert (
            worker.run(MeasurementRequest([[one] * 20000], "none")) is None
        )  # The process survives this.
        assert (
            worker.run(MeasurementRequest([[one] * 2, [(1, 8)]], "layer", thorough=True))
            is not None
        )
        os.kill(worker._process.pid, signal.SIGKILL)
        assert worker.run(MeasurementRequest([[one] * 2], "none")) is None
        assert worker.run(MeasurementRequest([[one] * 2], "none")).seconds > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_or_quota_is_not_lack_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(*_: object) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, f"state; {os.strerror(code)}")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(step_measurement, "write_state", full)
    message = rf"cannot be written \({os.strerror(code)}\); free space there"
    with pytest.raises(RunError, match=message):
        step_measurement.write_scratch_state(None, None)  # type: ignore[arg-type]


@pytest.mark.usefixtures("data_prep_of_the_user")
def test_notes_and_the_error_of_the_measurement_process_reach_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    train, dev = (tmp_path / f"{name}.tsv" for name in ("train", "dev"))
    train.write_text("label\ttext\n0\tgood\n1\tbad\n")
    dev.write_text("label\ttext\n0\tgood\n7\tbad\n")
    vocabulary = Vocabulary([*SPECIAL_TOKENS, "good", "bad"])
    entries = dataclasses.asdict(vocabulary)
    here = job(tsvs=[str(train)], vocabulary=entries, limit_bytes=None)
    assert step_measurement.MeasuredModel(here, silent).largest == (1, 3)
    (store,) = (tmp_path / "cache" / "tokens").iterdir()
    flip_a_bit(store / "token_ids.int32")
    progress = Notes()
    with MeasurementProcess(progress, {}) as worker, pytest.raises(BertAccumError) as error:
        worker.build(job(tsvs=[str(train), str(dev)], vocabulary=entries))
    assert progress.lines == [f"{store} does not match its recorded digest, so it is not used"]
    assert "row 3: label '7' is unknown" in str(error.value)
    assert error.value.exit_code == 2


def test_unexpected_error_of_the_measurement_process_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A job without its configuration cannot be built."""
    monkeypatch.delenv("BERTACCUM_TRACEBACK", raising=False)
    with MeasurementProcess(silent, {}) as worker, pytest.raises(BertAccumError) as error:
        worker.build({"config": {}})
    assert str(error.value).startswith("unexpected KeyError: ") and error.value.exit_code == 1
    assert "Traceback" not in capfd.readouterr().err


def test_stderr_of_a_failed_measurement_process_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "python"
    program.write_text(
        "#!/bin/sh\nread job\necho a warning >&2\necho a failed check >&2\nexit 134\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with (
        MeasurementProcess(silent, {}) as worker,
        pytest.raises(RunError, match=r"failed \(a failed check\)"),
    ):
        worker.build(job())
    assert capsys.readouterr().err == "a warning\na failed check\n"


@pytest.mark.slow
@pytest.mark.parametrize("offload", ["auto", "all"])
def test_real_steps_take_the_predicted_memory(
    offload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BERT-Tiny in 150 MiB: the plan is verified, and its prediction is about right."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    config = PlanConfig(
        model="bert-tiny",
        init_checkpoint="none",
        memory_limit="150MiB",
        target_batch=64,
        offload=offload,
    )
    values = plan_for_options(config, silent).values
    taken = next(
        c
        for c in values["candidates"]
        if all(c[key] == values[key] for key in ("micro_batch", "recompute", "offload"))
    )
    assert values["peak_memory_bytes"] <= 150 * MIB
    assert 1 < values["micro_batch"] < 64
    for row in values["candidates"]:
        if row["measured_peak_bytes"]:
            # Gradients are copied to the host in parallel: the load of the machine decides how many
            # of them wait in device memory at the same time. docs/explanation/memory.md has the
            # errors of predictions with offloading.
            error = 0.1 if row["offload"] == "all" else 0.03
            ratio = row["measured_peak_bytes"] / row["predicted_peak_bytes"]
            assert 1 - error < ratio < 1 + error, row
    assert taken["fits"] and taken["examples_per_second"] > 0
    larger = [c for c in values["candidates"] if not c["fits"]]
    assert larger
    # The cached plan needs no measurement process.
    monkeypatch.setattr(measured_plan, "MeasurementProcess", None)
    assert plan_for_options(
        dataclasses.replace(config, out=str(tmp_path / "again.json")), silent
    ).cached
