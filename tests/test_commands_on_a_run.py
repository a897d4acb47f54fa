"""Use of a trained run: eval, predict, runs, show, export and TensorBoard, also from Python."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from small import copied

import bertaccum
from bertaccum.errors import ConfigError, InputError
from bertaccum.inference import evaluate, predict
from bertaccum.options.commands import PredictConfig, ReportConfig, TrainConfig


@pytest.fixture(scope="module")
def folder(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the trained run, in which tests may add files."""
    return copied(trained, tmp_path_factory.mktemp("use"))


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, program: Any) -> Any:
    """Return a function that runs the program in `folder`: exit code, stdout and stderr."""
    monkeypatch.chdir(folder)
    return program


def texts(folder: Path) -> list[str]:
    lines = (folder / "reviews/test.tsv").read_text().splitlines()[1:]
    return [line.split("\t")[1] for line in lines]


def test_predict_agrees_with_eval(run: Any, folder: Path) -> None:
    code, out, _ = run("eval", "--run", "runs/one", "--json")
    assert code == 0
    evaluated = json.loads(out)
    assert run("eval", "--run", "runs/one")[1].startswith("21 examples of reviews/test.tsv; best")
    code, out, err = run(
        "predict", "--run", "runs/one", "--file", "reviews/test.tsv", "--json", "--batch", 4
    )
    said = "run: runs/one; its best checkpoint: update 40\n"
    assert (code, err) == (0, f"{said}reviews/test.tsv: columns separated by tab\n")
    found = [json.loads(line) for line in out.splitlines()]
    assert [f["text"] for f in found] == texts(folder)
    rows = [line.split("\t") for line in (folder / "reviews/test.tsv").read_text().splitlines()]
    right = [f["label"] == row[0] for f, row in zip(found, rows[1:], strict=True)]
    assert np.mean(right) == evaluated["accuracy"]
    of_right = [f["probabilities"][row[0]] for f, row in zip(found, rows[1:], strict=True)]
    assert -np.mean(np.log(of_right)) == pytest.approx(evaluated["loss"], abs=1e-6)
    assert all(sum(f["probabilities"].values()) == pytest.approx(1) for f in found)


def test_predict_accepts_arguments_lines_and_columns(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The model is loaded once, because this test is about the texts.
    monkeypatch.setattr(predict, "TextClassifier", functools.cache(predict.TextClassifier))
    wanted = ["the food was good", "the food\twas bad"]
    _, out, _ = run("predict", "--run", "runs/one", *wanted)
    said = out.splitlines()
    assert [line.split("\t")[2] for line in said] == ["the food was good", "the food was bad"]
    assert all(0.5 <= float(line.split("\t")[1]) <= 1 for line in said)
    (folder / "lines.txt").write_text("\n".join(wanted) + "\n")
    (folder / "mine.csv").write_text('stars,body\n1,the food was good\n,"the food\twas bad"\n')
    assert run("predict", "--run", "runs/one", "--file", "lines.txt")[1] == out
    column = ["--file", "mine.csv", "--text-column"]
    assert run("predict", "--run", "runs/one", *column, "body")[1] == out
    plain = ["the food was good", "the food was bad"]
    four = "".join(f"1\t\t{text}\t2\n" for text in plain)
    (folder / "four.tsv").write_text(f"id\ttitle\tbody\tstars\n{four}")
    named = ["--file", "four.tsv", "--text-column", "body"]
    assert run("predict", "--run", "runs/one", *named)[1] == out
    (folder / "cola.tsv").write_text("".join(f"x\t1\t\t{text}\n" for text in plain))
    assert run("predict", "--run", "runs/one", "--file", "cola.tsv")[1] == out
    code, _, err = run("predict", "--run", "runs/one", *column, "title")
    assert code == 2
    assert "the column 'title' of --text-column does not occur in the header" in err
    for arguments, message in (
        (["a text", "--file", "lines.txt"], "both texts and --file are given"),
        (["--file", "none.txt"], "none.txt: there is no such file"),
        (["a text", "--run", "runs/none"], "there is no run here"),
    ):
        named = [] if "--run" in arguments else ["--run", "runs/one"]
        code, out, err = run("predict", *named, *arguments)
        assert (code, out) == (2, "")
        assert err.count("error: ") == 1 and message in err.splitlines()[-1]


def test_all_commands_read_the_same_rows(run: Any, folder: Path) -> None:
    """Stray quotes are ordinary characters, so the file has 44 rows; a CSV reader finds 42."""
    stray = 'label\ttext\n0\t"bad acting\n1\tnice\n0\tdull"\n'
    rows = "".join(f"{i % 2}\ttext {i}\n" for i in range(41))
    (folder / "stray.tsv").write_text(stray + rows)
    code, out, err = run(
        *("prepare", "--source", "csv", "--train-file", "stray.tsv", "--out", "stray", "--json")
    )
    assert code == 0 and "stray.tsv: columns separated by tab" in err
    assert sum(split["rows"] for split in json.loads(out)["counts"].values()) == 44
    _, out, err = run("eval", "--run", "runs/one", "--file", "stray.tsv", "--json")
    assert json.loads(out)["examples"] == 44 and "columns separated by tab" in err
    _, out, err = run("predict", "--run", "runs/one", "--file", "stray.tsv")
    assert len(out.splitlines()) == 44 and "columns separated by tab" in err
    assert out.splitlines()[0].endswith('\t"bad acting')


@pytest.mark.parametrize("by_program", [False, True])
def test_eval_writes_to_its_run_when_another_run_starts(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_program: bool
) -> None:
    (tmp_path / "another").mkdir()
    latest, written = tmp_path / "latest", Path("runs/one/eval-dev.json")
    latest.symlink_to(Path("runs/one").resolve())
    written.unlink(missing_ok=True)

    def begin_another(predicted: Any) -> Any:
        latest.unlink()
        latest.symlink_to("another")
        return evaluation(predicted)

    evaluation = evaluate.evaluation
    monkeypatch.setattr(evaluate, "evaluation", begin_another)
    if by_program:
        run("eval", "--run", latest, "--split", "dev")
    else:
        bertaccum.evaluate(run=str(latest), split="dev")
    assert not list((tmp_path / "another").iterdir())
    assert json.loads(written.read_text())["examples"] == 16


def test_data_that_changed_since_the_run_began_is_noted(run: Any, tmp_path: Path) -> None:
    """The model may have been trained on rows of the new test.tsv or dev.tsv."""
    again = tmp_path / "again"
    shutil.copytree("runs/one", again)
    inputs = json.loads((again / "inputs.json").read_text())
    (again / "inputs.json").write_text(json.dumps(inputs | {"train.tsv": "0" * 64}))
    said = "reviews: train.tsv changed since the run began"
    for command in (["eval"], ["report", "--out", str(tmp_path / "page.html")]):
        assert said in run(*command, "--run", str(again), "--split", "dev")[2]
        assert said not in run(*command, "--run", "runs/one", "--split", "dev")[2]
    assert said not in run("eval", "--run", str(again), "--file", "reviews/dev.tsv")[2]
    assert said in run("eval", "--run", str(again), "--file", "reviews/dev.tsv", "--calibrate")[2]


def test_eval_accepts_column_names_and_numbers(run: Any, folder: Path) -> None:
    (folder / "named.csv").write_text("stars;body\n" + "1;very good\n0;very bad\n" * 3)
    for columns in (("body", "stars"), ("2", "1")):
        options = ["--text-column", columns[0], "--label-column", columns[1], "--json"]
        code, out, err = run("eval", "--run", "runs/one", "--file", "named.csv", *options)
        assert (code, json.loads(out)["examples"]) == (0, 6)
        assert "named.csv: columns separated by semicolon" in err
    assert "named.csv: row 1 (stars, body) is the header and is not read as data" in err


@pytest.mark.parametrize("path", [".", "none/results", "reviews/dev.tsv/results", "pipe"])
def test_results_that_cannot_be_written_fail_before_computation(
    run: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the model was loaded first")

    monkeypatch.setattr("bertaccum.inference.evaluate.load_trained", never)
    monkeypatch.setattr("bertaccum.inference.predict.load_trained", never)
    if path == "pipe":
        os.mkfifo(path)
    for command in (["eval"], ["predict", "some text"]):
        code, out, err = run(*command, "--run", "runs/one", "--results", path)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"error: --results {path} " in err


@pytest.mark.parametrize("command", ["eval", "predict"])
def test_results_do_not_replace_the_texts(run: Any, folder: Path, command: str) -> None:
    (folder / "own.csv").write_text("label,text\ngood,the food was good\n")
    named = ["--file", "own.csv", "--results", folder / "own.csv"]
    code, _, err = run(command, "--run", "runs/one", *named)
    assert code == 2 and "own.csv would replace the file that --file names; choose another" in err
    assert (folder / "own.csv").read_text().startswith("label,text\n")


def test_invalid_row_keeps_the_earlier_results_file(run: Any, folder: Path) -> None:
    (folder / "bad.txt").write_bytes(b"the food was good\n\xff\xfe\n")
    (folder / "bad-results.tsv").write_text("earlier results\n")
    code, _, err = run(
        "predict", "--run", "runs/one", "--file", "bad.txt", "--results", "bad-results.tsv"
    )
    assert code == 2
    assert "bad.txt, row 2" in err
    assert [p.read_text() for p in folder.glob("*bad-results*")] == ["earlier results\n"]


def test_texts_from_a_pipe_are_predicted_as_they_arrive(folder: Path) -> None:
    command = [sys.executable, "-m", "bertaccum", "predict", "--run", "runs/one"]
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    for text in ("the food was good", "the food was bad"):
        process.stdin.write(text + "\n")
        process.stdin.flush()
        assert process.stdout.readline().endswith(f"\t{text}\n")
    process.stdin.close()
    assert process.wait() == 0


def test_empty_standard_input_is_noted(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        code, out, err = run("predict", "--run", "runs/one")
    assert (code, out) == (0, "")
    assert err.endswith("note: standard input is empty, so there is nothing to predict\n")


def test_run_given_as_an_argument_is_explained(run: Any) -> None:
    for command in ("eval", "export", "serve"):
        code, _, err = run(command, "runs/one")
        assert code == 2 and err.startswith("error: pass the run with --run runs/one; see")
    assert "unexpected extra argument" in run("eval", "reviews")[2]


def test_runs_are_listed_and_shown(run: Any, folder: Path) -> None:
    (folder / "runs/damaged").mkdir(exist_ok=True)
    (folder / "runs/damaged/config.yaml").write_text("seed: {}\n")
    code, out, err = run("runs", "--json")
    assert code == 0
    (listed,) = (json.loads(line) for line in out.splitlines())
    assert (listed["run"], listed["status"], listed["updates"]) == ("runs/one", "finished", 40)
    assert listed["best_dev_accuracy"] > 0.9
    assert err.startswith("not listed: runs/damaged/config.yaml: ")
    _, out, _ = run("runs")
    assert "runs/one" in out and "finished" in out and re.search(r"│ 8 +│ 3 +│", out)
    _, out, _ = run("show", "runs/one", "--json")
    shown = json.loads(out)
    assert [e["update"] for e in shown["evaluations"]] == list(range(2, 41, 2))
    assert shown["config"]["eval_every"] == 0.5
    assert shown["plan"]["accumulation_steps"] == 3
    _, out, _ = run("show", "runs/one")
    assert "learning_rate: 0.02" in out
    assert re.search(r"loss +\d\.\d{4} \(mean over the last 16 examples; last update \d\.", out)
    assert shown["config"].keys() == {
        "data", "bert_config", "init_checkpoint", "max_seq_length", "target_batch", "micro_batch",
        "epochs", "learning_rate", "eval_every",
    }  # fmt: skip
    assert shown["resolved"] == {
        "precision": "float32",
        "recompute": "none",
        "offload": "none",
        "compile": "off",
        "task": "classification",
        "best_by": "accuracy",
    }
    assert run("show", "runs/none")[0] == run("runs", "none")[0] == 2


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (".", "no runs in .; try `bertaccum runs runs`"),
        ("reviews", "no runs in reviews"),
        ("runs/one", "runs/one is a run folder; try `bertaccum show runs/one`"),
    ],
)
def test_runs_in_a_folder_without_runs_suggests_another_folder(
    run: Any, named: str, said: str
) -> None:
    assert run("runs", named) == run("runs", named, "--json") == (0, "", f"{said}\n")


def test_export_names_the_run_before_checking_the_folder(run: Any) -> None:
    code, out, err = run("export", "--run", "runs/one", "--out", "reviews")
    assert (code, out) == (2, "")
    assert err.startswith("run: runs/one; its best checkpoint: update 40\n")
    hint = "delete an earlier export, or choose another folder with --out"
    assert err.endswith(f"error: reviews exists; {hint}\n")


def test_resuming_a_finished_run_reports_that_it_is_finished(run: Any) -> None:
    code, out, err = run("train", "--resume", "runs/one")
    assert code == 0
    assert "already finished at update 40; to train further, start a new run\n" in err
    assert "tracing" not in err
    assert re.search(r"updates +40 ", out)


def test_library_raises_clear_errors(folder: Path) -> None:
    with pytest.raises(InputError, match="there is no run here"):
        list(bertaccum.predict(["a text"], run=str(folder / "none")))
    with pytest.raises(TypeError, match="no option 'target_bach'; did you mean 'target_batch'"):
        bertaccum.train(target_bach=8)
    with pytest.raises(TypeError, match="needs texts or `file`"):
        bertaccum.predict()
    with pytest.raises(ConfigError, match="both texts and `file` are given; omit one of the two"):
        bertaccum.predict(["a text"], run=str(folder / "runs/one"), file="texts.txt")
    tables: list[Any] = [pd.DataFrame({"text": ["good"]}), {"text": "good"}]
    for table in tables:
        with pytest.raises(TypeError, match=r"pass a column, such as df\['text'\]"):
            bertaccum.predict(table, run=str(folder / "runs/one"))
    with pytest.raises(TypeError, match="no option 'max_update'"):
        bertaccum.train(resume="runs/one", max_update=3)
    assert [p.text for p in bertaccum.predict("one text", run=str(folder / "runs/one"))] == [
        "one text"
    ]
    for call in (bertaccum.export, bertaccum.report):
        with pytest.raises(ConfigError, match=r"`out` \."):
            call(run=str(folder / "runs/one"), out=".")
    with pytest.raises(ConfigError, match="contradict each other"):
        bertaccum.training_events(resume="runs/one", seeds=2)
    with pytest.raises(TypeError, match="with its own configuration"):
        bertaccum.train(TrainConfig(), resume="runs/one")


def test_options_can_be_a_dataclass_or_keywords(folder: Path) -> None:
    run = str(folder / "runs/one")
    wanted = [p.label for p in bertaccum.predict(texts(folder), run=run, batch=3)]
    config = PredictConfig(run="elsewhere", batch=3)
    assert [p.label for p in bertaccum.predict(texts(folder), config, run=run)] == wanted
    page = bertaccum.report(run, ReportConfig(split="test"), out=str(folder / "page.html"))
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.fixture(scope="module")
def tensorboard(folder: Path) -> Iterator[str]:
    """Start TensorBoard on the runs, and yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder / "runs")]
    command += ["--port", str(port), "--host", "127.0.0.1", "--load_fast", "false"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()


def ask(address: str) -> Any:
    """Return TensorBoard's answer as JSON; wait up to 30 seconds for it to start."""
    for _ in range(300):
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                return json.load(answer)
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(address)


@pytest.mark.slow
def test_tensorboard_shows_the_values_of_the_logs(folder: Path, tensorboard: str) -> None:
    tags: dict[str, Any] = {}
    while "one/tensorboard" not in tags:
        tags = ask(f"{tensorboard}/data/plugin/scalars/tags")
        time.sleep(0.1)
    run = "one/tensorboard"
    assert set(tags[run]) == {
        "dev/accuracy", "dev/loss", "dev/macro_f1", "dev/matthews_correlation",
        "speed/examples_per_second", "train/gradient_norm", "train/learning_rate", "train/loss",
        "train/noise_scale",
    } | ({"memory/peak_bytes"} & set(tags[run]))  # fmt: skip
    for tag, log, key in (("train/loss", "metrics", "loss"), ("dev/accuracy", "eval", "accuracy")):
        points = ask(f"{tensorboard}/data/plugin/scalars/scalars?run={run}&tag={tag}")
        lines = (folder / f"runs/one/{log}.jsonl").read_text().splitlines()
        wanted = [(line["update"], line[key]) for line in map(json.loads, lines)]
        assert [step for _, step, _ in points] == [step for step, _ in wanted]
        values = [value for _, _, value in points]
        assert values == pytest.approx([value for _, value in wanted], abs=1e-6)
    (text,) = ask(f"{tensorboard}/data/plugin/text/text?run={run}&tag=config")
    assert "target_batch: 8" in text["text"]
