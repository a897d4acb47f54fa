"""Records of run folders: finished, running, stopped and damaged."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path

import pytest
from waiting import in_a_minute
from writing import write_run

from bertaccum.cli.program import main
from bertaccum.errors import InputError
from bertaccum.reporting.run_summaries import outline
from bertaccum.runs.record import find_runs, read_record

LINE = '{"kind": "updated", "update": %d, "loss": 0.4}'


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
    assert find_runs(tmp_path) == [tmp_path / "r"]


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


def test_lock_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", [0.7], finished=False)
    (run / ".lock").unlink(missing_ok=True)
    os.mkfifo(run / ".lock")
    with in_a_minute():
        assert read_record(run).status == "stopped"


@pytest.mark.parametrize(
    "torn", ['{"kind": "updated", "update": 3, "lo', LINE % 3, "[]\n", '{"update": 3}\n', "\x00"]
)
def test_log_is_read_up_to_a_damaged_line(tmp_path: Path, torn: str) -> None:
    run = write_run(tmp_path / "r", [0.7, 0.6], finished=False)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(torn)
    assert [line["update"] for line in read_record(run).updates] == [1, 2]


def test_windows_out_of_memory_are_events_and_not_updates(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", [0.7])
    line = {"kind": "out_of_memory", "update": 2, "out_of_memory": 8, "micro_batch": 4}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    record = read_record(run)
    assert (len(record.updates), record.out_of_memory) == (1, [line])


@pytest.mark.parametrize(
    "text",
    [
        'data: "\\UFFFFFFFF"',
        "data: !!bool x",
        "data: !!timestamp x",
        "data:\n",
        "",
        "target_batch: 0\n",
        "target_bach: 8\n",
        "- 1\n",
        "seed: [\n",
        "[" * 1000,
        "\xff",
        "1: 2",
        "seed: &a [1]\nepochs: &b [*a, *a]\ndata: [*b, *b]",
        "# \n" * 100_000,
    ],
)
def test_error_names_damaged_configuration(tmp_path: Path, text: str) -> None:
    run = write_run(tmp_path / "r", [0.7])
    (run / "config.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"r/config\.yaml"):
        read_record(run)


@pytest.mark.parametrize(
    ("name", "text"), [("summary.json", '{"updates": 1}'), ("metrics.jsonl", LINE % 1 + "\n")]
)
def test_outline_names_a_run_with_damaged_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    run = write_run(tmp_path / "r", [0.7], finished=name == "summary.json")
    (run / name).write_text(text)
    write_run(tmp_path / os.fsdecode(b"oth\xe9r"), [0.5])  # not UTF-8
    with pytest.raises(InputError, match="/r: the files of this run are damaged"):
        outline(read_record(run))
    with pytest.raises(SystemExit):
        main(["runs", str(tmp_path)])
    said = capsys.readouterr()
    assert "oth\\udce9r" in said.out
    assert "not listed:" in said.err


def test_run_whose_configuration_stands_for_a_billion_numbers_is_not_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"k{n}: &k{n} [{', '.join([f'*k{n - 1}'] * 9)}]" for n in range(1, 10)]
    bad = write_run(tmp_path / "bad", [0.7])
    (bad / "config.yaml").write_text("\n".join(["data: &k0 [1]", *lines]))
    write_run(tmp_path / "good", [0.5])
    with pytest.raises(SystemExit):
        main(["runs", str(tmp_path)])
    said = capsys.readouterr()
    assert "good" in said.out and "bad" not in said.out
    (line,) = said.err.splitlines()
    assert line.startswith("not listed:") and "the alias *k0 stands for a list" in line


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metrics.jsonl", '{"kind": "updated", "update": 1, "loss": 1, "seconds": 1e999}'),
        ("metrics.jsonl", '{"kind": "updated", "update": 1, "loss": 1, "seconds": NaN}'),
        ("metrics.jsonl", '{"kind": "updated", "update": 1, "loss": 1, "seconds": 1e300}'),
        ("metrics.jsonl", f'{{"kind": "updated", "update": 1{"0" * 400}, "seconds": 1}}'),
        ("eval.jsonl", '{"kind": "evaluated", "update": 1, "best": true, "accuracy": "x"}'),
        ("eval.jsonl", '{"kind": "evaluated", "update": 1, "best": true, "accuracy": [1]}'),
        ("plan.json", '{"micro_batch": {"a": 1}}'),
        ("plan.json", '{"updates": "x"}'),
    ],
)
def test_run_with_numbers_of_another_type_is_not_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    bad = write_run(tmp_path / "bad", [0.7], finished=False)
    (bad / name).write_text(text + "\n")
    write_run(tmp_path / "good", [0.5])
    for command, where in (("runs", tmp_path), ("show", bad)):
        with pytest.raises(SystemExit) as end:
            main([command, str(where)])
        said = capsys.readouterr()
        (line,) = said.err.splitlines()
        assert "bad: the files of this run are damaged" in line
        assert (end.value.code or 0, "good" in said.out) == ((0, True), (2, False))[where == bad]


def test_log_with_an_endless_line_ends_before_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", [0.7])
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "updated", "update": 2, "note": "a" * 2**22}) + "\n")
    assert [line["update"] for line in read_record(run).updates] == [1]


def test_run_that_may_not_be_read_is_not_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may read everything, so the error is simulated."""
    theirs, true = write_run(tmp_path / "theirs", [0.7]), Path.stat
    write_run(tmp_path / "mine", [0.5])

    def stat(path: Path, **options: bool) -> os.stat_result:
        if theirs in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return true(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(SystemExit) as end:
        main(["runs", str(tmp_path)])
    said = capsys.readouterr()
    assert not end.value.code and "mine" in said.out and "theirs" not in said.out
    (line,) = said.err.splitlines()
    assert line.startswith(f"not listed: {theirs}/") and "Permission denied" in line


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
        find_runs(tmp_path / "absent")
