"""Students and teachers for tests, whose logits are computed in the process of the test."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from small import scatter, write_small_model
from test_task_updates import CASES, options_of, write_case

from bertaccum.bert.encoder_config import read_bert_config
from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.options.commands import TrainConfig
from bertaccum.runs.folder import RunFolder
from bertaccum.system.progress import silent
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.model_files import ModelFiles
from bertaccum.training import teacher_logits
from bertaccum.training.checkpoints import save_best
from bertaccum.training.events import Evaluated
from bertaccum.training.recipe import build_model

# In another order than that of the students' data, and with other pieces.
WORDS = [*SPECIAL_TOKENS, "bad", "##ry", "good", "ve", "was", "food", "the"]


class Here:
    """A stand-in for `ChildProcess` that computes logits in this process, and counts its jobs."""

    jobs = 0

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        Here.jobs += 1
        teacher_logits.write_logits(job, silent)
        return {"done": True}


_MADE, _TEACHERS = tempfile.TemporaryDirectory(), dict[str, Path]()


def make_teacher(folder: Path, labels: Labels, **options: Any) -> Path:
    """Create a run with random weights, another vocabulary and other sizes; return its folder."""
    what = repr((labels, options))
    if what not in _TEACHERS:
        made = Path(_MADE.name) / str(len(_TEACHERS))
        _TEACHERS[what] = _make_teacher(made, labels, **options)
    return shutil.copytree(_TEACHERS[what], folder)


def _make_teacher(folder: Path, labels: Labels, **options: Any) -> Path:
    words = folder.parent / f"{folder.name}.txt"
    words.write_text("\n".join(WORDS))
    sizes = {"hidden_size": 12, "num_attention_heads": 3}
    encoder = read_bert_config(write_small_model(words.with_suffix(".json"), words, **sizes))
    values = {"data": str(folder), "init_checkpoint": "none", "max_seq_length": 20}
    config = TrainConfig(**values | {"task": labels.task} | options)
    vocabulary = Vocabulary(WORDS)
    model = build_model(config, ModelSource("t", encoder, vocabulary, None), labels.outputs)
    scatter(model)
    run = RunFolder(folder)
    run.create(config, {})
    evaluated = Evaluated(1, True, {"loss": 0.5, "examples": 1})
    save_best(model, ModelFiles(encoder, vocabulary, labels), evaluated, run)
    return folder


def reordered(labels: Labels) -> Labels:
    """Return the same classes in another order, or scores of another mean and deviation."""
    names = labels.names[1:] + labels.names[:1]
    numbers = [str(number) for number in range(len(names))]
    return dataclasses.replace(labels, values=numbers, names=names, mean=0.5, std=1.7)


def make_student(folder: Path, name: str, **options: Any) -> dict[str, Any]:
    """Write the data and the teacher of a case; return the options of a student without `out`."""
    case = CASES[name]
    folder.mkdir(parents=True, exist_ok=True)
    data = write_case(folder / "data", case)
    labels = case.labels
    if not labels.names:
        labels = dataclasses.replace(labels, mean=2.0, std=0.8)
    teacher = make_teacher(folder / "teacher", reordered(labels))
    more = folder / "more.csv"
    texts = [f"the {'very ' * (n % 6)}{('bad', 'good')[n % 2]} food" for n in range(13)]
    rows = [f"{text},{text}" if labels.pairs else text for text in texts]
    more.write_text("\n".join(["text,text_pair" if labels.pairs else "text", *rows]))
    values = options_of(case, data, folder, eval_every=100, teacher=str(teacher), **options)
    return {key: value for key, value in values.items() if key != "out"}


def same(one: np.ndarray, two: np.ndarray, within: float) -> None:
    np.testing.assert_allclose(one, two, rtol=0, atol=within)
