"""The command line: its output on stdout and stderr, its exit codes and its error messages."""

from __future__ import annotations

import json
import os
import re
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import yaml
from simulated import Simulated
from small import copied, write_small_model

from bertaccum.bert.presets import PRESETS, RELATIVES, closest_preset
from bertaccum.bert.vocabulary import SPECIAL_TOKENS
from bertaccum.cli import entry
from bertaccum.cli.program import cli
from bertaccum.errors import BertAccumError
from bertaccum.options.cards import CARDS
from bertaccum.planning import measured_plan
from bertaccum.system import machine
from bertaccum.tasks.classification import Classification

QUICK = ["--model", "bert-tiny", "--init-checkpoint", "none", "--max-seq-length", "16"]
QUICK += ["--micro-batch", "4"]
# The options of runs that train.
SMALL = ["--bert-config", "reviews/bert_config.json", *QUICK[2:]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Any) -> Any:
    """Return a function that runs the program in a temporary folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERTACCUM_CHECKPOINT_URL", "http://127.0.0.1:9")
    return program


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data folder whose labels depend on one word of each text, with a small encoder."""
    folder = tmp_path / "reviews"
    folder.mkdir()
    words = ["the", "food", "was", "good", "bad"]
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n")
    write_small_model(folder / "bert_config.json", folder / "vocab.txt")
    rows = [f"{i % 2}\tthe food was {('bad', 'good')[i % 2]}\n" for i in range(40)]
    for name, count in (("train", 40), ("dev", 16), ("test", 20)):
        (folder / f"{name}.tsv").write_text("label\ttext\n" + "".join(rows[:count]))
    return folder


@pytest.mark.slow
def test_advice_after_training_follows_the_options_for_messages(run, data: Path) -> None:
    options = ["train", "--data", data, *QUICK, "--target-batch", 8, "--max-updates", 24]
    options += ["--epochs", 10, "--eval-every", 100, "--learning-rate", 2e-3]
    quiet = run(*options, "--out", "runs/quiet", "--quiet")
    assert (quiet.code, quiet.err) == (0, "")
    records = run(*options, "--out", "runs/records", "--log-format", "json").err.splitlines()
    assert sum("with target batch 16" in json.loads(line).get("text", "") for line in records) == 1


def test_run_that_learns_little_gets_advice_on_the_learning_rate_not_on_the_batch(
    run, data: Path
) -> None:
    options = ["train", "--data", data, *SMALL, "--target-batch", 8, "--learning-rate", 1e-9]
    options += ["--epochs", 10, "--eval-every", 100, "--json"]
    trained = run(*options, "--max-updates", 24, "--out", "runs/r")
    assert re.search("(; |or )try the learning rate that --find-lr suggests", trained.err)
    assert "with target batch 16" not in trained.err
    advice = run("advise", "runs/r")
    assert "noise scale" in advice.out and "another learning rate matters more" in advice.err
    # A model that was not trained needs no other learning rate.
    untrained = run(*options, "--max-updates", 0, "--out", "runs/s")
    assert untrained.code == 0 and "--find-lr" not in untrained.err
    assert json.loads(Path("runs/s/summary.json").read_text())["final_loss"] is None


def test_train_and_eval_write_results_to_stdout_and_progress_to_stderr(run, data: Path) -> None:
    trained = run(
        *("train", "--data", data, "--target-batch", 8, "--epochs", 8, *SMALL[:-2]),
        *("--learning-rate", 2e-2, "--micro-batch", 3, "--cut", "count", "--json"),
    )
    assert trained.code == 0
    summary = json.loads(trained.out)
    assert summary["updates"] == 40
    assert summary["examples"] == 320
    assert summary["best_dev_accuracy"] > 0.9
    assert "random weights, not pretrained" in trained.err
    assert "8 examples per update: 2 micro-batches of 3 and one of 2; 40 updates" in trained.err

    folder = Path("runs/latest").resolve()
    assert folder.parent == Path("runs").resolve()
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    wanted = {"update", "epoch", "loss", "examples", "learning_rate", "grad_norm", "seconds"}
    assert wanted | {"examples_per_second"} <= set(metrics[0])
    assert [m["update"] for m in metrics] == list(range(1, 41))
    assert metrics[0]["learning_rate"] == 0
    assert max(m["learning_rate"] for m in metrics) == pytest.approx(2e-2)
    assert [m["epoch"] for m in metrics] == [1 + i // 5 for i in range(40)]
    assert json.loads((folder / "plan.json").read_text()) == {
        "target_batch": 8,
        "micro_batch": 3,
        "accumulation_steps": 3,
        "offload": "none",
        "replicas": 1,
        "recompute": "none",
        "cut": "count",
        "shapes": None,
        "real_share": None,
        "why": None,
        "prices": {"step_tokens": 150.0, "attention": 1 / 2700},
        "compile_tokens": 1e6,
        "compile_cost": None,
        "learned_limits": {},
        "updates": 40,
    }
    evaluations = [json.loads(line) for line in (folder / "eval.jsonl").read_text().splitlines()]
    assert [e["update"] for e in evaluations] == list(range(5, 41, 5))
    assert json.loads((folder / "summary.json").read_text()) == summary
    lengths = {"max_seq_length": 16, "longer": 0, "median": 6, "longest": 6, "kept": {}}
    lengths |= {"windows": 1, "kept_by_windows": {}}
    assert json.loads((folder / "inputs.json").read_text())["truncation"] == {
        "train.tsv": lengths | {"texts": 40},
        "dev.tsv": lengths | {"texts": 16},
    }
    assert "--max-seq-length" not in trained.err

    evaluated = run("eval")
    assert evaluated.code == 0
    best = summary["best_update"]
    said = f"run: runs/{folder.name}; its best checkpoint: update {best}"
    assert evaluated.err.splitlines()[:2] == [said, "evaluating on test.tsv"]
    assert "run: " not in run("eval", "--quiet").err
    assert re.search(r"accuracy +1\.0000", evaluated.out)
    saved = json.loads((folder / "eval-test.json").read_text())
    assert saved["confusion_matrix"] == [[10, 0], [0, 10]]
    assert json.loads(run("eval", "--split", "dev", "--json").out)["examples"] == 16
    as_json = run("eval", "--file", data / "train.tsv", "--json")
    assert json.loads(as_json.out)["examples"] == 40
    written = sorted(path.name for path in folder.glob("eval-*"))
    assert written == ["eval-dev.json", "eval-file-train.json", "eval-test.json"]
    state = tf.train.load_checkpoint(str(folder / "checkpoints/update-40/state"))
    names = [name.split("/")[0].split("_", 1) for name in state.get_variable_to_shape_map()]
    held = {name[1]: "_".join(name) for name in names if len(name) == 2}
    value = "/.ATTRIBUTES/VARIABLE_VALUE"
    assert state.get_tensor(held["iteration_0"] + value) == 40
    slots = [name for name in held if name.startswith("m_")]
    assert len(slots) > 20
    for slot in slots:  # Both moments and the weight must be saved.
        assert {f"v_{slot[2:]}", slot[2:]} <= set(held)


def test_flag_overrides_config_file_and_file_overrides_default(run, data: Path) -> None:
    Path("recipe.yaml").write_text(
        f"data: {data}\nbert_config: reviews/bert_config.json\ninit-checkpoint: none\n"
        "max_seq_length: 5\n"
        "target_batch: 16\nlearning_rate: 1e-3\nmax_updates: 3\nmicro_batch: 4\n"
    )
    first = run("train", "--config", "recipe.yaml", "--target-batch", 10, "--out", "first")
    assert first.code == 0
    config = yaml.safe_load(Path("first/config.yaml").read_text())
    assert (config["target_batch"], config["learning_rate"], config["epochs"]) == (10, 1e-3, 3.0)
    truncation = "100% of the texts are longer than --max-seq-length 5 (median 6, longest 6 tokens)"
    assert truncation in first.err.splitlines()
    assert "out" not in config
    assert not Path("latest").exists()

    # The file describes the same run again.
    again = cli.commands["train"].make_context("train", ["--config", "first/config.yaml"]).params
    assert {name: again[name] for name in config} == config
    assert json.loads(Path("first/summary.json").read_text())["updates"] == 3


TRAIN_MISTAKES = {
    "target batch 0": (["--target-batch", 0], "'--target-batch': 0 is below 1"),
    "micro-batch above target batch": (
        ["--target-batch", 4, "--micro-batch", 8],
        "8 is above --target-batch 4",
    ),
    "micro-batch 0": (["--micro-batch", 0], "'--micro-batch': 0 is below 1"),
    "micro-batch not a number": (["--micro-batch", "some"], "'some' is not auto or a whole number"),
    "evaluation interval not a number": (
        ["--eval-every", "some"],
        "'some' is not a number of updates",
    ),
    "sequence too long": (["--max-seq-length", 513], "513 is above the model's 512 positions"),
    "sequence too short": (["--max-seq-length", 2], "2 is below 3"),
    "no data": (["--data", "absent"], "absent/train.tsv: there is no such file; run .* prepare` f"),
    "no dev.tsv": (
        ["--data", "half"],
        "half/dev.tsv: there is no such file; run `bertaccum prepare`",
    ),
    "a file": (["--data", "half/train.tsv"], "a file, not .* csv --train-file half/train.tsv"),
    "no checkpoint": (["--init-checkpoint", "absent"], "absent: there is no such checkpoint"),
    "no zip file": (["--init-checkpoint", "bert-smal.zip"], "zip: there is no such file .*; set"),
    "no network": (
        ["--init-checkpoint", "bert-tiny"],
        "cannot download .*: 127.0.0.1:9 cannot be reached.*--vocab if the",
    ),
    "no vocabulary": (["--vocab", "absent.txt"], "absent.txt: there is no such file"),
    "two encoders": (["--bert-config", "x.json"], "both define the encoder"),
    "unknown model": (
        ["--model", "bert-smal"],
        "bert-smal is not the name .* did you mean bert-small",
    ),
    "unknown option": (["--target-bach", 8], "No such option '?--target-bach'?.*--target-batch"),
    "out exists": (["--out", "reviews"], "--out reviews exists; choose another folder$"),
    "no config file": (["--config", "absent.yaml"], "absent.yaml: there is no such file"),
    "epochs not a number": (["--epochs", "nan"], "nan is not a finite number"),
    "learning rate infinite": (["--learning-rate", "inf"], "inf is not a finite number"),
    "out in a file": (
        ["--out", "reviews/vocab.txt/run"],
        "vocab.txt/run (cannot be created|is not)",
    ),
    "out too long": (["--out", "x" * 300], "is not a valid path"),
}


@pytest.mark.parametrize("mistake", TRAIN_MISTAKES)
def test_wrong_option_gives_one_error_line_and_creates_no_files(
    run, data: Path, mistake: str
) -> None:
    arguments, message = TRAIN_MISTAKES[mistake]
    Path("half").mkdir()
    Path("half/train.tsv").touch()
    before = sorted(Path().iterdir())
    given = dict(zip(["--data", *QUICK[::2]], [data, *QUICK[1::2]], strict=True))
    given |= zip(arguments[::2], arguments[1::2], strict=True)
    check_error(run("train", *chain(*given.items())), message)
    assert sorted(Path().iterdir()) == before


def check_error(outcome: Any, message: str) -> None:
    assert outcome.code == 2
    assert outcome.out == ""
    lines = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert re.search(message, lines[0])
    assert "Traceback" not in outcome.err


DATA_MISTAKES = {
    "empty": (b"", "train.tsv: is empty"),
    "binary": (b"\x00\x01\x02\xff" * 20, "train.tsv, row 1: contains NUL bytes, so it is not text"),
    "latin-1": (b"label\ttext\n1\tcaf\xe9\n", "train.tsv, row 2: byte 0xe9 .*not UTF-8"),
    "columns": (
        b"label\ttext\n1\ta\tb\n",
        "train.tsv, row 2: has 3 columns, but the first row has 2",
    ),
    "one class": (b"label\ttext\n1\ta\n1\tb\n", r"train.tsv: has only one class \(1\)"),
}


@pytest.mark.parametrize("mistake", DATA_MISTAKES)
def test_error_in_data_names_file_and_row(run, data: Path, mistake: str) -> None:
    contents, message = DATA_MISTAKES[mistake]
    (data / "train.tsv").write_bytes(contents)
    check_error(run("train", "--data", data, *QUICK), message)
    assert not Path("runs").exists()


CONFIG_MISTAKES = {
    "unknown key": ("seed: 1\ntarget_bach: 8\n", r"r.yaml, row 2: .*did you mean target_batch\?"),
    "bad value": ("target_batch: 0\n", "r.yaml, row 1: target_batch: 0 is below 1"),
    "fraction": ("seed: 1.5\n", "r.yaml, row 1: seed: '1.5' is not a whole number"),
    "no character": ('data: "\\UFFFFFFFF"\n', "r.yaml: is not plain YAML"),
    "nested": ("[" * 3000, "r.yaml: is not plain YAML"),
    "list": ("seed: [1]\n", r"r.yaml, row 1: seed: \['1'\] is not valid"),
    "flag for number": ("seed: true\n", "r.yaml, row 1: seed: 'true' is not a whole number"),
    "key given twice": ("seed: 1\nseed: 2\n", "r.yaml, row 2: seed is given twice"),
    "not a mapping": ("- 1\n", "has no `key: value` lines"),
    "alias of a list": (
        "seed: &a [1]\nepochs: [*a, *a]\n",
        r"r.yaml, row 2: is not plain YAML \(the alias \*a stands for a list or a mapping\)",
    ),
    "too large": ("# \n" * 100_000, "r.yaml: has more than 256 KiB, so it is not such a file"),
    "not YAML": ("seed: [\n", "r.yaml, row 2: is not plain YAML .*; write `key: value` l"),
    "tag": ("seed: !!python/object/apply:os.getpid []\n", "r.yaml, row 1: is not plain YAML"),
}


@pytest.mark.parametrize("mistake", CONFIG_MISTAKES)
def test_error_in_config_file_names_the_row(run, mistake: str) -> None:
    contents, message = CONFIG_MISTAKES[mistake]
    Path("r.yaml").write_text(contents)
    check_error(run("train", "--config", "r.yaml"), message)


def test_wrong_options_of_eval_give_one_error_line(run, trained: Path, tmp_path: Path) -> None:
    check_error(run("eval"), "runs/latest: there is no run here; train first")
    copied(trained, tmp_path)
    Path("runs/latest").symlink_to("one")
    check_error(run("eval", "--file", "absent.tsv"), "absent.tsv: there is no such file")
    check_error(run("eval", "--file", "a" * 300), "aaa: File name too long; check the path")
    Path("other.tsv").write_text("label\ttext\n0\tgood\n2\tfine\n")
    check_error(run("eval", "--file", "other.tsv"), "other.tsv, row 3: label '2' is unknown")
    Path("more.csv").write_text("body,title,label\ngood,a,0\n")
    needed = "'text' does not occur in the header, which is: body, title, label"
    check_error(run("eval", "--file", "more.csv"), f"more.csv: the column {needed}")
    Path("plain.tsv").write_text("index\tsentence\n0\tgood\n")
    check_error(run("eval", "--file", "plain.tsv"), "plain.tsv: has no labels")


def test_interrupted_imports_give_one_error_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C in the first moments interrupts the import of the command line."""

    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "bertaccum.cli.program":
                raise KeyboardInterrupt

    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "bertaccum.cli.program")
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "error: interrupted\n")


def test_wrong_options_of_export_and_unknown_runs_give_one_error_line(run, data: Path) -> None:
    check_error(run("export"), "runs/latest: there is no run here; train first")
    check_error(run("export", "--run", data), "reviews: there is no run here")
    message = "no: there is no run here; train first, or check the path: `bertaccum runs` lists"
    for command in ("show no", "compare no x", "report no", "train --resume no"):
        check_error(run(*command.split()), message)
    check_error(run("export", "--format", "onnx"), "'onnx' is not one of 'savedmodel', 'hugging")


def test_wrong_options_of_prepare_give_one_error_line(run) -> None:
    check_error(run("prepare", "--source", "csv"), "--source csv needs --train-file")
    check_error(run("prepare", "--archive", "absent.tgz"), "absent.tgz")
    check_error(run("prepare", "--source", "sample", "--dev-fraction", 1), "1 is not below 1")
    check_error(run("prepare", "--source", "sample", "--archive", "x"), "or omit --archive")
    assert not Path("data").exists()


def test_unexpected_exception_gives_one_error_line(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("first\nsecond")

    monkeypatch.delenv("BERTACCUM_TRACEBACK", raising=False)
    monkeypatch.setattr("data_prep.preparation.prepare", fail)
    outcome = run("prepare", "--source", "sample")
    assert outcome.code == 1
    assert outcome.err.startswith("error: unexpected RuntimeError: first second;")


def test_error_message_contains_place_and_hint() -> None:
    error = BertAccumError("is damaged", "fetch it again", path="a.tsv", row=3)
    assert str(error) == "a.tsv, row 3: is damaged; fetch it again"
    assert str(BertAccumError("two\nlines")) == "two lines"


def test_help_shows_examples_and_defaults(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for command in ([], ["train"]):
        shown = run(*command, "--help")
        assert (shown.code, shown.err) == (0, "")
        assert "bertaccum train --target-batch 32 --micro-batch 8" in shown.out
    assert "[default: fits the model" in shown.out


@pytest.mark.slow
def test_best_folder_contains_weights_of_the_best_evaluation(
    run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among equal evaluations the last one is the best; a later, worse one changes nothing."""
    common = ["train", "--data", data, "--target-batch", 8, "--dropout", 0, *SMALL]
    run(*common, "--max-updates", 3, "--out", "three")
    scores = iter([0.5, 0.9, 0.9, 0.2])
    plain = Classification.scores
    monkeypatch.setattr(
        Classification, "scores", lambda *given: plain(*given) | {"accuracy": next(scores)}
    )
    run(*common, "--max-updates", 4, "--eval-every", 1, "--out", "four")
    evaluations = [json.loads(line) for line in Path("four/eval.jsonl").read_text().splitlines()]
    assert [e["best"] for e in evaluations] == [True, True, True, False]
    assert json.loads(Path("four/summary.json").read_text())["best_update"] == 3

    def kernel(path: str, name: str) -> np.ndarray:
        reader = tf.train.load_checkpoint(path)
        (full,) = [n for n in reader.get_variable_to_shape_map() if re.fullmatch(name, n)]
        return reader.get_tensor(full)

    out = "model/layer_with_weights-1/out_proj/kernel/.*"
    kernels = [kernel(f"{run}/best/model.ckpt", out) for run in ("four", "three")]
    state = "four/checkpoints/update-4/state"
    kernels.append(kernel(state, r"v\d+_sentence_prediction_logits_kernel_0/.*"))
    assert kernels[0] == pytest.approx(kernels[1], abs=1e-6)
    assert kernels[0] != pytest.approx(kernels[2], abs=1e-6)


def test_diverging_run_fails(run, data: Path) -> None:
    outcome = run(
        *("train", "--data", data, "--target-batch", 8, "--epochs", 1, "--warmup-fraction", 0),
        *("--learning-rate", 1e30, "--out", "diverged", *SMALL),
    )
    assert outcome.code == 1
    message = "error: the loss on dev.tsv is not finite after update 5; lower --learning-rate"
    assert outcome.err.splitlines()[-1] == message
    metrics = Path("diverged/metrics.jsonl").read_text()
    assert "NaN" not in metrics
    assert json.loads(metrics.splitlines()[-1])["skipped"]


def test_labels_are_not_interpreted_as_markup(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (f"good {i},[/b]\nbad {i},[red]\n" for i in range(10))
    Path("mine.csv").write_text("text,label\n" + "".join(rows))
    few = ["--train-file", "mine.csv", "--dev-fraction", 0.05]
    prepared = run("prepare", "--source", "csv", *few)
    assert prepared.code == 0
    assert "[/b]" in prepared.out
    assert "[red]" in prepared.out
    said = (
        r"note: dev.tsv has no rows labeled (\[/b\]|\[red\]), because all"
        r" of the few texts with this label are in train.tsv; .*"
    )
    assert re.fullmatch(said, prepared.err.splitlines()[-2])


DAMAGE = {
    "labels.json": (b'{"values": 3, "names": []}', "labels.json: is damaged"),
    "vocab.txt": ("\n".join(SPECIAL_TOKENS).encode(), "its vocab.txt has 5 entries"),
    "model.ckpt.data-00000-of-00001": (b"short", "model.ckpt: cannot be loaded"),
    "../config.yaml": (b"max_seq_length: abc\n", "config.yaml: is not the configuration of a run"),
}


def test_error_names_the_damaged_file_of_a_run(run, trained: Path, tmp_path: Path) -> None:
    copied(trained, tmp_path)
    for name, (contents, message) in DAMAGE.items():
        path = Path("runs/one/best", name)
        whole = path.read_bytes()
        path.write_bytes(contents)
        check_error(run("eval", "--run", "runs/one"), message)
        path.write_bytes(whole)
    assert Path("runs/one/summary.json").stat().st_mode & 0o044 == 0o044 & ~os.umask(0o022)


def test_interruption_and_full_disk_give_one_error_line(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(error: BaseException) -> None:
        def prepare(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("data_prep.preparation.prepare", prepare)

    fail(KeyboardInterrupt())
    outcome = run("prepare", "--source", "sample")
    assert (outcome.code, outcome.err.strip()) == (130, "error: interrupted")
    fail(OSError(28, "No space left on device", "x.tsv"))
    outcome = run("prepare", "--source", "sample")
    assert outcome.code == 1
    assert outcome.err.startswith("error: x.tsv: No space left on device;")


def test_quiet_error_is_a_record_with_records(run) -> None:
    outcome = run("train", "--data", "absent", "--quiet", "--log-format", "json")
    (line,) = outcome.err.splitlines()
    record = json.loads(line)
    assert (outcome.code, record["event"], record["exit_code"]) == (2, "error", 2)
    assert record["message"].startswith("absent/train.tsv: there is no such file")


def test_runs_that_cannot_be_read_are_named_without_a_table(run) -> None:
    Path("runs/damaged").mkdir(parents=True)
    Path("runs/damaged/config.yaml").write_text("seed: {}\n")
    for arguments in ([], ["--json"]):
        outcome = run("runs", *arguments)
        assert (outcome.code, outcome.out) == (0, "")
        assert outcome.err.startswith("not listed: runs/damaged/config.yaml: ")


def test_options_of_predict_without_effect_are_refused(run) -> None:
    check_error(run("predict", "a", "--results", "r.tsv", "--json"), "so --json has no effect; om")
    message = "--text-column has no effect on stdin, of which each line is a text; write"
    for column in ("text", "body"):
        for file in ([], ["--file", "-"]):
            check_error(run("predict", *file, "--text-column", column), message)


def test_program_without_command_shows_the_help(run) -> None:
    outcome = run()
    assert outcome.code == 0
    assert outcome.out.startswith("Usage: ")


def test_config_file_may_have_byte_order_mark_and_nulls(run) -> None:
    Path("r.yaml").write_bytes(b"\xef\xbb\xbfmax_updates: null\ndata: absent\n")
    check_error(run("train", "--config", "r.yaml", *QUICK), "absent/train.tsv")


def test_plan_shows_plans_that_fit_and_train_uses_the_chosen_one(
    run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_plan, "MeasurementProcess", Simulated)
    Simulated.started = []
    common = ["--data", data, *SMALL[:-2], "--target-batch", 20]
    planned = run("plan", *common, "--recompute", "none")
    assert planned.code == 0
    static = (
        "parameters 110 MiB (embeddings 60 MiB), optimizer slots 220 MiB, gradient accumulators"
    )
    assert f"always in use: {static} 110 MiB\n" in planned.out
    assert re.search(r"│ 7 \* +│ 3 +│ none +│ none +│ 709 MiB .* yes", planned.out)
    assert "* 20 examples per update: micro-batches of 7 examples, more if" in planned.out
    assert "the whole update fits, but smaller micro-batches are faster" in planned.out
    assert "plan.json: written" in planned.out
    assert f"examples/s: measured on windows of {data}\n" in planned.out
    written = json.loads(Path("plan.json").read_text())
    as_json = run("plan", *common, "--recompute", "none", "--json")
    assert json.loads(as_json.out) == written

    trained = run("train", *common, "--recompute", "none", "--max-updates", 2, "--out", "r")
    assert trained.code == 0
    assert "micro-batches of 7 examples, more if they are short; 2 updates" in trained.err
    assert "plan: the whole update fits, but" in trained.err
    kept = json.loads(Path("r/plan.json").read_text())
    compiling = {"compile_tokens": 1e6, "compile_cost": None}
    assert kept == written | compiling | {"learned_limits": {}, "updates": 2}
    config = yaml.safe_load(Path("r/config.yaml").read_text())
    assert (config["micro_batch"], config["recompute"]) == (7, "none")
    assert len(Simulated.started) == 2


def test_plan_that_does_not_fit_shows_the_table_and_fails(
    run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_plan, "MeasurementProcess", Simulated)
    planned = run("plan", "--data", data, "--device-memory", "950MiB", "--offload", "none")
    assert planned.code == 1
    assert "│ no" in planned.out
    assert re.fullmatch(
        r"planning takes .*\nerror: nothing fits: .*; use --model bert-mini \(.*\)",
        planned.err.strip(),
    )
    # No limit can be set after TensorFlow has started, so the test simulates a small machine.
    monkeypatch.setattr(machine, "machine_bytes", lambda: 960 * 2**20)
    trained = run("train", "--data", data, *QUICK[:-2], "--offload", "none")
    assert trained.code == 1
    assert "error: nothing fits" in trained.err
    assert not Path("runs").exists()


def test_plan_for_a_card_says_what_is_calculated(
    run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_plan, "MeasurementProcess", Simulated)
    planned = run("plan", "--data", data, "--card", "gtx-1050-ti")
    speed = "examples/s: calculated for the GTX 1050 Ti, not measured, on full-length windows"
    assert speed in planned.out
    assert "10,000 examples take 0:02:00 (h:mm:ss)" in planned.out
    assert "with compiled steps: at least" in planned.out
    assert re.findall(r"\n│ (\d+)", planned.out) == ["7", "8", "11"]
    assert "… 8 more candidates; --all prints them" in planned.out
    planned = run("plan", "--data", data, "--card", "gtx-1050-ti", "--all")
    assert len(re.findall(r"\n│ (\d+)", planned.out)) == 11
    assert "more candidates" not in planned.out


def test_cards_are_listed(run) -> None:
    listed = run("plan", "--card", "list").out
    assert listed.count("│ rtx-") == sum(name.startswith("rtx-") for name in CARDS)
    lines = run("plan", "--card", "list", "--json").out.splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["name"] for record in records] == list(CARDS)
    assert not Path("plan.json").exists()


def test_plan_accepts_a_config_file_of_train(
    run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_plan, "MeasurementProcess", Simulated)
    Path("recipe.yaml").write_text(f"data: {data}\nepochs: 3\nout: runs/mine\ntarget_batch: 20\n")
    planned = run("plan", "--config", "recipe.yaml", "--json")
    assert planned.code == 0
    assert json.loads(Path("plan.json").read_text())["target_batch"] == 20
    Path("recipe.yaml").write_text("epoch: 3\n")
    check_error(run("plan", "--config", "recipe.yaml"), "unknown key 'epoch'")


def test_wrong_options_of_plan_give_one_error_line(run, data: Path) -> None:
    check_error(run("plan", "--device-memory", "4GiB", "--memory-limit", "4GiB"), "omit one")
    check_error(run("plan", "--device-memory", "lots"), "is not a size such as 4GiB")
    check_error(run("plan", "--card", "t4", "--memory-limit", "4GiB"), "omit one")
    check_error(run("plan", "--card", "RTX 3060ti"), r"did you mean rtx-3060\?")
    check_error(run("plan", "--data", data, "--out", "no/plan.json"), "cannot be written")
    check_error(run("plan", "--data", data, "--max-seq-length", 1000), "above the model's 512")
    check_error(run("plan", "--data", "absent"), "absent/train.tsv: there is no such file; run")
    Path("recipe.yaml").write_text("data: absent\n")
    check_error(run("plan", "--config", "recipe.yaml"), "absent/train.tsv: there is no such file")
    assert not Path("plan.json").exists()


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("bert-smal", "bert-small"),
        ("bert-base-multilingual", "bert-base-multilingual-cased"),
        ("bert_base_cased", "bert-base-cased"),
        ("uncased_L-4_H-512_A-9", "uncased_L-4_H-512_A-8"),
        ("gpt", None),
    ],
)
def test_misspelled_name_gets_the_closest_one(
    run, data: Path, wrong: str, meant: str | None
) -> None:
    assert closest_preset(wrong) == meant
    for option in ("--model", "--init-checkpoint"):
        output = run("plan", "--data", data, option, wrong).err
        assert (f"did you mean {meant}?" in output) == (meant is not None), output
        assert "bertaccum models" in output.replace("\n", " ")


def test_models_lists_every_preset(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path))
    (tmp_path / "checkpoints" / "bert-mini").mkdir(parents=True)
    relative = "google/electra-small-discriminator"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--google--electra-small-discriminator" / "snapshots" / "a"
    snapshot.mkdir(parents=True)
    (snapshot / "pytorch_model.bin").touch()
    records = [json.loads(line) for line in run("models", "--json").out.splitlines()]
    assert [record["name"] for record in records] == [*PRESETS, *RELATIVES]
    assert [r["name"] for r in records if r["cached"]] == ["bert-mini", relative]
    large = next(record for record in records if record["name"] == "bert-large")
    assert large["parameters"] == 334_819_328
    assert large["url"].endswith("/2018_10_18/uncased_L-24_H-1024_A-16.zip")
    table = run("models").out
    assert all(name in table for name in (*PRESETS, *RELATIVES))
    small = next(record for record in records if record["name"] == relative)
    # As Clark et al. 2020 say, about 14 million.
    assert 13e6 < small["parameters"] < 14.5e6
    assert (small["layers"], small["hidden_size"]) == (12, 256)


def test_error_escapes_control_characters_of_a_file_name(run, trained: Path) -> None:
    for name in ("no\x1b]0;x\x07\u202e\n.tsv", "no/two  spaces\x9b"):
        outcome = run("eval", "--run", trained / "runs/one", "--file", name)
        assert outcome.code == 2 and outcome.err.replace("\n", "").isprintable()
        shown = name.encode("unicode_escape").decode()
        assert outcome.err.splitlines()[-1].startswith(f"error: {shown}: there is no such file; ")
