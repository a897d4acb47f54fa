"""Files of unlabeled texts, and options that need a teacher."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from teaching import Here, make_student
from test_task_updates import CASES

from bertaccum import api
from bertaccum.data.given_texts import read_unlabelled
from bertaccum.data.token_store import JoinedTokens
from bertaccum.errors import BertAccumError, ConfigError, InputError
from bertaccum.options.commands import TrainConfig
from bertaccum.options.pretraining import PretrainConfig
from bertaccum.planning.measurement import PlanRequest
from bertaccum.runs.record import read_run_config
from bertaccum.system.progress import silent
from bertaccum.training import teacher_logits
from bertaccum.training.inputs import check_task_options, run_inputs
from bertaccum.training.step_measurement import MeasuredModel

SINGLE, PAIR, TAGS = (CASES[name].labels for name in ("single", "pair", "tags"))
# The texts in a file, by the file's name and contents.
FORMS: list[tuple[Any, str, str, list[list[str]]]] = [
    (SINGLE, "a.txt", "good food\n\n  \nbad food\n", [["good food", "bad food"]]),
    (SINGLE, "a.csv", 'text,stars\n"good, food",5\nbad,1\n', [["good, food", "bad"]]),
    (SINGLE, "a.tsv", "label\ttext\n1\tgood\n", [["good"]]),
    (SINGLE, "a.jsonl", '{"text": "good"}\n{"text": "bad"}\n', [["good", "bad"]]),
    (PAIR, "a.csv", "text,text_pair\ngood,food\nbad,\n", [["good", "bad"], ["food", ""]]),
    (PAIR, "a.txt", "good\tfood\n", [["good"], ["food"]]),
    (TAGS, "a.txt", "good food, bad!\n", [["good food , bad !"]]),
]
WRONG = {
    "empty": (SINGLE, "text\n\n", "has no texts; add some, or omit `unlabelled`"),
    "single": (PAIR, "text\ngood\n", "is single, but the model takes pairs; name the columns"),
    "pairs": (SINGLE, "text,text_pair\na,b\n", "has a second text, .*; rename the second column"),
    "columns": (SINGLE, "words,marks\na,b\n", "'text' does not occur"),
}


@pytest.mark.parametrize(("labels", "name", "contents", "expected"), FORMS)
def test_file_is_read_as_predict_reads_it(
    tmp_path: Path, labels: Any, name: str, contents: str, expected: list[list[str]]
) -> None:
    (tmp_path / name).write_text(contents)
    assert read_unlabelled(tmp_path / name, labels, silent) == expected


@pytest.mark.parametrize("name", WRONG)
def test_file_that_does_not_suit_the_data_is_an_error(tmp_path: Path, name: str) -> None:
    labels, contents, message = WRONG[name]
    (tmp_path / "a.csv").write_text(contents)
    with pytest.raises(BertAccumError, match=rf"a\.csv.*{message}") as error:
        read_unlabelled(tmp_path / "a.csv", labels, silent)
    assert error.value.exit_code == 2


def test_tokens_of_two_stores_are_read_without_a_copy() -> None:
    parts = [np.arange(5), np.arange(5, 9)]
    joined, whole = JoinedTokens(parts), np.arange(9)
    for start, end in ((0, 2), (2, 5), (5, 7), (7, 9), (0, 0)):
        np.testing.assert_array_equal(joined[start:end], whole[start:end])
    assert joined[5:7].base is parts[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 2.0}, "`temperature` 2.0 has no effect without `teacher`"),
        ({"teacher_weight": 0.5}, "`teacher_weight` 0.5 has no effect without `teacher`"),
        ({"unlabelled": "a.txt"}, "`unlabelled` a.txt has no effect without `teacher`"),
        ({"teacher": "t", "temperature": 0.0}, "`temperature` 0.0 is not above 0"),
        ({"teacher": "t", "teacher_weight": 0.0}, "`teacher_weight` 0.0 ignores the teacher"),
        ({"teacher": "t", "teacher_weight": 1.5}, "`teacher_weight` 1.5 is above 1"),
        ({"teacher": "t", "temperature": 2, "task": "regression"}, "`temperature` 2 does not app"),
        (
            {"teacher": "t", "label_pieces": "all", "task": "token-classification"},
            "`label_pieces` all and `teacher` contradict",
        ),
    ],
)
def test_options_that_mean_nothing_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**options)


def test_pretraining_has_no_teacher() -> None:
    with pytest.raises(ConfigError, match="`teacher` t has no effect on pretraining"):
        PretrainConfig(text="a.txt", teacher="t")


@pytest.fixture
def student(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the options of a student with unlabeled texts, in the current folder."""
    monkeypatch.setattr(teacher_logits, "ChildProcess", Here)
    monkeypatch.setattr(Here, "jobs", 0)
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    options = make_student(tmp_path, "single", noise_scale="none")
    return options | {"unlabelled": "more.csv", "teacher": "teacher"}


def test_task_of_the_data_decides_whether_temperature_applies() -> None:
    config = TrainConfig(teacher="t", temperature=3.0)
    check_task_options(config, SINGLE)
    with pytest.raises(ConfigError, match=r"`temperature` 3.0 does not apply to the task regress"):
        check_task_options(config, CASES["regression"].labels)


@pytest.mark.parametrize(("path", "message"), [("gone.txt", "no such file"), ("data", "is a fold")])
def test_missing_file_is_an_error(student: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"{path}: .*{message}"):
        api.train(**student | {"unlabelled": path, "out": "run"})
    assert not Path("run").exists()


def test_commands_show_the_teacher_and_the_number_of_unlabeled_texts(
    student: dict[str, Any], program: Any
) -> None:
    flags = [
        word
        for name, value in (student | {"out": "run"}).items()
        for word in (f"--{name.replace('_', '-')}", value)
    ]
    code, _, errors = program("train", *flags)
    assert code == 0, errors
    teacher = f"teacher: {Path('teacher').resolve()}, also for 13 unlabeled texts"
    assert f"44 examples to train on, 12 for dev\n{teacher}\n" in errors
    config = read_run_config(Path("run"))
    assert config.teacher == str(Path("teacher").resolve())
    assert config.unlabelled == str(Path("more.csv").resolve())
    inputs = json.loads(Path("run/inputs.json").read_text())
    assert inputs["rows"] == {"train.tsv": 44, "dev.tsv": 12, "unlabelled": 13}
    assert len(inputs["teacher"]) == 2
    code, _, errors = program("report", "--run", "run")
    assert code == 0, errors
    page = Path("run/report.html").read_text()
    assert "13 rows, SHA-256" in page and "more.csv" in page
    card = Path("run/model-card.md").read_text()
    assert "13 rows, SHA-256" in card
    code, out, errors = program("train", "--resume", "run", "--teacher", "other")
    assert (code, out) == (2, "") and "cannot change --teacher to other" in errors
    code, _, errors = program("train", "--config", "run/config.yaml", "--out", "again")
    assert code == 0, errors
    one, two = (Path(name, "metrics.jsonl").read_text() for name in ("run", "again"))
    assert [json.loads(line)["loss"] for line in one.splitlines()] == [
        json.loads(line)["loss"] for line in two.splitlines()
    ]


def test_logits_depend_on_the_ending_of_the_file(student: dict[str, Any]) -> None:
    shutil.copy("more.csv", "more.txt")
    found = [run_inputs(TrainConfig(**student), silent)]
    found.append(run_inputs(TrainConfig(**student | {"unlabelled": "more.txt"}), silent))
    (labeled, table), (same, lines) = (own.teacher.digests for own in found if own.teacher)
    assert labeled == same and table != lines


def test_seeds_sweeps_and_rates_use_one_computation(student: dict[str, Any]) -> None:
    api.train_seeds(2, **student | {"max_updates": 0}, out="seeds")
    grid = {"teacher_weight": [0.2]}
    found = api.sweep(grid, **student | {"epochs": 1.0, "max_updates": None}, out="sweep")
    # Windows of 16 of 44 rows and 13 texts.
    assert [cell["updates"] for cell in found["cells"]] == [4]
    assert found["grid_updates"] == 4
    rates = api.find_learning_rate(**student | {"max_updates": 22, "out": "rates"})
    assert len(rates["rates"]) <= 22
    assert Here.jobs == 2


def test_planner_measures_windows_with_unlabeled_texts(student: dict[str, Any]) -> None:
    Path("more.csv").write_text("text\n" + "very " * 18 + "\n")
    config = TrainConfig(**student)
    job = PlanRequest(config, run_inputs(config, silent)).job("none", None, 2)
    measured = MeasuredModel(json.loads(json.dumps(job)), silent)
    assert (measured.examples, measured.largest) == (45, (1, 20))
