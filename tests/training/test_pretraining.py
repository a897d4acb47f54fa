"""Masked-LM pretraining: exact updates, from text files to runs, formats and filled masks."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from forked import QUICK_XLA, SEVERAL_RUNS, output
from resuming import killed_copy
from scripted import Failing, under
from small import ONE_LAYER, TINY, scatter, write_small_model
from test_task_updates import flat, weights_of

import bertaccum
from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.google_checkpoint import GOOGLE
from bertaccum.bert.model_finder import find_model
from bertaccum.bert.packed_tokens import encoder_inputs
from bertaccum.bert.pretrained_weights import load_encoder, load_masked_head
from bertaccum.bert.vocabulary import SPECIAL_TOKENS
from bertaccum.data.masking import Masking
from bertaccum.data.token_store import TokenStore
from bertaccum.data.window_cuts import make_cut
from bertaccum.data.windows import make_window, window_rows
from bertaccum.errors import BertAccumError, ConfigError
from bertaccum.inference.trained_model import load_trained
from bertaccum.options.commands import TrainConfig
from bertaccum.options.pretraining import PretrainConfig, text_paths
from bertaccum.options.task_names import MASKED_LM
from bertaccum.planning.plan import make_plan
from bertaccum.system.progress import silent
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.masked_model import MaskedLanguageModel, build_masked_model
from bertaccum.training.events import OutOfMemory, Updated
from bertaccum.training.recipe import make_optimizer
from bertaccum.training.resume import resolved_config
from bertaccum.training.step import make_update
from bertaccum.training.train import resume

TASK = make_task(Labels([], [], task=MASKED_LM))
CONFIG = TrainConfig(learning_rate=5e-4, target_batch=32, clip_norm=0.2)
UPDATES = 6
# Entries 0 to 4 stand for the special ones.
MASKING = Masking(
    mask=4, special=np.arange(50) < 5, continuation=np.arange(50) > 40, max_seq_length=20
)
WORDS = ["the", "food", "was", "very", "good", "bad", "cold", "staff", "we", "ate"]


@pytest.fixture(scope="module")
def sequences(store: TokenStore) -> TokenStore:
    """Return the examples of `store` with a special token at the start of each."""
    tokens = store.token_ids.copy()
    tokens[store.offsets[:-1]] = 1
    return dataclasses.replace(store, token_ids=tokens)


def masked_windows(store: TokenStore) -> list[TokenStore]:
    """Return the examples of each window with the masks of its update."""
    numbers = range(UPDATES)
    rows = [window_rows(n, len(store), CONFIG.target_batch, CONFIG.seed)[1] for n in numbers]
    return [MASKING.of_window(store, own, CONFIG.seed, n) for n, own in enumerate(rows)]


def model_of(dropout: float = 0.0) -> MaskedLanguageModel:
    tf_keras.utils.set_random_seed(1)
    return build_masked_model(build_encoder(ONE_LAYER, dropout, "positions"), ONE_LAYER)


def plain_losses(model: MaskedLanguageModel, window: TokenStore) -> tf.Tensor:
    """Return the losses of all masked tokens of a window, computed with TensorFlow's own layers."""
    rows, labels = tf.RaggedTensor.from_row_splits(window.token_ids, window.offsets), window.labels
    tokens, mask = rows.to_tensor(), tf.ones_like(rows).to_tensor()
    every = tf.zeros_like(tokens) + tf.range(tf.shape(tokens)[1])
    inputs = encoder_inputs(tokens, mask, None, every)
    outputs = model.checkpoint_items["encoder"](inputs, training=True)["sequence_output"]
    rows, numbers = np.nonzero(labels[..., 0])
    chosen = tf.gather_nd(outputs, np.stack([rows, labels[rows, numbers, 0]], axis=1))
    head = model.head
    dense, norm = head.dense, head.norm
    inner = tf.nn.gelu(chosen @ dense.kernel + dense.bias, approximate=True)
    mean, variance = tf.nn.moments(inner, [-1], keepdims=True)
    vectors = tf.nn.batch_normalization(inner, mean, variance, norm.beta, norm.gamma, norm.epsilon)
    (table,) = (w for w in model.weights if "word_embeddings" in w.name)
    logits = vectors @ tf.transpose(table) + head.bias
    wanted = labels[rows, numbers, 1]
    return tf_keras.losses.sparse_categorical_crossentropy(wanted, logits, from_logits=True)


@pytest.fixture(scope="module")
def reference(sequences: TokenStore) -> tuple[np.ndarray, list[float]]:
    """Train on whole windows; return the weights and the losses."""
    model, losses = model_of(), []
    optimizer = make_optimizer(CONFIG, UPDATES, 1).inner
    for window in masked_windows(sequences):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(plain_losses(model, window))
        variables = model.trainable_variables
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]
        gradients, _ = tf.clip_by_global_norm(gradients, CONFIG.clip_norm)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        losses.append(float(loss))
    return flat(model), losses


@pytest.mark.parametrize(("micro_batch", "compile"), [(12, True), (1, False)])
def test_same_updates_for_any_micro_batch(
    sequences: TokenStore,
    reference: tuple[np.ndarray, list[float]],
    micro_batch: int,
    compile: bool,
) -> None:
    """The embeddings get the gradients of both of their uses, and the pooler none."""
    plan, model = make_plan(32, micro_batch), model_of()
    optimizer = make_optimizer(CONFIG, UPDATES, plan.accumulation_steps)
    update = make_update(TASK, model, optimizer, 0, plan.accumulation_steps > 1, compile=compile)
    shapes = [(12, 20)] if compile else []
    cut = make_cut("cost" if compile else "count", sequences.largest, allowed=shapes)
    results = []
    for window in masked_windows(sequences):
        rows = np.arange(len(window))
        results.append(update(make_window(window, rows, micro_batch, cut, allowed=shapes)))
    expected, losses = reference
    np.testing.assert_allclose(flat(model), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose([r["loss"] for r in results], losses, rtol=1e-5)
    assert not any("pooler_transform" in w.name for w in model.trainable_variables)


def test_mean_of_each_micro_batch_would_be_another_update(sequences: TokenStore) -> None:
    model, window = scatter(model_of()), masked_windows(sequences)[0]
    tokens = tf.RaggedTensor.from_row_splits(window.token_ids, window.offsets)
    losses = model.evaluated(tokens, tf.constant(window.labels))[..., 0].numpy()
    read = window.labels[..., 0] > 0
    parts = [slice(start, start + 8) for start in range(0, 32, 8)]
    wrong = np.mean([losses[part][read[part]].mean() for part in parts])
    assert abs(wrong - losses[read].mean()) > 1e-3


def write_texts(folder: Path) -> Path:
    """Write a folder with a vocabulary, an encoder and texts, and return the file of the texts."""
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *WORDS, "##s", "##y"]) + "\n")
    write_small_model(folder / "bert_config.json", folder / "vocab.txt")
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice([*WORDS, "foods"], 6 + n % 30)) for n in range(60)]
    (folder / "texts.txt").write_text("\n".join(lines) + "\n")
    return folder / "texts.txt"


def options_of(texts: Path, out: Path, **options: object) -> dict[str, Any]:
    return {
        "text": str(texts),
        "out": str(out),
        "bert_config": str(texts.parent / "bert_config.json"),
        "vocab": str(texts.parent / "vocab.txt"),
        "init_checkpoint": "none",
        "max_seq_length": 24,
        "pack": "apart",
        "target_batch": 16,
        "micro_batch": 5,
        "cut": "count",
        "epochs": 4.0,
        "max_updates": UPDATES,
        "eval_every": UPDATES,
        "learning_rate": 5e-4,
        "save_every": "1",
        **options,
    }


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of 6 updates, in a folder with its texts, that tests must not change."""
    folder = tmp_path_factory.mktemp("pretrained") / "texts"
    texts = write_texts(folder)
    bertaccum.pretrain(**options_of(texts, folder / "run", micro_batch=16, whole_words=True))
    return folder / "run"


def test_list_of_texts_may_be_longer_than_a_path(tmp_path: Path) -> None:
    """A file name can have 255 bytes, and a path 4,096."""
    for folder, count in (("", 60), ("/home/someone/texts/", 300)):
        names = [f"{folder}{number:04}.txt" for number in range(count)]
        config = PretrainConfig(text=",".join(names), init_checkpoint="none")
        assert text_paths(config.data) == names
        assert resolved_config(config, "none") == config
        with pytest.raises(ConfigError, match=f"no vocab.txt in {names[0]}, .* and {count - 5} mo"):
            find_model(config, silent)


def test_out_of_memory_kill_and_resume_change_no_update(tmp_path: Path) -> None:
    """With dropout: the run is killed before update 4 is saved; update 5 runs out of memory."""
    texts = write_texts(tmp_path / "texts, and a name with a comma")
    bertaccum.pretrain(**options_of(texts, tmp_path / "whole", micro_batch=16, keep=9))
    killed = killed_copy(tmp_path / "whole", tmp_path / "killed", 3)
    events = bertaccum.pretraining_events(resume=killed, micro_batch=5)
    again = under(Failing({6}, training=True), events)
    assert [e.update for e in again if isinstance(e, OutOfMemory)] == [5]
    expected = weights_of(tmp_path / "whole")
    np.testing.assert_allclose(weights_of(killed), expected, rtol=0, atol=1e-5)


def test_several_workers_need_a_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan would be measured before they connect, but the texts are tokenized afterwards."""
    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    found = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(found))
    options = options_of(write_texts(tmp_path / "texts"), tmp_path / "run", strategy="multi-worker")
    with pytest.raises(ConfigError, match="several workers; set `micro_batch`"):
        bertaccum.pretrain(**options | {"micro_batch": "auto"})
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_replicas_make_the_same_updates(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts")
    bertaccum.pretrain(**options_of(texts, tmp_path / "one", micro_batch=16))
    runs = [
        options_of(texts, tmp_path / "two", replicas=2),
        options_of(texts, tmp_path / "compiled", replicas=2, compile="on"),
    ]
    output(SEVERAL_RUNS.replace("train(", "pretrain("), json.dumps(runs), env=QUICK_XLA)
    expected = weights_of(tmp_path / "one")
    for name in ("two", "compiled"):
        np.testing.assert_allclose(weights_of(tmp_path / name), expected, rtol=0, atol=1e-5)


def test_number_of_tokens_ends_the_run_and_its_schedule(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts")
    given = {"max_updates": None, "max_tokens": 1000, "eval_every": 100}
    events = [*bertaccum.pretraining_events(**options_of(texts, tmp_path / "run", **given))]
    updates = [event for event in events if isinstance(event, Updated)]
    read = np.cumsum([event.tokens for event in updates])
    assert read[-2] < 1000 < read[-1] + 200
    rates = [event.learning_rate for event in updates]
    assert rates[-1] < max(rates) / 2
    # The option has its own value, although the texts are read less often.
    again = [*bertaccum.pretraining_events(resume=tmp_path / "run", epochs=4.0)]
    assert not any(isinstance(event, Updated) for event in again)


def test_masks_differ_between_epochs_but_not_between_evaluations(tmp_path: Path) -> None:
    """Without learning, the loss of an evaluation stays; the same text gives other losses."""
    texts = write_texts(tmp_path / "texts")
    # One text to train on, because other positions in the window would also give other masks.
    texts.write_text(f"{' '.join(WORDS * 2)}\n{' '.join(WORDS[::-1] * 2)}\n")
    given = {"learning_rate": 1e-30, "eval_every": 1, "dropout": 0.0, "target_batch": 64}
    events = [*bertaccum.pretraining_events(**options_of(texts, tmp_path / "run", **given))]
    trained = [event.loss for event in events if isinstance(event, Updated)]
    assert len(trained) == 4 == len({*trained})
    evaluated = [event.loss for event in events if isinstance(event, bertaccum.Evaluated)]
    assert len(evaluated) >= 4
    assert len({*evaluated}) == 1


def test_resume_refuses_another_column_of_texts(pretrained: Path) -> None:
    with pytest.raises(bertaccum.ConfigError, match=r"`text_column` to other \(was text\)"):
        bertaccum.pretrain(resume=pretrained, text_column="other")


def test_fine_tuning_starts_from_the_encoder(pretrained: Path, trained: Path) -> None:
    """A run takes the encoder, another pretraining run also the head."""
    own = load_trained(pretrained).model
    folder = pretrained.parent
    result = bertaccum.pretrain(
        **options_of(folder / "texts.txt", folder / "again", max_updates=0)
        | {"init_checkpoint": str(pretrained), "bert_config": None, "vocab": None}
    )
    np.testing.assert_array_equal(flat(load_trained(result.folder).model), flat(own))
    data = trained / "reviews"
    tuned = bertaccum.train(
        data=str(data),
        out=str(folder / "tuned"),
        init_checkpoint=str(pretrained),
        max_seq_length=16,
        micro_batch=8,
        max_updates=0,
    )
    before, after = (m.checkpoint_items["encoder"] for m in (own, load_trained(tuned.folder).model))
    for one, other in zip(before.weights, after.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    with pytest.raises(bertaccum.ConfigError, match="masked-lm"):
        bertaccum.train(
            data=str(data), init_checkpoint=str(pretrained), max_seq_length=16, keep_head=True
        )


_LOGITS = """
import sys, numpy, torch
from transformers import BertForMaskedLM
model = BertForMaskedLM.from_pretrained(sys.argv[1]).eval()
ids = torch.from_numpy(numpy.load(sys.argv[2]))
with torch.no_grad():
    numpy.save(sys.argv[2], model(input_ids=ids).logits.numpy())
"""


@pytest.mark.slow
def test_transformers_computes_the_same_logits(
    pretrained: Path, tmp_path: Path, transformers_python: Path
) -> None:
    exported = bertaccum.export(run=str(pretrained), format="huggingface", out=str(tmp_path / "hf"))
    model = load_trained(pretrained).model
    tokens = np.random.default_rng(0).integers(5, len(WORDS) + 7, (3, 24))
    np.save(tmp_path / "ids.npy", tokens)
    command = [transformers_python, "-c", _LOGITS, exported.folder, tmp_path / "ids.npy"]
    subprocess.run(command, check=True)
    ones, every = tf.ones_like(tokens, tf.int32), tf.constant([[*range(24)]] * 3)
    vectors = model(encoder_inputs(tf.constant(tokens, tf.int32), ones, None, every))
    ours = model.head.logits(tf.reshape(vectors, [-1, vectors.shape[-1]])).numpy()
    theirs = np.load(tmp_path / "ids.npy").reshape(ours.shape)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("words", "format"), [("words.txt", "google"), ("2", "huggingface")])
def test_added_words_begin_as_the_mean_of_their_pieces_and_exports_can_be_imported(
    pretrained: Path, tmp_path: Path, words: str, format: str
) -> None:
    """They are kept by runs, by resuming, and through both formats, which include the head."""
    base, texts = tmp_path / "base", pretrained.parent / "texts.txt"
    bertaccum.export(run=str(pretrained), format=format, out=str(base))
    (tmp_path / "words.txt").write_text("staffs\nfood\nfoods\n")
    (tmp_path / "texts.txt").write_text(
        texts.read_text() + "foods staffs foods staffs foods goody\n"
    )
    own = {"init_checkpoint": str(base), "bert_config": None, "vocab": None}
    own |= {"add_words": str(tmp_path / words) if words == "words.txt" else words}
    run = tmp_path / "run"
    bertaccum.pretrain(**options_of(tmp_path / "texts.txt", run, max_updates=0) | own)
    added = ["staffs", "foods"] if words == "words.txt" else ["foods", "staffs"]
    before, after = load_trained(pretrained), load_trained(run)
    entries = before.files.vocabulary.entries
    assert after.files.vocabulary.entries == [*entries, *added]
    rows = [[*map(entries.index, [word[:-1], "##s"])] for word in added]
    for old, new in zip(before.model.weights, after.model.weights, strict=True):
        value = old.numpy()
        if old.shape != new.shape:
            value = np.concatenate([value, *([value[own].mean(axis=0)] for own in rows)])
        np.testing.assert_array_equal(new.numpy(), value)
    if format == "huggingface":  # The updates know nothing of the format.
        bertaccum.pretrain(resume=str(run), max_updates=2)
        assert np.abs(weights_of(run) - flat(after.model)).max() > 1e-4
    out, again = tmp_path / "out", tmp_path / "again"
    bertaccum.export(run=str(run), format=format, out=str(out))
    given = {"init_checkpoint": str(out), "bert_config": None, "vocab": None}
    bertaccum.pretrain(**options_of(texts, again, max_updates=0) | given)
    assert load_trained(again).files.vocabulary.entries == after.files.vocabulary.entries
    np.testing.assert_array_equal(weights_of(again), weights_of(run))


@pytest.mark.parametrize(
    ("written", "options", "message"),
    [
        (b"", {}, "is empty"),
        (b"\n \n", {}, "contains no text"),
        (b"caf\xe9\nfood\n", {}, "row 1: byte 0xe9 at position 4 is not UTF-8"),
        (b"caf\xe9\nfood\n", {"encoding": "latin-1", "documents": "empty-line"}, "only one doc"),
        ("ก\nข\n".encode(), {}, r"the texts to train on have no piece .* except \[UNK\]; choose"),
        (b"food\nfood\n", {"text": "missing.txt"}, "there is no such file"),
        (b"food\nfood\n", {"text": " "}, "`text` is empty"),
        (b"food\nfood\n", {"text": None}, "`text` is missing"),
        (b"food\nfood\n", {"max_seq_length": 65}, "`max_seq_length` 65 is above"),
    ],
)
def test_texts_that_cannot_be_read(
    tmp_path: Path, written: bytes, options: dict[str, Any], message: str
) -> None:
    texts = write_texts(tmp_path / "texts")
    texts.write_bytes(written)
    with pytest.raises(bertaccum.BertAccumError, match=message):
        bertaccum.pretrain(**options_of(texts, tmp_path / "never") | options)
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [("0", "adds none"), ("missing.txt", "missing.txt"), ("3", "needs a checkpoint that is not a")],
)
def test_words_that_cannot_be_added(pretrained: Path, words: str, message: str) -> None:
    start = str(pretrained) if words == "3" else "none"
    own = {"init_checkpoint": start, "add_words": words}
    own |= {"bert_config": None, "vocab": None} if words == "3" else {}
    texts, out = pretrained.parent / "texts.txt", pretrained.parent / "never"
    with pytest.raises(bertaccum.BertAccumError, match=message):
        bertaccum.pretrain(**options_of(texts, out) | own)
    assert not out.exists()


def test_head_of_a_released_checkpoint_is_loaded(shared: Path) -> None:
    """The released head predicts masked words; a random one does not."""
    source = shared / "pretrained/bert_tiny_reviews"
    config = json.loads((source / "bert_config.json").read_text())
    dimensions = dataclasses.replace(TINY, **{k: config[k] for k in vars(TINY) if k in config})
    model = build_masked_model(build_encoder(dimensions, 0.0, "positions"), dimensions)
    load_encoder(model.checkpoint_items["encoder"], GOOGLE, source / "bert_model.ckpt")
    words = (source / "vocab.txt").read_text().splitlines()
    text = [
        words.index(w) for w in ["[CLS]", "i", "really", "[MASK]", "this", "movie", ".", "[SEP]"]
    ]
    tokens, places = tf.ragged.constant([text], tf.int32), tf.constant([[3]])

    def best() -> list[str]:
        entries, _ = model.fillers(tokens, places, tf.constant(5))
        return [words[entry] for entry in entries[0, 0].numpy()]

    assert "loved" not in best()
    assert load_masked_head(model.head.weights, GOOGLE, source / "bert_model.ckpt")
    assert {"enjoyed", "liked", "loved"} <= {*best()}


def test_masks_are_filled(
    pretrained: Path, program: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    texts = ["the [MASK] was very [MASK]", "[MASK] good"]
    code, printed, _ = program("predict", "--run", pretrained, "--json", *texts)
    assert code == 0
    one, two = map(json.loads, printed.splitlines())
    assert [len(one["masks"]), len(two["masks"])] == [2, 1]
    assert all(len(own) == 5 for own in one["masks"])
    probabilities = [word["probability"] for word in one["masks"][0]]
    assert probabilities == sorted(probabilities, reverse=True)
    alone = next(bertaccum.predict(texts[1:], run=str(pretrained))).masks
    assert [w["word"] for w in alone[0]] == [w["word"] for w in two["masks"][0]]
    code, _, error = program("predict", "--run", pretrained, "the food")
    assert code == 2
    assert "has no [MASK]" in error.splitlines()[-1]
    code, _, error = program("predict", "--run", pretrained, "food " * 30 + "[MASK]")
    assert code == 2
    assert "after the 24 tokens" in error.splitlines()[-1]
    out = tmp_path / "results.tsv"
    code, _, error = program("predict", "--run", pretrained, "--results", out, *texts)
    assert code == 2 and "have no format for --results;" in error.splitlines()[-1]
    assert not out.exists()


def test_report_shows_filled_blanks(pretrained: Path, tmp_path: Path) -> None:
    page = bertaccum.report(run=str(pretrained), out=str(tmp_path / "page.html")).read_text()
    assert "best dev perplexity" in page
    assert "Worst mistakes" not in page
    cells = re.findall(r"<td data-head=.(original|most probable).>([^<]*)<", page)
    originals, filled = cells[::2], [text for _, text in cells[1::2]]
    assert originals
    assert {word for _, word in originals} <= {*WORDS, "##s"}
    assert all(len(re.findall(r"\S+ 0\.\d\d", text)) == 5 for text in filled)
    contexts = re.findall(r"<th scope=.row. data-head=.text.>([^<]*)<", page)
    assert [text.count("[MASK]") for text in contexts] == [1] * len(filled)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval"], "was pretrained, so it has no classes"),
        (["serve", "--port", "0"], "was pretrained, so it has no classes"),
        (["export", "--out", "never"], "`format` savedmodel is for classifiers"),
    ],
)
def test_uses_of_classifiers_are_refused(
    pretrained: Path,
    program: Callable[..., tuple[int, str, str]],
    arguments: list[str],
    message: str,
) -> None:
    code, _, error = program(*arguments, "--run", pretrained)
    assert code == 2
    assert message.replace("`format`", "--format") in error.splitlines()[-1]


def test_resume_of_a_missing_pretraining_run_is_one_error(tmp_path: Path) -> None:
    # With several workers, only the chief may see the run.
    with pytest.raises(BertAccumError, match="there is no run here"):
        next(resume(tmp_path / "absent", {"text": "t.txt", "max_updates": 3}, silent))
