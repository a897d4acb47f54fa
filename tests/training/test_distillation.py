"""Runs with a teacher: the same updates in any way, and what happens to the teacher's logits."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf
from forked import QUICK_XLA, SEVERAL_RUNS, output
from resuming import killed_copy, result
from scripted import Failing, under
from simulated import occupy_gpus
from small import DAMAGES, Notes
from teaching import Here, make_student, make_teacher, reordered, same
from test_task_updates import CASES, FEW, weights_of, whole_run

from bertaccum import api
from bertaccum.data.run_inputs import tokenizations
from bertaccum.data.teacher_labels import LOGITS, TeacherLogits
from bertaccum.data.tokenizing import open_store
from bertaccum.distribution import device_memory
from bertaccum.errors import BertAccumError, InputError, RunError
from bertaccum.inference.predict import TextClassifier
from bertaccum.inference.predictor import Predictor
from bertaccum.inference.trained_model import load_trained
from bertaccum.options.commands import TrainConfig
from bertaccum.planning.measurement import PlanRequest
from bertaccum.runs.folder import RunFolder
from bertaccum.system.progress import silent
from bertaccum.tasks import forward
from bertaccum.tasks.kinds import make_task
from bertaccum.training import teacher_logits
from bertaccum.training.checkpoints import save_best
from bertaccum.training.distillation import join_teacher
from bertaccum.training.events import Evaluated, OutOfMemory, Started
from bertaccum.training.inputs import run_inputs
from bertaccum.training.teacher_logits import open_logits
from bertaccum.training.train import resume, train
from data_prep.tables.tsv import read_tsv

FAST = ("tags", "all weights")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compute logits in this process, with a cache of the test's own."""
    monkeypatch.setattr(teacher_logits, "ChildProcess", Here)
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Here, "jobs", 0)


def run(options: dict[str, Any], out: Path, **more: Any) -> list[Any]:
    return list(train(TrainConfig(**options | {"out": str(out)} | more), silent))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FEW if name not in FAST])
def test_out_of_memory_kill_and_resume_change_no_update(tmp_path: Path, name: str) -> None:
    """With dropout and unlabeled texts: update 4 is lost, and update 5 runs out of memory."""
    options = make_student(tmp_path, name, unlabelled=str(tmp_path / "more.csv"))
    run(options, tmp_path / "whole", micro_batch=16, keep=9)
    killed = killed_copy(tmp_path / "whole", tmp_path / "killed", 3)
    again = under(Failing({6}, training=True), resume(killed, {"micro_batch": 5}, silent))
    assert [e.update for e in again if isinstance(e, OutOfMemory)] == [5]
    same(weights_of(killed), weights_of(tmp_path / "whole"), 1e-5)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in FEW]
)
def test_teacher_without_weight_changes_no_update(
    tmp_path: Path, made_once: Callable[..., Path], name: str
) -> None:
    """Labels, weights of rows and classes, smoothing and dropout masks remain as they are."""
    options = make_student(tmp_path, name, noise_scale="none")
    run(options, tmp_path / "taught", teacher_weight=1e-9)
    alone = weights_of(whole_run(made_once, name))
    same(weights_of(tmp_path / "taught"), alone, 1e-6)
    if name == "tags":  # Otherwise, the teacher does matter.
        run(options, tmp_path / "labeled")
        assert np.abs(weights_of(tmp_path / "labeled") - alone).max() > 1e-4


def test_teacher_that_saved_a_better_model_meanwhile_is_refused(tmp_path: Path) -> None:
    """Otherwise, the logits of the new weights would have the name of the old ones in the cache."""
    options = make_student(tmp_path, "tags")
    config, teacher = TrainConfig(**options), Path(options["teacher"])
    inputs = run_inputs(config, silent)
    model = load_trained(teacher)
    model.model.weights[-1].assign_add(tf.ones_like(model.model.weights[-1]))
    evaluated = Evaluated(2, True, {"loss": 0.4, "examples": 1})
    save_best(model.model, model.files, evaluated, RunFolder(teacher))
    config = dataclasses.replace(config, task=inputs.labels.task)
    with pytest.raises(InputError, match="the run saved a better model meanwhile"):
        open_logits(config, inputs, silent)


def test_texts_that_change_before_the_teacher_reads_them_are_refused(tmp_path: Path) -> None:
    config = TrainConfig(**make_student(tmp_path, "single", unlabelled=str(tmp_path / "more.csv")))
    inputs = run_inputs(config, silent)
    for name in ("data/train.tsv", "more.csv"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text.replace("very", "good"))
        with pytest.raises(InputError, match=rf"{name}: changed meanwhile; run the command again"):
            open_logits(config, inputs, silent)
        (tmp_path / name).write_text(text)
    assert len(open_logits(config, inputs, silent)) == 2


@pytest.mark.slow
def test_two_replicas_make_the_same_updates(tmp_path: Path) -> None:
    """Also if steps are compiled, on two replicas only."""
    runs = []
    for name, compile in (("tags", "off"), ("all weights", "on")):
        options = make_student(tmp_path / name, name)
        options["unlabelled"] = str(tmp_path / name / "more.csv")
        own = {"compile": compile, "replicas": 2, "out": str(tmp_path / f"{name} 2")}
        runs.append(options | own)
        run(options, tmp_path / f"{name} 1", micro_batch=16)
    output(SEVERAL_RUNS, json.dumps(runs), env=QUICK_XLA)
    for name in FAST:
        one, two = (weights_of(tmp_path / f"{name} {count}") for count in (1, 2))
        same(one, two, 1e-5)


def logits(options: dict[str, Any]) -> list[TeacherLogits]:
    config = TrainConfig(**options)
    inputs = run_inputs(config, silent)
    config = dataclasses.replace(config, task=inputs.labels.task)
    return open_logits(config, inputs, silent)


def predicted(options: dict[str, Any], name: str, tsv: Path) -> np.ndarray:
    """Return what `predict` would compute of train.tsv, as the student's outputs."""
    own = load_trained(Path(options["teacher"]))
    classifier = TextClassifier(options["teacher"], 8, None)
    table, labels = read_tsv(tsv), CASES[name].labels
    pairs = table["text_pair"] if labels.pairs else [None] * len(table)
    store = classifier.tokenize(list(zip(table["text"], pairs, strict=True)))
    found = Predictor(own.model, 8)(store, silent)
    if not labels.names:
        theirs = own.files.labels
        score = found * theirs.std + theirs.mean
        known = run_inputs(TrainConfig(**options), silent).labels
        return (score - known.mean) / known.std
    names = own.files.labels.names
    found = found[..., [names.index(label) for label in labels.names]]
    if found.ndim == 2:
        return found
    counts = [len(text.split()) for text in table["text"]]
    rows = [sentence[:count] for sentence, count in zip(found, counts, strict=True)]
    missing = [np.full((n - len(r), r.shape[1]), np.nan) for n, r in zip(counts, rows, strict=True)]
    return np.concatenate([part for pair in zip(rows, missing, strict=True) for part in pair])


@pytest.mark.parametrize("name", ["pair", "regression", "multi-label", "tags"])
def test_logits_are_those_of_predictions_in_the_order_of_the_classes(
    tmp_path: Path, name: str
) -> None:
    """The teacher has another vocabulary, and its classes have another order."""
    options = make_student(tmp_path, name)
    if name == "tags":  # The teacher reads only the first word.
        shutil.rmtree(options["teacher"])
        labels = reordered(CASES[name].labels)
        make_teacher(Path(options["teacher"]), labels, max_seq_length=3)
    (found,) = logits(options)
    expected = predicted(options, name, Path(options["data"], "train.tsv"))
    np.testing.assert_allclose(found.rows, expected, rtol=1e-4, atol=1e-4)
    assert np.isnan(found.rows).any() == (name == "tags")


@pytest.mark.parametrize(("form", "windows"), [("huggingface", 2), ("google", 1)])
def test_teacher_of_another_program_has_the_logits_of_its_run(
    tmp_path: Path, form: str, windows: int
) -> None:
    options = make_student(tmp_path, "single")
    (expected,) = logits(options)
    api.export(run=options["teacher"], format=form, out=str(tmp_path / "theirs"))
    # In two windows of 14 tokens, a text has up to 24 tokens, more than the 9 of the longest one.
    length = {"max_seq_length": 24 if windows == 1 else 14, "windows": windows}
    notes, theirs = Notes(), options | length | {"teacher": str(tmp_path / "theirs")}
    run_inputs(TrainConfig(**theirs), notes)
    (found,) = logits(theirs)
    # Google's format has no names, so its outputs are the classes in the order of their numbers.
    order = [1, 2, 0] if form == "google" else [0, 1, 2]
    np.testing.assert_allclose(found.rows, expected.rows[:, order], rtol=1e-4, atol=1e-4)
    numbered = (
        "theirs has no class names, so its outputs are taken in the order of the classes 0, 1, 2"
    )
    assert any(numbered in line for line in notes.lines) == (form == "google")


def test_pairs_for_models_without_segments_are_told(tmp_path: Path) -> None:
    options, theirs, notes = make_student(tmp_path, "pair"), tmp_path / "theirs", Notes()
    api.export(run=options["teacher"], format="huggingface", out=str(theirs))
    settings = json.loads((theirs / "tokenizer_config.json").read_text())
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    (theirs / "tokenizer_config.json").write_text(json.dumps(settings))
    told = "theirs: its tokenizer in transformers gives no token_type_ids"
    run_inputs(TrainConfig(**options | {"teacher": str(theirs)}), notes)
    assert sum(told in line for line in notes.lines) == 1
    own = {"teacher": None, "bert_config": None, "init_checkpoint": str(theirs)}
    begun: list[str] = []
    run_inputs(TrainConfig(**options | own), silent, begun.append)
    assert sum(told in line for line in begun) == 1


def test_unlabeled_sentence_counts_the_words_that_both_models_read(tmp_path: Path) -> None:
    """The teacher reads two words, and the students up to one and up to three."""
    options = make_student(tmp_path, "tags", unlabelled=str(tmp_path / "more.csv"))
    shutil.rmtree(options["teacher"])
    make_teacher(Path(options["teacher"]), CASES["tags"].labels, max_seq_length=4)
    found, task = logits(options), make_task(CASES["tags"].labels)
    for student, both in ((1, 1), (3, 2)):
        config = TrainConfig(**options | {"max_seq_length": student + 2})
        inputs = run_inputs(config, silent)
        tokenization = tokenizations(inputs.vocabulary, config)[0]
        store = open_store(inputs.tsvs[0], task, tokenization, silent)
        joined, labels = join_teacher(config, inputs, task, store, found, silent)
        assert (labels.count, len(joined)) == (44, 57)
        assert store.words.max() == student
        np.testing.assert_array_equal(joined.weights, [*store.weights, *[both] * 13])
        made = labels.of_window(joined, np.array([50, 3]))
        tokens = [
            joined.token_ids[joined.offsets[row] : joined.offsets[row + 1]] for row in (50, 3)
        ]
        np.testing.assert_array_equal(made.token_ids, np.concatenate(tokens))
        assert made.labels.shape == (2, student, 6)
        np.testing.assert_array_equal(made.labels[:, :, 0], [[0] * student, [1] * student])
        np.testing.assert_array_equal(made.labels[0, 0, 1:], found[1].rows[found[1].offsets[6]])
        with pytest.raises(
            InputError, match=r"more\.csv: has other texts .*: it has 13 texts, and the"
        ):
            join_teacher(config, inputs, task, store, [found[0], found[0]], silent)


def test_interrupted_computation_continues_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher_logits, "_TOGETHER", 8)
    options = make_student(tmp_path, "tags")
    (whole,) = logits(options)
    expected = whole.rows.copy()
    shutil.rmtree(tmp_path / "cache" / "teachers")
    batches, true = list[int](), Predictor.__call__

    def counted(self: Any, store: Any, *rest: Any) -> Any:
        batches.append(len(store))
        if len(batches) == 4:
            raise KeyboardInterrupt
        return true(self, store, *rest)

    monkeypatch.setattr(Predictor, "__call__", counted)
    with pytest.raises(KeyboardInterrupt):
        logits(options)
    (unfinished,) = (tmp_path / "cache" / "teachers").iterdir()
    with unfinished.open("ab") as file:
        file.write(b"a part of a row")
    (again,) = logits(options)
    assert batches == [8] * 6 + [4]  # Of 44 sentences, 24 were kept.
    np.testing.assert_array_equal(again.rows, expected)
    assert not unfinished.exists()


def test_processes_without_locks_do_not_write_to_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process is computing the same logits."""
    monkeypatch.setattr(teacher_logits, "_TOGETHER", 8)
    options = make_student(tmp_path, "single")
    (whole,) = logits(options)
    expected = whole.rows.copy()
    (folder,) = (tmp_path / "cache" / "teachers").iterdir()
    shutil.rmtree(folder)
    folder.with_name(f"{folder.name}.unfinished").write_bytes(bytes(300))
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks")))
    (again,) = logits(options)
    np.testing.assert_array_equal(again.rows, expected)
    assert [*folder.parent.iterdir()] == [folder]


@pytest.mark.parametrize("occupied", [False, True])
def test_error_says_why_a_teacher_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, occupied: bool
) -> None:
    options = make_student(tmp_path, "single")
    monkeypatch.setattr(Here, "ask", lambda *_: {"out_of_memory": True})
    message = "^the teacher does not fit in memory; raise `memory_limit`, or choose a smaller `te"
    if occupied:
        monkeypatch.setattr(device_memory, "gpus", lambda: ["GPU"])
        occupy_gpus(monkeypatch)
        message = "this process already uses the GPU, so the teacher does not fit in memory; start"
    with pytest.raises(RunError, match=message):
        logits(options)


def test_batch_that_does_not_fit_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = make_student(tmp_path, "single")
    (whole,) = logits(options)
    expected = whole.rows.copy()
    shutil.rmtree(tmp_path / "cache" / "teachers")
    true, calls = forward.logits_of_texts_and_passages, []

    def limited(model: Any, tokens: Any) -> Any:
        def check(splits: np.ndarray) -> np.int32:
            calls.append(len(splits) - 1)
            if len(splits) > 12:
                raise MemoryError
            return np.int32(0)

        with tf.control_dependencies([tf.numpy_function(check, [tokens.row_splits], tf.int32)]):
            return tf.identity(true(model, tokens))

    monkeypatch.setattr(forward, "logits_of_texts_and_passages", limited)
    (found,) = logits(options)
    assert max(calls) > 11 >= min(calls)
    np.testing.assert_allclose(found.rows, expected, atol=1e-5)


def test_damaged_logits_are_computed_again(tmp_path: Path) -> None:
    options = make_student(tmp_path, "single")
    (first,) = logits(options)
    expected = first.rows.copy()
    (folder,) = (tmp_path / "cache" / "teachers").iterdir()
    for jobs, damage in enumerate(DAMAGES, 2):
        damage(folder / LOGITS)
        (again,) = logits(options)
        assert Here.jobs == jobs, damage
        np.testing.assert_array_equal(again.rows, expected)
    logits(options)
    assert Here.jobs == jobs


def test_killed_run_resumes_bit_identically_but_not_with_another_teacher_or_other_texts(
    tmp_path: Path,
) -> None:
    """It does not need its teacher while the logits are in the cache; files may have moved.

    Running out of memory changes no update, with dropout and several windows of a sentence.
    """
    more = tmp_path / "more.csv"
    options = make_student(tmp_path, "tags", unlabelled=str(more), windows=2)
    options |= {"max_seq_length": 5, "keep": 9}
    started = run(options, tmp_path / "whole")[0]
    assert isinstance(started, Started)
    assert (started.train_examples, started.unlabeled_examples) == (44, 13)
    killed_copy(tmp_path / "whole", tmp_path / "run", 2)
    other, texts = shutil.copytree(tmp_path / "run", tmp_path / "other"), more.read_text()
    for rows, message in (
        (13, "unlabelled changed since this run began"),
        (1, r"more\.csv: has other texts than when this run began: it has 1 text,"),
    ):
        more.write_text("text\n" + "bad food\n" * rows)
        with pytest.raises(InputError, match=message):
            list(resume(other, {}, silent))
    more.write_text(texts)
    moved = {"unlabelled": str(more.rename(tmp_path / "moved.csv"))}
    with pytest.raises(InputError, match=r"more\.csv: .*choose another file with `unlabelled`"):
        list(resume(other, {}, silent))
    teacher = Path(options["teacher"]).rename(tmp_path / "moved")
    api.train(resume=tmp_path / "run", **moved)
    assert Here.jobs == 2
    assert result(tmp_path / "run") == result(tmp_path / "whole")
    shutil.rmtree(tmp_path / "cache" / "teachers")
    with pytest.raises(InputError, match=r"teacher: this teacher is gone, and .*; set `teacher` t"):
        list(resume(other, moved, silent))
    make_teacher(Path(options["teacher"]), CASES["tags"].labels, max_seq_length=7)
    with pytest.raises(InputError, match="teacher changed since this run began"):
        list(resume(other, moved, silent))
    shutil.rmtree(options["teacher"])
    options_now = moved | {"teacher": str(teacher)}
    again = under(Failing({6}, training=True), resume(other, options_now, silent))
    assert [e.update for e in again if isinstance(e, OutOfMemory)] == [4]
    same(weights_of(other), weights_of(tmp_path / "whole"), 1e-5)


def test_process_of_its_own_computes_the_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = make_student(tmp_path, "single")
    (expected,) = logits(options)
    rows = expected.rows.copy()
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.undo()
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    notes = Notes()
    config = TrainConfig(**options)
    (found,) = open_logits(config, run_inputs(config, notes), notes)
    np.testing.assert_allclose(found.rows, rows, rtol=1e-5)


def test_plan_depends_on_unlabeled_texts_but_not_on_the_teacher(tmp_path: Path) -> None:
    options = make_student(tmp_path, "single")
    plain = options | {"teacher": None}
    digests = []
    for own in (plain, options, options | {"unlabelled": str(tmp_path / "more.csv")}):
        config = TrainConfig(**own)
        digests.append(PlanRequest(config, run_inputs(config, silent)).digest())
    assert digests[0] == digests[1] != digests[2]


ERRORS = {
    "gone": "gone: there is no such checkpoint; set `teacher` to a folder",
    "none": "`teacher` none has no weights",
    "encoder": "encoder: has no head of a classifier; choose a fine-tuned classifier",
    "classes": r"classes has the labels \(a, b, c\), but the data are classification \(0, 1, 2\)",
    "two": r"two has 2 outputs \(0, 1\), but the data are classification",
    "scores": "scores has 1 output, but|scores has the problem_type regression",
    "pairs": "pairs reads pairs of texts, but the data are single texts",
    "pretrained": "pretrained: was pretrained, so it has no classes; choose a fine-tuned",
    "untrained": "untrained: this run has no best checkpoint yet",
}


@pytest.mark.parametrize("name", ERRORS)
def test_teacher_that_cannot_teach_is_an_error_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    options = make_student(tmp_path, "single")
    monkeypatch.chdir(tmp_path)
    classes = CASES["single"].labels
    made = {
        "classes": dataclasses.replace(classes, names=["a", "b", "c"]),
        "two": dataclasses.replace(classes, names=["0", "1"], values=["0", "1"]),
        "scores": CASES["regression"].labels,
        "pairs": CASES["pair"].labels,
        "encoder": classes,
        "untrained": classes,
    }
    if name in made:
        make_teacher(tmp_path / name, made[name])
    if name == "pretrained":
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("task: masked-lm\ntext: reviews.txt\n")
    if name == "untrained":
        shutil.rmtree(tmp_path / "untrained/best")
    if name == "encoder":
        api.export(run="encoder", format="google", out=str(tmp_path / "google"))
        reader = tf.train.load_checkpoint(str(tmp_path / "google/bert_model.ckpt"))
        kept = [n for n in reader.get_variable_to_shape_map() if n.startswith("bert/")]
        shutil.rmtree(tmp_path / "encoder")
        shutil.copytree(tmp_path / "google", tmp_path / "encoder")
        tf.raw_ops.SaveV2(
            prefix=str(tmp_path / "encoder/bert_model.ckpt"),
            tensor_names=kept,
            shape_and_slices=[""] * len(kept),
            tensors=[reader.get_tensor(n) for n in kept],
        )
    with pytest.raises(BertAccumError, match=ERRORS[name]) as error:
        api.train(**options | {"teacher": name, "out": "out"})
    assert error.value.exit_code == 2
    assert not (tmp_path / "out").exists()
