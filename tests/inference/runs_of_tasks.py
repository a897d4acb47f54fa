"""A run of each kind of task, with a best checkpoint of random weights."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from small import scatter

from bertaccum import api
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.packed_tokens import unpack
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.inference.predict import TextClassifier
from bertaccum.inference.results import EvalResult, Prediction
from bertaccum.options.commands import TrainConfig
from bertaccum.options.task_names import MULTI_LABEL, REGRESSION
from bertaccum.runs.folder import RunFolder
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.model_files import ModelFiles
from bertaccum.tasks.task import Decoding
from bertaccum.training.checkpoints import save_best
from bertaccum.training.events import Evaluated
from bertaccum.training.recipe import build_model

WORDS = [*SPECIAL_TOKENS, "good", "bad", "##ly", "food", "!"]
VOCABULARY = Vocabulary(WORDS)
# With an even number of tokens for both texts, transformers cuts long pairs as bertaccum does.
LENGTH = 13
TEXTS = ["good", "bad food", "badly good food!", "food food food", "bad bad bad good", "!"]
OTHERS = ["bad", "good", "food " * 9, "badly!", "good good", "food bad"]
ENCODER = EncoderConfig(
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    vocab_size=len(WORDS),
    max_position_embeddings=16,
)


@dataclass(frozen=True)
class Kind:
    """A kind of task, with what was fitted to it.

    Args:
      labels: Labels of the dataset.
      decoding: The saved decoding.
      cells: Label of each text in test.tsv.
      names: The same labels in a table of the user.
    """

    labels: Labels
    decoding: Decoding
    cells: list[str]
    names: list[str]


KINDS = {
    "calibrated": Kind(
        Labels(["0", "1", "2"], ["no", "some", "all"]),
        Decoding(temperature=2.5),
        ["0", "1", "2", "0", "1", "2"],
        ["no", "some", "all", "no", "some", "all"],
    ),
    "pairs": Kind(
        Labels(["0", "1"], ["no", "yes"], pairs=True),
        Decoding(),
        ["0", "1", "1", "0", "1", "0"],
        ["no", "yes", "yes", "no", "yes", "no"],
    ),
    "multi-label": Kind(
        Labels(["0", "1", "2"], ["cold", "rude", "dear"], task=MULTI_LABEL),
        Decoding(temperature=4.0, thresholds=[0.2, 0.5, 0.8]),
        ["0|2", "|", "1", "0|1|2", "2", "0"],
        ["dear, cold", ",", "rude", "cold,rude,dear", "dear", "cold"],
    ),
    "regression of pairs": Kind(
        Labels([], [], pairs=True, task=REGRESSION, mean=3.2, std=0.7),
        Decoding(),
        ["1.5", "2.0", "4.5", "3.0", "5.0", "0.5"],
        ["1.5", "2", "4.5", "3", "5", "0.5"],
    ),
}


# A classifier for each run that no test changes.
loaded_once = functools.cache(TextClassifier)


@dataclass(frozen=True)
class Run:
    kind: Kind
    folder: RunFolder
    table: Path

    @property
    def columns(self) -> list[list[str]]:
        return [TEXTS, OTHERS] if self.kind.labels.pairs else [TEXTS]

    @property
    def given(self) -> list[Any]:
        return list(zip(TEXTS, OTHERS, strict=True)) if self.kind.labels.pairs else TEXTS

    @property
    def options(self) -> dict[str, str]:
        """The options for `table`."""
        pair = {"text_pair_column": "text_pair"} if self.kind.labels.pairs else {}
        separator = {"label_separator": ","} if self.kind.labels.task == MULTI_LABEL else {}
        return {"run": str(self.folder.path), "file": str(self.table), **pair, **separator}

    @cached_property
    def tokens(self) -> dict[str, np.ndarray]:
        """The tokens of the texts, as exported models take them."""
        columns = [tf.constant(column) for column in self.columns]
        packed = Tokenizer(Tokenization(VOCABULARY, LENGTH))(*columns)
        ids, segments = unpack(packed.to_tensor())
        mask = tf.sequence_mask(packed.row_lengths(), dtype=tf.int32)
        given = {"token_ids": ids, "segment_ids": segments, "padding_mask": mask}
        return {name: tensor.numpy() for name, tensor in given.items()}

    @cached_property
    def predictions(self) -> list[Prediction]:
        return list(api.predict(self.given, run=str(self.folder.path)))

    @cached_property
    def evaluation(self) -> EvalResult:
        """The evaluation on test.tsv."""
        return api.evaluate(run=str(self.folder.path), keep=False)

    def copied(self, target: Path) -> Run:
        """Return a copy of the run that a test may change."""
        source = self.folder.path.parent
        shutil.copytree(source, target, dirs_exist_ok=True)
        config = target / "run/config.yaml"
        config.write_text(config.read_text().replace(str(source), str(target)))
        return Run(self.kind, RunFolder(target / "run"), target / "own.csv")


RunOf = Callable[[str], Run]


def write_table(path: Path, labels: list[str], columns: list[list[str]], separator: str) -> Path:
    head = ["label", "text", "text_pair"][: 1 + len(columns)]
    rows = zip(labels, *columns, strict=True)
    path.write_text("".join(separator.join(row) + "\n" for row in [head, *rows]))
    return path


def make_run(
    folder: Path, kind: Kind, encoder: EncoderConfig = ENCODER, vocabulary: Vocabulary = VOCABULARY
) -> Run:
    """Create a run with a best checkpoint of random weights."""
    (folder / "data").mkdir(parents=True)
    columns = [TEXTS, OTHERS] if kind.labels.pairs else [TEXTS]
    for split in ("dev", "test"):
        write_table(folder / f"data/{split}.tsv", kind.cells, columns, "\t")
    (folder / "data/train.tsv").touch()
    config = TrainConfig(
        data=str(folder / "data"),
        init_checkpoint="none",
        max_seq_length=LENGTH,
        task=kind.labels.task,
        best_by="loss",
    )
    outputs = kind.labels.outputs
    model = scatter(build_model(config, ModelSource("small", encoder, vocabulary, None), outputs))
    run = RunFolder(folder / "run")
    run.create(config, {})
    evaluated = Evaluated(7, True, {"loss": 0.5, "examples": 6})
    save_best(model, ModelFiles(encoder, vocabulary, kind.labels, kind.decoding), evaluated, run)
    run.append(run.eval, {"kind": evaluated.kind} | evaluated.record())
    table = write_table(folder / "own.csv", kind.names, columns, ";")
    return Run(kind, run, table)


def values(found: list[Prediction]) -> np.ndarray:
    """Return the probabilities or scores of predictions, [texts, outputs]."""
    return np.array(
        [
            [one.score] if one.probabilities is None else [*one.probabilities.values()]
            for one in found
        ]
    )
