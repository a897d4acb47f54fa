"""Each kind of task and each loss: the same updates for any micro-batch, replicas, OOM or kill.

All tests use one table of cases. The reference is a plain tf_keras loop over whole windows, whose
losses and weighted means are computed by tf_keras.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from forked import QUICK_XLA, SEVERAL_RUNS, output
from resuming import killed_copy
from scripted import Failing, under
from small import ONE_LAYER, scatter, write_small_task

from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.packed_tokens import encoder_inputs, unpack
from bertaccum.bert.tokenization import SEGMENT, TAG
from bertaccum.data.token_store import TokenStore
from bertaccum.data.tokenizing import with_tags
from bertaccum.data.window_cuts import cut_by_count, make_cut
from bertaccum.data.windows import make_window, window_rows
from bertaccum.inference.trained_model import load_trained
from bertaccum.options.commands import TrainConfig
from bertaccum.options.task_names import MULTI_LABEL, REGRESSION, TOKEN_CLASSIFICATION
from bertaccum.planning.plan import make_plan
from bertaccum.system.progress import silent
from bertaccum.tasks.forward import logits_of
from bertaccum.tasks.head import build_classifier, build_tagger
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.task import Task
from bertaccum.tasks.token_classification import TokenClassification
from bertaccum.training.events import OutOfMemory
from bertaccum.training.inputs import weighted
from bertaccum.training.recipe import make_optimizer
from bertaccum.training.step import make_update
from bertaccum.training.train import resume, train

CONFIG = TrainConfig(learning_rate=5e-4, target_batch=32, dropout=0.0, clip_norm=0.2)
UPDATES = 6
KERAS = tf_keras.losses


@dataclass(frozen=True)
class Case:
    """A kind of task, or a loss.

    Args:
      labels: Labels of the dataset.
      label: Returns the cell of the label column for the row with a number.
      loss: tf_keras' loss of each example, given labels and logits.
      options: Options of `train`.
      row_weights: Whether the rows have weights.
    """

    labels: Labels
    label: Callable[[int], str]
    loss: Callable[[Any, Any], tf.Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    row_weights: bool = False


def crossentropy(labels: Any, logits: Any) -> tf.Tensor:
    return KERAS.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def smoothed(labels: Any, logits: Any) -> tf.Tensor:
    targets = tf.one_hot(labels, logits.shape[1])
    return KERAS.categorical_crossentropy(targets, logits, from_logits=True, label_smoothing=0.1)


def squared(labels: Any, logits: Any) -> tf.Tensor:
    return KERAS.mean_squared_error(labels[:, tf.newaxis], logits)


def sigmoid(labels: Any, logits: Any) -> tf.Tensor:
    return KERAS.binary_crossentropy(labels, logits, from_logits=True)


# The weight of each tag.
TAG_WEIGHTS = np.array([0.5, 3, 1, 0, 1], np.float32)


def of_words(tags: Any, logits: Any) -> tf.Tensor:
    """Return the weighted mean loss of the words of each sentence, given -1 for other tokens."""
    weights = tf.where(tags >= 0, tf.gather(TAG_WEIGHTS, tf.maximum(tags, 0)), 0.0)
    losses = crossentropy(tf.maximum(tags, 0), logits) * weights
    return tf.math.divide_no_nan(tf.reduce_sum(losses, 1), tf.reduce_sum(weights, 1))


THREE = Labels.numbered(3)
TAGS = dataclasses.replace(Labels.numbered(5), task=TOKEN_CLASSIFICATION)
PAIRS = dataclasses.replace(THREE, pairs=True)
SCORES = Labels([], [], task=REGRESSION, mean=2.0, std=0.8)
SETS = dataclasses.replace(Labels.numbered(4), task=MULTI_LABEL)


def rare(row: int) -> str:
    """Return class 0 for most rows, so that the windows' class weights differ."""
    return "0" if row % 5 else str(1 + row % 2)


def cyclic(row: int) -> str:
    return str(row % 3)


def several(row: int) -> str:
    return "|".join(str(n) for n in range(4) if row >> n & 1) or "|"


def tags_of_row(row: int) -> str:
    """Return the tags of a sentence; the numbers of words of sentences of one length differ."""
    return " ".join(str(row * word % 5) for word in range(1 + row % 4))


CASES = {
    "single": Case(THREE, cyclic, crossentropy),
    "pair": Case(PAIRS, cyclic, crossentropy),
    "regression": Case(SCORES, lambda row: f"{1 + row % 7 / 3:.3f}", squared),
    "multi-label": Case(SETS, several, sigmoid),
    "weighted pairs of scores": Case(
        dataclasses.replace(SCORES, pairs=True), lambda row: f"{row % 9 / 2}", squared, {}, True
    ),
    "tags": Case(TAGS, tags_of_row, of_words, {"class_weight": "0=0.5,1=3,3=0"}, True),
    "all weights": Case(
        THREE, rare, smoothed, {"class_weight": "1=3,2=0.5", "label_smoothing": 0.1}, True
    ),
}
# Together, these cases have all tasks and both kinds of weights.
FEW = ("multi-label", "weighted pairs of scores", "tags", "all weights")
# Out of memory at each of the four micro-steps of an update.
POSITIONS = dict(zip(FEW, (8, 7, 5, 6), strict=True))


def row_weight(row: int) -> float:
    """Return a weight from 0 to 4; some rows have weight 0."""
    return row * 7 % 9 / 2


def encoded(case: Case, store: TokenStore) -> TokenStore:
    """Return a store with the labels, the weights and, for pairs, the segments of a case."""
    import pandas as pd

    rows = range(len(store))
    table = pd.DataFrame({"row": rows, "label": [case.label(row) for row in rows]})
    table["text"] = table["label"]  # It has as many words.
    labels = make_task(case.labels).encode(Path("train.tsv"), table)
    weights = np.array([row_weight(row) if case.row_weights else 1 for row in rows], np.float32)
    tokens = store.token_ids
    if case.labels.pairs:
        second = np.zeros(len(tokens), np.int32)
        for start, end in zip(store.offsets[:-1], store.offsets[1:], strict=True):
            second[(start + end) // 2 : end] = 1
        tokens = tokens + second * SEGMENT
    if case.labels.task == TOKEN_CLASSIFICATION:
        words = np.minimum((labels >= 0).sum(axis=1), np.diff(store.offsets) - 1)
        first = store.offsets[:-1] + 1
        tokens = tokens.copy()
        tokens[
            np.concatenate([np.arange(a, a + n) for a, n in zip(first, words, strict=True)])
        ] += TAG
        tokens = with_tags(tokens, store.offsets, labels, np.arange(5))
        weights = weights * np.float32(words)
    found = dataclasses.replace(store, token_ids=tokens, labels=labels, weights=weights)
    result, task = weighted(found, task_of(case), case.options.get("class_weight"), Path())
    if isinstance(task, TokenClassification):
        assert task == task_of(case)
        read = [TAG_WEIGHTS[own[:n]].sum() for own, n in zip(labels, words, strict=True)]
        of_rows = [row_weight(row) for row in rows]
        np.testing.assert_allclose(result.weights, np.multiply(of_rows, read), rtol=1e-6)
    return result


def task_of(case: Case) -> Task:
    task = make_task(case.labels, smoothing=case.options.get("label_smoothing", 0.0))
    if isinstance(task, TokenClassification):
        task = dataclasses.replace(task, weights=tuple(TAG_WEIGHTS.tolist()))
    return task


def model_of(case: Case, dropout: float = 0.0) -> tf_keras.Model:
    tf_keras.utils.set_random_seed(1)
    if case.labels.task == TOKEN_CLASSIFICATION:
        encoder = build_encoder(ONE_LAYER, dropout, "positions")
        return build_tagger(encoder, ONE_LAYER, case.labels.outputs, dropout)
    return build_classifier(build_encoder(ONE_LAYER, 0.0), ONE_LAYER, case.labels.outputs)


def flat(model: tf_keras.Model) -> np.ndarray:
    return np.concatenate([w.numpy().ravel() for w in model.trainable_variables])


def windows_of(store: TokenStore) -> list[np.ndarray]:
    """Return the rows of each window; the fourth window has only four rows."""
    numbers = range(UPDATES)
    return [window_rows(n, len(store), CONFIG.target_batch, CONFIG.seed)[1] for n in numbers]


def apply_plainly(
    optimizer: tf_keras.optimizers.Optimizer, model: tf_keras.Model, gradients: list[Any]
) -> None:
    """Clip the gradients of a whole window, and apply them."""
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
    clipped, _ = tf.clip_by_global_norm(dense, CONFIG.clip_norm)
    optimizer.apply_gradients(zip(clipped, model.trainable_variables, strict=True))


def reference(case: Case, store: TokenStore) -> tuple[np.ndarray, list[float]]:
    """Train on whole windows, padded to the maximum; return the weights and the losses."""
    model, losses = model_of(case), []
    optimizer = make_optimizer(CONFIG, UPDATES, 1).inner
    for rows in windows_of(store):
        tokens = tf.ragged.constant(
            [store.token_ids[store.offsets[r] : store.offsets[r + 1]] for r in rows], tf.int32
        ).to_tensor(shape=[None, 32])
        ids, segments = unpack(tokens)
        every = tf.zeros_like(ids) + tf.range(ids.shape[1])
        positions = every if case is CASES["tags"] else None
        inputs = encoder_inputs(ids, tf.cast(ids != 0, tf.int32), segments, positions)
        weights = tf.constant(store.weights[rows])
        with tf.GradientTape() as tape:
            labels = store.labels[rows] if case is not CASES["tags"] else tokens // TAG - 1
            of_examples = case.loss(labels, model(inputs, training=True))
            loss = tf.reduce_sum(weights * of_examples) / tf.reduce_sum(weights)
        apply_plainly(optimizer, model, tape.gradient(loss, model.trainable_variables))
        losses.append(float(loss))
    return flat(model), losses


@pytest.fixture(scope="module")
def references(store: TokenStore) -> Callable[[Case], tuple[np.ndarray, list[float]]]:
    """Return a function that computes the reference of each case only once."""
    found: dict[int, Any] = {}

    def of(case: Case) -> tuple[np.ndarray, list[float]]:
        if id(case) not in found:
            found[id(case)] = reference(case, encoded(case, store))
        return found[id(case)]

    return of


# Runs below have a single micro-batch in each window.
@pytest.mark.parametrize(
    ("name", "micro_batch"),
    [
        *((name, 12) for name in FEW),
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in ("tags", "all weights")),
    ],
)
def test_same_updates_for_any_micro_batch(
    store: TokenStore, references: Any, name: str, micro_batch: int
) -> None:
    case = CASES[name]
    data, plan, model = encoded(case, store), make_plan(32, micro_batch), model_of(case)
    optimizer = make_optimizer(CONFIG, UPDATES, plan.accumulation_steps)
    update = make_update(task_of(case), model, optimizer, 0, plan.accumulation_steps > 1)
    results = [update(make_window(data, rows, plan.micro_batch)) for rows in windows_of(data)]
    expected, losses = references(case)
    np.testing.assert_allclose(flat(model), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose([r["loss"] for r in results], losses, rtol=1e-5)


@pytest.mark.parametrize(
    "name", ["all weights", *(pytest.param(name, marks=pytest.mark.slow) for name in FEW[:2])]
)
def test_same_updates_if_steps_are_compiled(store: TokenStore, references: Any, name: str) -> None:
    case, shapes = CASES[name], [(8, 12), (12, 20)]
    data, model = encoded(case, store), model_of(case)
    optimizer = make_optimizer(CONFIG, UPDATES, 3)
    update = make_update(task_of(case), model, optimizer, 0, True, compile=True)
    cut = make_cut("cost", data.largest, allowed=shapes)
    windows = [make_window(data, rows, 12, cut, allowed=shapes) for rows in windows_of(data)]
    losses = [update(window)["loss"] for window in windows]
    padded = np.concatenate([np.zeros((0, 2)) if w.padded is None else w.padded for w in windows])
    assert {*map(tuple, padded.tolist())} == {*shapes}
    expected, of_windows = references(case)
    np.testing.assert_allclose(flat(model), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(losses, of_windows, rtol=1e-5)


def test_masks_of_tags_do_not_depend_on_what_fills_up_micro_batches(store: TokenStore) -> None:
    """Each micro-batch computes the words of its longest sentence; compiled ones, all tokens."""
    case, shapes, found = CASES["tags"], [(12, 20)], []
    data = encoded(case, store)
    for micro_batch, compile in ((5, False), (12, True)):
        model, optimizer = model_of(case, 0.3), make_optimizer(CONFIG, UPDATES, 3)
        update = make_update(task_of(case), model, optimizer, 0, True, compile=compile)
        cut = make_cut("cost", data.largest, allowed=shapes) if compile else cut_by_count
        allowed = shapes if compile else ()
        for rows in windows_of(data)[:3]:
            update(make_window(data, rows, micro_batch, cut, allowed=allowed))
        found.append(flat(model))
    np.testing.assert_allclose(*found, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_mean_over_each_micro_batch_would_be_another_update(store: TokenStore) -> None:
    """Dividing by the weights of each micro-batch, as others do, changes the update."""
    case = CASES["all weights"]
    data, model = encoded(case, store), scatter(model_of(case))
    window = make_window(data, windows_of(data)[0], 8)
    labels, weights = window.labels, window.weights
    assert weights is not None
    tokens = tf.RaggedTensor.from_row_splits(window.token_ids, window.row_splits)
    task = make_task(case.labels)
    losses = task.losses(logits_of(model, tokens), labels).numpy()
    whole = np.average(losses, weights=weights)
    parts = [slice(a, b) for a, b in zip(window.cuts[:-1], window.cuts[1:], strict=True)]
    wrong = np.mean([np.average(losses[part], weights=weights[part]) for part in parts])
    assert abs(wrong - whole) > 1e-3
    optimizer = make_optimizer(CONFIG, UPDATES, 4)
    right = make_update(task, model, optimizer, 0, True)(window)["loss"]
    assert right == pytest.approx(whole, rel=1e-6)


def write_case(folder: Path, case: Case) -> Path:
    """Write a data folder of 44 and 12 rows with a small encoder, and return the folder."""
    write_small_task(folder, train=4, dev=4)
    columns = ["label", "text", *(["text_pair"] if case.labels.pairs else [])]
    columns += ["weight"] if case.row_weights else []
    for name, count in (("train", 44), ("dev", 12)):
        lines = ["\t".join(columns)]
        for row in range(count):
            text = f"the food was {'very ' * (row % 5)}{('good', 'bad')[row % 2]}"
            if case is CASES["tags"]:
                text = " ".join(text.split()[: 1 + row % 4])
            cells = [case.label(row), text]
            cells += ["very good " * (row % 3) + "food"] if case.labels.pairs else []
            cells += [str(row_weight(row))] if case.row_weights else []
            lines.append("\t".join(cells))
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def options_of(case: Case, data: Path, out: Path, **options: object) -> dict[str, Any]:
    return {
        "data": str(data),
        "out": str(out),
        "task": case.labels.task,
        "bert_config": str(data / "bert_config.json"),
        "init_checkpoint": "none",
        "max_seq_length": 24,
        "target_batch": 16,
        "micro_batch": 5,
        "cut": "count",
        "epochs": 4.0,
        "max_updates": UPDATES,
        "learning_rate": 5e-4,
        "save_every": "1",
        **case.options,
        **options,
    }


def weights_of(out: Path) -> np.ndarray:
    return flat(load_trained(out).model)


def whole_run(made_once: Callable[..., Path], name: str) -> Path:
    """Return an uninterrupted run of a case, whose windows are micro-batches; tests share it."""
    case = CASES[name]

    def make(folder: Path) -> None:
        data = write_case(folder / "data", case)
        # With this metric, later evaluations replace the best checkpoint.
        more = {"micro_batch": 16, "eval_every": UPDATES, "keep": UPDATES}
        list(train(TrainConfig(**options_of(case, data, folder / "run", **more)), silent))

    return made_once(f"whole run, {name}", make) / "run"


@pytest.mark.parametrize(("name", "position"), POSITIONS.items())
@pytest.mark.slow
def test_out_of_memory_kill_and_resume_change_no_update(
    tmp_path: Path, made_once: Callable[..., Path], name: str, position: int
) -> None:
    """With dropout: the run is killed before update 4 is saved; update 5 runs out of memory."""
    whole = whole_run(made_once, name)
    killed = killed_copy(whole, tmp_path / "killed", 3)
    # Updates 4 and 5 have four micro-steps; memory runs out at one of those of update 5.
    again = under(Failing({position}, training=True), resume(killed, {"micro_batch": 5}, silent))
    assert [e.update for e in again if isinstance(e, OutOfMemory)] == [5]
    np.testing.assert_allclose(weights_of(killed), weights_of(whole), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_two_replicas_make_the_same_updates(tmp_path: Path, made_once: Callable[..., Path]) -> None:
    """With dropout, in a process with two virtual devices; also if steps are compiled."""
    runs = []
    for name in FEW:
        case, data = CASES[name], write_case(tmp_path / name, CASES[name])
        more: dict[str, Any] = {"eval_every": UPDATES, "replicas": 2}
        more["compile"] = "on" if name == "all weights" else "off"
        runs.append(options_of(case, data, tmp_path / f"{name} 2", **more))
    output(SEVERAL_RUNS, json.dumps(runs), env=QUICK_XLA)
    for name in FEW:
        one, two = weights_of(whole_run(made_once, name)), weights_of(tmp_path / f"{name} 2")
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-5, err_msg=name)
