"""DistilBERT, ELECTRA and BERT with other constants mean the same here as in transformers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file
from small import scatter
from test_huggingface_folder import NAMES, SMALL, WORDS, find, inputs, loaded, write

import bertaccum
from bertaccum.bert.added_words import add_words
from bertaccum.bert.dropout import ExampleDropout
from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.encoder_config import (
    DISTILBERT,
    ELECTRA,
    EncoderConfig,
    read_bert_config,
    write_bert_config,
)
from bertaccum.bert.huggingface_folder import write_description
from bertaccum.bert.packed_tokens import encoder_inputs
from bertaccum.bert.pretrained_weights import load_masked_head, read_head, save_huggingface
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.vocabulary import Vocabulary
from bertaccum.data.windows import window_rows
from bertaccum.errors import ConfigError, InputError
from bertaccum.inference.trained_model import load_trained
from bertaccum.options.pretraining import train_config
from bertaccum.options.task_names import CLASSIFICATION, MASKED_LM, TOKEN_CLASSIFICATION
from bertaccum.tasks.head import build_classifier, build_task_model, output_tokens

RELATIVES = {
    "distilbert": replace(SMALL, model_type=DISTILBERT, type_vocab_size=0, hidden_act="gelu_erf"),
    "electra": replace(SMALL, model_type=ELECTRA, embedding_size=4, hidden_act="gelu_erf"),
    "wide_electra": replace(SMALL, model_type=ELECTRA, hidden_act="relu", layer_norm_eps=0.1),
    "bert": replace(SMALL, layer_norm_eps=0.1, hidden_act="relu"),
}


# All parts of the other one are in these.
TRAINED = ("distilbert", "electra", "bert")

# The config.json of small models on the Hub: MiniLM, TinyBERT, and DistilBERT and ELECTRA with two
# layers.
SHAPES: dict[str, dict[str, Any]] = {
    "microsoft_MiniLM-L12-H384-uncased": {
        "hidden_size": 384,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    },
    "huawei-noah_TinyBERT_General_4L_312D": {
        "hidden_size": 312,
        "num_hidden_layers": 4,
        "num_attention_heads": 12,
        "intermediate_size": 1200,
    },
    "distilbert_distilbert-base-uncased": {"model_type": "distilbert", "n_layers": 2},
    "google_electra-small-discriminator": {"model_type": "electra", "num_hidden_layers": 2},
}


def model_of(config: EncoderConfig, task: str) -> Any:
    options = train_config({"task": task})
    encoder = build_encoder(config, 0.0, output_tokens(options))
    return scatter(build_task_model(options, encoder, config, len(NAMES)))


def segments(config: EncoderConfig) -> np.ndarray:
    """Return segment IDs for `inputs`, all of which are 0 for a model that ignores them."""
    return inputs()[0] % 2 if config.type_vocab_size else np.zeros_like(inputs()[0])


def ours(config: EncoderConfig, model: Any, positions: np.ndarray | None = None) -> np.ndarray:
    found = encoder_inputs(*map(tf.constant, inputs()), segments(config), positions)
    return model(found)


# Only the first two have names of their own. The classifier of BERT is in another file.
TASKS = (CLASSIFICATION, TOKEN_CLASSIFICATION, MASKED_LM)
WRITTEN = [(name, task) for name in ("distilbert", "electra") for task in TASKS]
WRITTEN += [("wide_electra", CLASSIFICATION), ("bert", TOKEN_CLASSIFICATION), ("bert", MASKED_LM)]


@pytest.mark.parametrize(("name", "task"), WRITTEN)
def test_written_weights_are_read_bit_for_bit(tmp_path: Path, name: str, task: str) -> None:
    config, folder = RELATIVES[name], tmp_path / "model"
    model, pooled = model_of(config, task), task == CLASSIFICATION
    folder.mkdir()
    write_description(folder, config, Tokenization(Vocabulary(WORDS), 12), NAMES, 0.1, task)
    save_huggingface(model, folder, pooler=pooled)
    source = find(folder, keep_head=task != MASKED_LM)
    assert (source.encoder, source.has_pooler) == (config, pooled)
    assert source.format is not None and source.checkpoint is not None
    expected = {w.name: w.numpy() for w in model.weights}
    for weight in loaded(folder).weights:
        if pooled or "pooler" not in weight.name:
            np.testing.assert_array_equal(weight, expected[weight.name])
    if task == MASKED_LM:
        for weight in model.head.weights:
            weight.assign(tf.zeros_like(weight))
        assert load_masked_head(model.head.weights, source.format, source.checkpoint)
        head = [expected[weight.name] for weight in model.head.weights]
        assert all(map(np.array_equal, head, model.head.get_weights()))
    else:
        kernel, bias = read_head(source.format, source.checkpoint)
        np.testing.assert_array_equal(kernel.T, expected["sentence_prediction/logits/kernel:0"])
        np.testing.assert_array_equal(bias, expected["sentence_prediction/logits/bias:0"])


@pytest.mark.parametrize(
    ("name", "key", "added"),
    [
        ("bert", "cls.predictions.decoder.weight", []),
        ("distilbert", "vocab_projector.weight", ["goodly", "badly"]),
        ("electra", "generator_lm_head.weight", ["goodly", "badly"]),
    ],
)
def test_head_with_a_matrix_of_its_own_is_refused(
    tmp_path: Path, name: str, key: str, added: list[str]
) -> None:
    config, folder = RELATIVES[name], tmp_path / "model"
    folder.mkdir()
    write_description(folder, config, Tokenization(Vocabulary(WORDS), 12), NAMES, 0.1, MASKED_LM)
    save_huggingface(model_of(config, MASKED_LM), folder, pooler=False)
    tensors = load_file(folder / "model.safetensors")
    words = next(held for n, held in tensors.items() if n.endswith("word_embeddings.weight"))
    model = model_of(add_words(find(folder), added).encoder, MASKED_LM)
    for matrix in (words, words + 1):
        save_file(tensors | {key: matrix}, folder / "model.safetensors")
        source = add_words(find(folder), added)
        assert source.format is not None and source.checkpoint is not None
        if matrix is words:
            assert load_masked_head(model.head.weights, source.format, source.checkpoint)
        else:
            with pytest.raises(InputError, match=f"its output matrix {key} differs from the word"):
                load_masked_head(model.head.weights, source.format, source.checkpoint)


@pytest.mark.parametrize(
    ("name", "task", "expected"),
    [
        ("distilbert", CLASSIFICATION, "pre_classifier.weight distilbert.transformer.layer.1.ffn"),
        ("electra", CLASSIFICATION, "classifier.dense.weight classifier.out_proj.bias"),
        ("electra", TOKEN_CLASSIFICATION, "classifier.weight electra.embeddings_project.bias"),
        ("electra", MASKED_LM, "generator_predictions.dense.bias generator_lm_head.bias"),
        ("distilbert", MASKED_LM, "vocab_layer_norm.weight vocab_projector.bias"),
    ],
)
def test_weights_have_the_names_of_transformers(
    tmp_path: Path, name: str, task: str, expected: str
) -> None:
    write_description(tmp_path, RELATIVES[name], Tokenization(Vocabulary(WORDS), 9), NAMES, 0.1)
    model = model_of(RELATIVES[name], task)
    save_huggingface(model, tmp_path, pooler=task == CLASSIFICATION)
    names = " ".join(load_file(tmp_path / "model.safetensors"))
    assert all(key in names for key in expected.split()), names


@pytest.mark.parametrize("config", [*RELATIVES.values(), SMALL])
def test_description_of_a_run_is_read_back(tmp_path: Path, config: EncoderConfig) -> None:
    write_bert_config(tmp_path / "bert_config.json", config)
    assert read_bert_config(tmp_path / "bert_config.json") == config
    known = json.loads((tmp_path / "bert_config.json").read_text())
    assert ("model_type" in known) == (config.model_type != "bert")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type_vocab_size": 0}, "type_vocab_size is 0, not a positive whole number"),
        ({"embedding_size": 0}, "embedding_size is 0, not a positive whole number"),
        ({"layer_norm_eps": 0}, "layer_norm_eps is 0, not a positive number"),
        ({"model_type": "electric"}, "'electric'; use one of bert, distilbert, electra"),
    ],
)
def test_damaged_description_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "bert_config.json"
    write_bert_config(path, RELATIVES["electra"])
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=message):
        read_bert_config(path)


@pytest.fixture(scope="module")
def from_transformers(transformers_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the results of relatives_side.py."""
    work = tmp_path_factory.mktemp("relatives")
    for name, config in RELATIVES.items():
        write(work / f"ours_{name}", model_of(config, CLASSIFICATION), config)
        if name in TRAINED:
            run_of(work, name, replace(config, num_hidden_layers=1))
    token_ids, mask = inputs()
    given = {"input_ids": token_ids, "attention_mask": mask, "token_type_ids": token_ids % 2}
    np.savez(work / "inputs.npz", **given)
    for name, shape in SHAPES.items():
        config = {"model_type": "bert", "vocab_size": len(WORDS), **shape}
        (work / f"shape_{name}.json").write_text(json.dumps(config))
    script = Path(__file__).with_name("relatives_side.py")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1"}
    subprocess.run([transformers_python, script, work], check=True, env=environment)
    return work


def run_of(work: Path, name: str, config: EncoderConfig) -> None:
    """Train for 20 updates from `start_NAME`, and write a job that trains the same elsewhere."""
    rng, data, rows = np.random.default_rng(4), work / f"data_{name}", []
    for number in range(24):
        rows.append((number % 3, " ".join(rng.choice(["good", "bad", "badly"], 1 + number % 8))))
    data.mkdir()
    for split in ("train", "dev"):
        lines = [f"{NAMES[label]}\t{text}" for label, text in rows]
        (data / f"{split}.tsv").write_text("\n".join(["label\ttext", *lines]) + "\n")
    model, epochs, target = work / f"start_{name}", 20 / 3, 8
    write(model, model_of(config, CLASSIFICATION), config)
    rates = []
    for event in bertaccum.training_events(
        data=str(data),
        out=str(work / f"run_{name}"),
        init_checkpoint=str(model),
        keep_head=True,
        target_batch=target,
        micro_batch=3,
        epochs=epochs,
        max_seq_length=12,
        dropout=0.0,
        learning_rate=1e-3,
        best_by="loss",
        eval_every=10**6,
    ):
        if isinstance(event, bertaccum.Updated):
            rates.append(event.learning_rate)
    windows = []
    for update, rate in enumerate(rates):
        own = [rows[row] for row in window_rows(update, len(rows), target, 0)[1]]
        windows.append(([text for _, text in own], [label for label, _ in own], rate))
    job = {"model": str(model), "windows": windows, "epsilon": 1e-8}
    (work / f"training_{name}.json").write_text(json.dumps(job))
    bertaccum.export(
        run=str(work / f"run_{name}"), format="huggingface", out=str(work / f"export_{name}")
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", RELATIVES)
def test_transformers_computes_the_same_logits_from_our_folder(
    from_transformers: Path, name: str
) -> None:
    theirs = np.load(from_transformers / f"ours_{name}.npz")["logits"]
    found = ours(RELATIVES[name], model_of(RELATIVES[name], CLASSIFICATION))
    print(f"largest difference: {np.abs(found - theirs).max():.1e}")
    np.testing.assert_allclose(found, theirs, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_twenty_updates_are_those_of_transformers(from_transformers: Path, name: str) -> None:
    theirs = np.load(from_transformers / f"training_{name}.npz")
    found = load_file(from_transformers / f"export_{name}/model.safetensors")
    began = load_file(from_transformers / f"start_{name}/model.safetensors")
    assert {*found} == {*theirs}
    moved = max(float(np.abs(found[key] - began[key]).max()) for key in found)
    # The gradient of the biases of the keys is 0 except for rounding, which Adam enlarges.
    kept = [key for key in found if not key.endswith(("key.bias", "k_lin.bias"))]
    largest = max(float(np.abs(found[key] - theirs[key]).max()) for key in kept)
    print(f"moved {moved:.1e}, largest difference {largest:.1e}")
    assert moved > 5e-3 and largest < 5e-5


@pytest.mark.slow
@pytest.mark.parametrize("head", ["Model", "ForTokenClassification", "ForMaskedLM"])
@pytest.mark.parametrize("name", ["distilbert", "electra"])
def test_folders_of_transformers_give_the_same_outputs(
    from_transformers: Path, name: str, head: str
) -> None:
    folder, config = from_transformers / f"theirs_{name}{head}", RELATIVES[name]
    theirs, real = np.load(folder.with_suffix(".npz"))["outputs"], inputs()[1] == 1
    everywhere = np.tile(np.arange(inputs()[0].shape[1], dtype=np.int32), (len(real), 1))
    if head == "Model":
        found = ours(config, loaded(folder))["sequence_output"]
    else:
        source = find(folder, keep_head=head == "ForTokenClassification")
        assert source.format is not None and source.checkpoint is not None
        task = MASKED_LM if head == "ForMaskedLM" else TOKEN_CLASSIFICATION
        model = model_of(config, task)
        loaded(folder, model.checkpoint_items["encoder"])
        if head == "ForMaskedLM":
            assert load_masked_head(model.head.weights, source.format, source.checkpoint)
            vectors = ours(config, model, everywhere)
            found = model.head.logits(tf.reshape(vectors, [-1, vectors.shape[-1]]))
            found = tf.reshape(found, theirs.shape)
        else:
            kernel, bias = read_head(source.format, source.checkpoint)
            model.layers[-1].set_weights([kernel.T, bias])
            found = ours(config, model, everywhere)
    difference = np.abs(np.asarray(found)[real] - theirs[real]).max()
    print(f"largest difference: {difference:.1e}")
    assert difference < 1e-5


OPTIONS = {
    "recomputed": {"micro_batch": 3, "recompute": "layer", "offload": "all"},
    "compiled": {"micro_batch": 5, "recompute": "layer", "compile": "on"},
}


def trained_weights(work: Path, config: EncoderConfig, **options: Any) -> list[np.ndarray]:
    """Return the weights after three updates with dropout, from random ones."""
    data = work / "data"
    if not data.exists():
        data.mkdir()
        (data / "vocab.txt").write_text("\n".join(WORDS) + "\n")
        write_bert_config(data / "bert_config.json", config)
        lines = [f"{n % 2}\t{'good bad ' * (1 + n % 9)}" for n in range(16)]
        for split in ("train", "dev"):
            (data / f"{split}.tsv").write_text("\n".join(["label\ttext", *lines]) + "\n")
    run = work / "-".join(map(str, ["run", *options.values()]))
    bertaccum.train(
        data=str(data),
        out=str(run),
        bert_config=str(data / "bert_config.json"),
        init_checkpoint="none",
        target_batch=8,
        epochs=1.5,
        max_seq_length=8,
        dropout=0.3,
        learning_rate=1e-2,
        windows=2,
        eval_every=10**6,
        **({"micro_batch": 8} | options),
    )
    return load_trained(run).model.get_weights()


def test_google_format_is_refused(tmp_path: Path, trained: Path) -> None:
    run = shutil.copytree(trained / "runs/one", tmp_path / "run")
    for config, difference in (
        (RELATIVES["electra"], "embedding_size 4, model_type electra, hidden_act gelu_erf"),
        (replace(SMALL, type_vocab_size=1), "type_vocab_size 1"),
    ):
        write_bert_config(run / "best/bert_config.json", config)
        with pytest.raises(ConfigError, match=f"has {difference}; "):
            bertaccum.export(run=str(run), format="google", out=str(tmp_path / "export"))


# The layers of DistilBERT have fewer masks, which recomputation needs again.
@pytest.mark.parametrize(
    ("name", "options"),
    [("distilbert", "recomputed"), pytest.param("electra", "compiled", marks=pytest.mark.slow)],
)
def test_updates_do_not_depend_on_the_cut(tmp_path: Path, name: str, options: str) -> None:
    config = replace(RELATIVES[name], num_hidden_layers=1)
    whole = trained_weights(tmp_path, config)
    other = trained_weights(tmp_path, config, **OPTIONS[options])
    for one, two in zip(whole, other, strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_published_shapes_give_the_same_logits(from_transformers: Path, name: str) -> None:
    folder = from_transformers / f"shape_{name}"
    source = find(folder, keep_head=True)
    encoder = build_encoder(source.encoder)
    model = build_classifier(loaded(folder, encoder), source.encoder, 2)
    assert source.format is not None and source.checkpoint is not None
    kernel, bias = read_head(source.format, source.checkpoint)
    model.layers[-1].set_weights([kernel.T, bias])
    theirs = np.load(folder.with_suffix(".npz"))["logits"]
    difference = np.abs(ours(source.encoder, model) - theirs).max()
    print(f"{source.encoder.parameters:,} parameters, largest difference {difference:.1e}")
    assert difference < 1e-5


@pytest.mark.parametrize(
    ("name", "sites"),
    [
        ("bert", range(8)),
        # No dropout of the outputs of attention, which are sites 2 and 5.
        ("distilbert", [0, 1, 3, 4, 6, 7]),
        # Site 8 is before the pooler.
        ("electra", range(9)),
    ],
)
def test_dropout_is_where_transformers_has_it(name: str, sites: Sequence[int]) -> None:
    config = RELATIVES[name]
    model = build_classifier(build_encoder(config, 0.1), config, 2, 0.1)
    found = [part for part in model.submodules if isinstance(part, ExampleDropout) and part.rate]
    assert sorted(part.site for part in found) == list(sites)
