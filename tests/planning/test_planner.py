"""Planning: with simulated training steps, and at the end with real ones."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulated import Simulated

from bertaccum.bert.vocabulary import SPECIAL_TOKENS
from bertaccum.config import PlanConfig
from bertaccum.errors import BertAccumError, RunError
from bertaccum.planning import plan_for_options as plans
from bertaccum.planning import rehearsal
from bertaccum.planning.batch_plan import PlanResult
from bertaccum.planning.learned_limits import remember_out_of_memory
from bertaccum.planning.measurement import MeasurementRequest
from bertaccum.planning.measurement_process import MeasurementProcess
from bertaccum.planning.plan_for_options import plan_for_options
from bertaccum.progress import silent

MIB = 2**20


@pytest.fixture
def make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[PlanResult, dict[str, Any]]]:
    """Plans with simulated workers; the report and what was written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rehearsal, "MeasurementProcess", Simulated)
    Simulated.started = []

    def call(**options: Any) -> tuple[PlanResult, dict[str, Any]]:
        report = plan_for_options(PlanConfig(**options), silent)
        return report, json.loads((tmp_path / "plan.json").read_text())

    return call


def test_the_fastest_that_fits_is_taken_and_written(make: Callable[..., Any]) -> None:
    report, written = make(memory_limit="4GiB")
    assert report.values == written
    reason = "there is no prepared data in data/yelp_polarity yet"
    assert report.timed_on == f"windows of full length: {reason}"
    assert (report.plan.micro_batch, report.plan.accumulation_steps) == (8, 4)
    assert written["why"].startswith("no accumulation is needed, the whole window fits; but cut")
    rows = {(c["micro_batch"], c["recompute"]): c for c in written["candidates"]}
    assert rows[4, "none"]["predicted_peak_bytes"] == pytest.approx(598 * MIB, rel=1e-3)
    assert rows[32, "none"]["predicted_peak_bytes"] == pytest.approx(1524 * MIB, rel=1e-3)
    assert all(row["fits"] for row in rows.values())
    # The second process has no more than the limit, less half of the margin.
    assert [job["limit_bytes"] / MIB for job in Simulated.started][1] == int(4096 * 0.98)

    small, written = make(memory_limit="720MiB")
    assert small.plan.micro_batch == 6
    assert written["why"].startswith("the fastest of the")
    assert written["peak_memory_bytes"] <= 720 * MIB * 0.98


def test_a_whole_window_needs_no_accumulation(make: Callable[..., Any]) -> None:
    report, written = make(memory_limit="4GiB", target_batch=8)
    assert report.plan.accumulation_steps == 1
    assert written["why"] == "the whole window fits: no accumulation is needed"
    assert Simulated.started[1]["accumulation_steps"] == 1


def test_what_is_measured_once_is_not_measured_again(make: Callable[..., Any]) -> None:
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
        {"offload_optimizer": True},
        {"fresh": True},
    ]
    for other in others:
        report, _ = make(**({"memory_limit": "2GiB"} | other))
        assert not report.cached, other


def test_nothing_fits_and_what_would(make: Callable[..., Any]) -> None:
    report, written = make(memory_limit="510MiB", recompute="none")
    assert written["micro_batch"] is None
    with pytest.raises(RunError) as error:
        report.taken()
    assert error.value.exit_code == 1
    message = str(error.value)
    assert message.startswith("nothing fits: one example of 128 tokens takes at least 500 MiB;")
    assert "there are 490 MiB, without the margin" in message
    assert "`accumulator_dtype` bfloat16 (about 445 MiB)" in message
    assert "`model` bert-mini" in message
    # MemoryPoint to be proposed, though it was not allowed.
    assert set(written["example_bytes"]) == {"none", "layer"}


def test_a_card_that_is_not_here(make: Callable[..., Any]) -> None:
    _, written = make(device_memory="1100MiB")
    assert written["memory_bytes"] == (1100 - 250 - 225) * MIB
    assert Simulated.started[0]["environment"] == {"CUDA_VISIBLE_DEVICES": ""}
    _, written = make(device_memory="4GiB")
    assert written["memory_bytes"] == (4096 - 250 - 500) * MIB
    with pytest.raises(BertAccumError, match="no memory left after the CUDA context"):
        make(device_memory="500MiB")


def test_on_a_card_that_is_not_here_moments_are_in_the_hosts_memory(
    make: Callable[..., Any],
) -> None:
    _, plain = make(device_memory="900MiB")
    _, offloaded = make(device_memory="900MiB", offload_optimizer=True)
    assert plain["micro_batch"] is None
    assert offloaded["micro_batch"] is not None
    assert offloaded["static_bytes"]["slots"] == 0
    assert offloaded["memory_bytes"] == plain["memory_bytes"]
    assert offloaded["peak_memory_bytes"] <= offloaded["memory_bytes"]
    # What stands in for the card has room for the moments, and they are not moved there.
    proving = Simulated.started[-1]
    assert not proving["config"]["offload_optimizer"]
    limit = offloaded["memory_bytes"] + 220 * MIB
    assert proving["limit_bytes"] == pytest.approx(0.98 * limit, abs=MIB)


def test_what_ran_out_of_memory_is_not_planned_again(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    read = plans.make_report
    monkeypatch.setattr(plans, "make_report", lambda s, *rest: seen.append(s) or read(s, *rest))
    assert make(memory_limit="4GiB")[0].plan.micro_batch == 8
    remember_out_of_memory(seen[0], 8, "none")
    remember_out_of_memory(seen[0], 16, "none")
    report, written = make(memory_limit="4GiB")
    assert report.cached
    assert report.plan.micro_batch < 8
    assert written["learned_limits"] == {"none": 8}
    assert "ran out of memory before; planning with `fresh` forgets that" in written["why"]
    # Also for another target batch, but not with more memory.
    assert make(memory_limit="4GiB", target_batch=64)[0].plan.micro_batch < 8
    assert make(memory_limit="5GiB")[0].plan.micro_batch == 8
    assert make(memory_limit="4GiB", fresh=True)[0].plan.micro_batch == 8


def test_a_damaged_plan_in_the_cache_is_measured_again(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    make(memory_limit="4GiB")
    (path,) = (tmp_path / "cache" / "plans").iterdir()
    path.write_text("{")
    report, _ = make(memory_limit="4GiB")
    assert not report.cached


def job(**changes: Any) -> dict[str, Any]:
    config = {"target_batch": 8, "max_seq_length": 64, "dropout": 0.0} | changes.pop("config", {})
    encoder = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 100,
    }
    values = {
        "config": config,
        "encoder": encoder,
        "classes": 2,
        "labels": ["0", "1"],
        "vocabulary": [],
        "tsvs": [],
        "limit_bytes": 300 * MIB,
        "accumulation_steps": 2,
        "devices": 1,
    }
    return values | changes


@pytest.mark.slow
def test_a_worker_that_is_killed_starts_again() -> None:
    with MeasurementProcess(silent, {}) as worker:
        built = worker.build(job())
        assert built["longest"] == 64 and built["windows"] == [[64] * 8]
        parts = built["static_bytes"]
        assert parts["slots"] >= 2 * parts["parameters"] > 2 * parts["embeddings"] > 0
        assert parts["accumulators"] == parts["parameters"]
        small, large = (worker.run(MeasurementRequest([[64] * n], "none")) for n in (2, 16))
        assert large.peak_bytes > small.peak_bytes > built["resting_bytes"]
        assert (
            worker.run(MeasurementRequest([[64] * 20000], "none")) is None
        )  # It does not fit, and goes on.
        assert worker.run(MeasurementRequest([[64] * 2, [8]], "layer", thorough=True)) is not None
        os.kill(worker._process.pid, signal.SIGKILL)
        assert worker.run(MeasurementRequest([[64] * 2], "none")) is None
        assert worker.run(MeasurementRequest([[64] * 2], "none")).seconds > 0


def test_a_workers_error_is_ours(tmp_path: Path) -> None:
    train = tmp_path / "train.tsv"
    train.write_text("label\ttext\n0\tgood\n7\tbad\n")
    words = [*SPECIAL_TOKENS, "good", "bad"]
    with MeasurementProcess(silent, {}) as worker, pytest.raises(BertAccumError) as error:
        worker.build(job(tsvs=[str(train)], vocabulary=words))
    assert "row 3: label '7' is unknown" in str(error.value)
    assert error.value.exit_code == 2


def test_what_a_failed_worker_wrote_is_shown_whole(
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
def test_real_steps_take_what_was_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bert-tiny in 150 MiB: a plan that is proven, whose prediction is right within 3 %."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    config = PlanConfig(
        model="bert-tiny",
        init_checkpoint="none",
        memory_limit="150MiB",
        target_batch=48,
    )
    values = plan_for_options(config, silent).values
    taken = next(
        c
        for c in values["candidates"]
        if (c["micro_batch"], c["recompute"]) == (values["micro_batch"], values["recompute"])
    )
    assert values["peak_memory_bytes"] <= 150 * MIB
    assert 1 < values["micro_batch"] < 48
    for row in values["candidates"]:
        if row["measured_peak_bytes"]:
            predicted = row["predicted_peak_bytes"]
            assert predicted == pytest.approx(row["measured_peak_bytes"], rel=0.03), row
    assert taken["fits"] and taken["examples_per_second"] > 0
    larger = [c for c in values["candidates"] if not c["fits"]]
    assert larger
    # The next time no process is needed.
    monkeypatch.setattr(rehearsal, "MeasurementProcess", None)
    assert plan_for_options(
        dataclasses.replace(config, out=str(tmp_path / "again.json")), silent
    ).cached
