"""Records of run folders: finished, running, stopped and damaged."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest
from writing import write_run

from bertaccum.errors import InputError
from bertaccum.reporting.run_record import find_records, read_record


def test_record_of_a_finished_run(tmp_path: Path) -> None:
    record = read_record(write_run(tmp_path / "r", [0.7, 0.6], accuracies={1: 0.9, 2: 0.8}))
    assert record.name == "r"
    assert record.status == "finished"
    assert record.config.target_batch == 4
    assert [line["loss"] for line in record.updates] == [0.7, 0.6]
    assert record.best is not None
    assert record.best["update"] == 1
    assert record.seconds == 12.5
    assert record.plan["micro_batch"] == 2


def test_link_to_a_run_has_the_name_of_the_run(tmp_path: Path) -> None:
    write_run(tmp_path / "r", [0.7])
    (tmp_path / "latest").symlink_to("r")
    assert read_record(tmp_path / "latest").name == "r"
    assert [r.name for r in find_records(tmp_path) if not isinstance(r, InputError)] == ["r"]


def test_run_is_running_only_while_its_lock_is_held(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", [0.7, 0.6, 0.5], finished=False)
    assert read_record(run).status == "stopped"
    with (run / ".lock").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        record = read_record(run)
        assert record.status == "running"
        assert record.seconds == 1.5
        # Reading the record does not release the lock.
        with (run / ".lock").open("rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert read_record(run).status == "stopped"
    assert read_record(run).best is None


@pytest.mark.parametrize(
    "torn", ['{"update": 3, "lo', '{"update": 3, "loss": 0.4}', "[]\n", "\x00"]
)
def test_log_is_read_up_to_a_damaged_line(tmp_path: Path, torn: str) -> None:
    run = write_run(tmp_path / "r", [0.7, 0.6], finished=False)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(torn)
    assert [line["update"] for line in read_record(run).updates] == [1, 2]


def test_windows_out_of_memory_are_events_and_not_updates(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", [0.7])
    line = {"update": 2, "out_of_memory": 8, "micro_batch": 4, "recompute": "none"}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    record = read_record(run)
    assert (len(record.updates), record.events) == (1, [line])


@pytest.mark.parametrize(
    "text",
    ["", "target_batch: 0\n", "target_bach: 8\n", "- 1\n", "seed: [\n", "[" * 1000, "\xff", "1: 2"],
)
def test_error_names_damaged_configuration(tmp_path: Path, text: str) -> None:
    run = write_run(tmp_path / "r", [0.7])
    (run / "config.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"r/config\.yaml"):
        read_record(run)
    # A list of runs contains this error instead of the run, and the other runs.
    write_run(tmp_path / "other", [0.5])
    found = list(find_records(tmp_path))
    assert sorted(type(one).__name__ for one in found) == ["InputError", "Record"]


def test_damaged_plan_and_summary_are_ignored(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", [0.7])
    for name in ("plan.json", "summary.json"):
        (run / name).write_text('{"half": ')
    record = read_record(run)
    assert (record.plan, record.summary, record.status) == ({}, None, "stopped")


def test_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no run here"):
        read_record(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        list(find_records(tmp_path / "absent"))
