"""Adapters are written and read in peft's format, for the names of each family."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from test_huggingface_folder import NAMES, SMALL, WORDS, find, inputs
from test_relatives import RELATIVES, model_of, ours
from torch_writer import write_torch

import bertaccum
from bertaccum.bert import model_finder
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.hub_checkpoint import HubCheckpoint
from bertaccum.bert.huggingface_folder import write_description
from bertaccum.bert.model_finder import find_model
from bertaccum.bert.model_source import HeadMapping
from bertaccum.bert.peft_folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from bertaccum.bert.pretrained_weights import save_huggingface
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.vocabulary import Vocabulary
from bertaccum.errors import ConfigError, InputError
from bertaccum.inference.export import export
from bertaccum.inference.trained_model import load_trained
from bertaccum.options.commands import ExportConfig, TrainConfig
from bertaccum.options.task_names import CLASSIFICATION
from bertaccum.system.hub_names import Repository
from bertaccum.system.progress import silent
from bertaccum.tasks.adapter_files import AdapterFiles
from bertaccum.training.recipe import build_model

FAMILIES = {name: RELATIVES[name] for name in ("distilbert", "electra")} | {"bert": SMALL}
QUERY = {
    "bert": "bert.encoder.layer.0.attention.self.query",
    "distilbert": "distilbert.transformer.layer.0.attention.q_lin",
    "electra": "electra.encoder.layer.0.attention.self.query",
}
SAVED = {
    "bert": ["classifier", "pooler"],
    "distilbert": ["classifier", "pre_classifier"],
    "electra": ["classifier"],
}


def make(work: Path, name: str, config: EncoderConfig) -> None:
    """Write a base model, a run with adapters that begins with it, and the run's export.

    The run trains nothing, which takes longest; random weights replace those of its adapters.
    """
    base, data = work / f"base_{name}", work / "data"
    base.mkdir()
    write_description(base, config, Tokenization(Vocabulary(WORDS), 12), NAMES, 0.1)
    save_huggingface(model_of(config, CLASSIFICATION), base)
    if not data.exists():
        data.mkdir()
        rows = [f"{NAMES[n % 3]}\t{'good bad badly ' * (1 + n % 4)}" for n in range(12)]
        for split in ("train", "dev"):
            (data / f"{split}.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
    bertaccum.train(
        data=str(data),
        out=str(work / f"run_{name}"),
        init_checkpoint=str(base),
        adapt="lora",
        lora_rank=2,
        lora_alpha=6,
        lora_targets="all",
        target_batch=4,
        micro_batch=4,
        max_updates=0,
        max_seq_length=12,
        lower_case=False,  # Unlike the base model.
    )
    run, rng = work / f"run_{name}", np.random.default_rng(0)
    model, files = load_trained(run, merged=False).model, AdapterFiles.read(run / "best")
    for weight in model.trainable_variables:
        weight.assign_add(rng.normal(0, 0.3, weight.shape))
    assert files is not None
    files.write(model, run / "best")
    bertaccum.export(
        run=str(run), format="huggingface", adapter=True, out=str(work / f"adapter_{name}")
    )


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("peft")
    for name, config in FAMILIES.items():
        make(work, name, config)
    return work


@pytest.mark.parametrize("name", FAMILIES)
def test_names_are_those_of_peft(work: Path, name: str) -> None:
    values = json.loads((work / f"adapter_{name}" / ADAPTER_CONFIG).read_text())
    tensors = load_file(work / f"adapter_{name}" / ADAPTER_WEIGHTS)
    assert (values["r"], values["lora_alpha"], values["peft_type"]) == (2, 6, "LORA")
    assert values["base_model_name_or_path"] == str(work / f"base_{name}")
    assert QUERY[name] in values["target_modules"]
    assert values["modules_to_save"] == SAVED[name]
    pair = [tensors[f"base_model.model.{QUERY[name]}.lora_{one}.weight"].shape for one in "AB"]
    assert pair == [(2, SMALL.hidden_size), (SMALL.hidden_size, 2)]
    layers = SMALL.num_hidden_layers
    assert len(values["target_modules"]) == 6 * layers and len(tensors) == 12 * layers + 4


@pytest.mark.parametrize("name", FAMILIES)
def test_adapter_is_read_back(work: Path, name: str) -> None:
    adapter = str(work / f"adapter_{name}")
    config = TrainConfig(init_checkpoint=adapter, keep_head=True, max_seq_length=12)
    source, trained = find_model(config, silent), load_trained(work / f"run_{name}")
    assert source.vocabulary == trained.files.vocabulary and not source.vocabulary.lower_case
    again = build_model(config, source, 3, HeadMapping([0, 1, 2]))
    expected = ours(FAMILIES[name], trained.model)
    np.testing.assert_allclose(ours(FAMILIES[name], again), expected, rtol=0, atol=1e-5)
    began = find(work / f"base_{name}", keep_head=True)
    assert began.weights_digest != find(work / f"adapter_{name}").weights_digest


@pytest.fixture
def adapter(work: Path, tmp_path: Path) -> Path:
    """Return a copy of the adapter of BERT that a test may change."""
    return shutil.copytree(work / "adapter_bert", tmp_path / "adapter")


def change_config(adapter: Path, **changes: Any) -> None:
    path = adapter / ADAPTER_CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_tokenizer_of_the_adapter_is_read(work: Path, adapter: Path, tmp_path: Path) -> None:
    """If it has none, the base model's is read, whose name may tell how texts were cleaned."""
    base = shutil.copytree(work / "base_bert", tmp_path / "base-cased")
    (base / "tokenizer_config.json").unlink()
    change_config(adapter, base_model_name_or_path=str(base))
    settings = {"do_lower_case": True, "model_input_names": ["input_ids"]}
    (adapter / "tokenizer_config.json").write_text(json.dumps(settings))
    (adapter / "vocab.txt").write_text("\n".join(["[unused0]", *WORDS[:-2]]) + "\n")
    found = find(adapter)
    assert found.vocabulary.lower_case and not found.saw_segments
    assert found.vocabulary.entries[0] == "[unused0]" and len(found.vocabulary) == len(WORDS)
    for name in ("vocab.txt", "tokenizer_config.json"):
        (adapter / name).unlink()
    assert find(adapter).vocabulary == find(base).vocabulary
    assert not find(base).vocabulary.lower_case


def change_weights(adapter: Path, **changes: np.ndarray) -> None:
    path = adapter / ADAPTER_WEIGHTS
    save_file(load_file(path) | changes, path)


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    """Return the weights that a model begins with, in Hugging Face's format."""
    source = find(folder)
    assert source.format is not None and source.checkpoint is not None
    tensors = source.format.tensors(source.checkpoint)
    return {name: np.asarray(tensor.read()) for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_dora": True}, r"adapter_config.json: use_dora is True, which cannot be read"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3', which cannot be read"),
        ({"rank_pattern": {"query": 4}}, "rank_pattern is"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which"),
        ({"of_a_later_version": [1]}, r"of_a_later_version is \[1\], which cannot be read"),
        ({"r": "8"}, "is damaged"),
        ({"modules_to_save": "classifier"}, "is damaged"),
        ({"base_model_name_or_path": None}, "does not name its base model"),
        ({"base_model_name_or_path": "/nowhere/x"}, "adapter of /nowhere/x, which cannot be read"),
    ],
)
def test_other_adapters_are_refused(adapter: Path, change: dict[str, Any], message: str) -> None:
    change_config(adapter, **change)
    with pytest.raises(InputError, match=message):
        find(adapter)


def test_adapter_of_an_adapter_is_refused(adapter: Path) -> None:
    change_config(adapter, base_model_name_or_path=str(adapter))
    with pytest.raises(InputError, match="which is an adapter itself; merge"):
        find(adapter)


def test_weights_that_cannot_be_merged_are_refused(adapter: Path) -> None:
    key = "base_model.model.bert.embeddings.word_embeddings.lora_embedding_A"
    change_weights(adapter, **{key: np.zeros([2, 3], np.float32)})
    with pytest.raises(InputError, match=r"has .*lora_embedding_A, which cannot be merged; merge"):
        find(adapter)


def test_older_file_of_weights_is_read(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tensors_of(adapter)
    write_torch(adapter / "adapter_model.bin", load_file(adapter / ADAPTER_WEIGHTS), monkeypatch)
    (adapter / ADAPTER_WEIGHTS).unlink()
    after = tensors_of(adapter)
    assert after.keys() == before.keys()
    for name, tensor in after.items():
        np.testing.assert_array_equal(tensor, before[name], err_msg=name)


def test_adapter_of_another_model_is_refused(adapter: Path) -> None:
    key = f"base_model.model.{QUERY['bert']}.lora_A.weight"
    change_weights(adapter, **{key: np.zeros([2, 3], np.float32)})
    with pytest.raises(InputError, match=r"layer.0.attention.self.query.weight has the shapes"):
        find(adapter)


def test_head_of_an_early_adapter_is_read(work: Path, adapter: Path, tmp_path: Path) -> None:
    """Early versions of peft did not record that they trained the head in full."""
    before, base = tensors_of(adapter), shutil.copytree(work / "base_bert", tmp_path / "base")
    tensors = load_file(base / "model.safetensors")
    encoder = {name: tensor for name, tensor in tensors.items() if "classifier" not in name}
    save_file(encoder, base / "model.safetensors")
    change_config(adapter, base_model_name_or_path=str(base), modules_to_save=None)
    after = tensors_of(adapter)
    assert "classifier.weight" in after and after.keys() == before.keys()
    for name, tensor in after.items():
        np.testing.assert_array_equal(tensor, before[name], err_msg=name)


@pytest.mark.parametrize("revision", [None, "v1"])
def test_base_without_an_owner_is_on_the_hub(
    work: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch, revision: str | None
) -> None:
    asked = []

    def fetch(repository: Repository, *_: object) -> HubCheckpoint:
        asked.append(repository)
        return HubCheckpoint(repository, work / "base_bert", [], ["model.safetensors"])

    monkeypatch.setattr(model_finder, "fetch_checkpoint", fetch)
    expected = tensors_of(adapter)
    change_config(adapter, base_model_name_or_path="bert-base-uncased", revision=revision)
    assert tensors_of(adapter).keys() == expected.keys()
    assert {*asked} == {Repository("google-bert/bert-base-uncased", revision)}


def test_base_may_have_the_name_of_a_preset(
    work: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    change_config(adapter, base_model_name_or_path="bert-small")
    with pytest.raises(InputError, match="adapter of bert-small, which is not in Hugging Face's"):
        find(adapter)
    shutil.copytree(work / "base_bert", "bert-small")
    assert find(adapter).encoder == SMALL


def test_rank_stabilized_scale_is_read(work: Path, adapter: Path) -> None:
    key = QUERY["bert"].removeprefix("bert.") + ".weight"
    plain, base = tensors_of(adapter)[key], tensors_of(work / "base_bert")[key]
    change_config(adapter, use_rslora=True)
    expected = (plain - base) * np.sqrt(2)
    np.testing.assert_allclose(tensors_of(adapter)[key] - base, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", ["google", "savedmodel"])
def test_adapter_needs_the_format_of_transformers(work: Path, form: str) -> None:
    with pytest.raises(ConfigError, match="`adapter` needs `format` huggingface and a run with"):
        bertaccum.export(run=str(work / "run_bert"), format=form, adapter=True)


def test_folder_of_the_base_model_is_noted_and_not_uploaded(work: Path, tmp_path: Path) -> None:
    notes, base = list[str](), work / "base_bert"
    config = ExportConfig(str(work / "run_bert"), "huggingface", str(tmp_path / "a"), adapter=True)
    with pytest.raises(ConfigError, match=rf"`push` cannot publish adapters of {base}, a folder"):
        export(dataclasses.replace(config, push="owner/name"))
    assert not (tmp_path / "a").exists()
    export(config, note=notes.append)
    assert notes == [f"adapter_config.json and README.md name the folder of the base model, {base}"]


IN_PEFT = """
import sys
import numpy as np, torch
from peft import PeftModel
from transformers import AutoModelForSequenceClassification
work = sys.argv[1]
given = np.load(f"{work}/inputs.npz")
for name in sys.argv[2:]:
    base = AutoModelForSequenceClassification.from_pretrained(f"{work}/base_{name}", num_labels=3)
    model = PeftModel.from_pretrained(base, f"{work}/adapter_{name}").eval()
    inputs = {key: torch.tensor(given[key]).long() for key in given}
    if name == "distilbert":
        del inputs["token_type_ids"]
    with torch.no_grad():
        np.savez(f"{work}/peft_{name}.npz", logits=model(**inputs).logits)
    model.save_pretrained(f"{work}/theirs_{name}")
"""


@pytest.mark.slow
def test_peft_computes_the_same_logits(work: Path, tmp_path: Path, peft_python: Path) -> None:
    token_ids, mask = inputs()
    given = {"input_ids": token_ids, "attention_mask": mask, "token_type_ids": token_ids % 2}
    np.savez(work / "inputs.npz", **given)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1"}
    subprocess.run([peft_python, "-c", IN_PEFT, work, *FAMILIES], check=True, env=environment)
    for name, config in FAMILIES.items():
        theirs = np.load(work / f"peft_{name}.npz")["logits"]
        found = ours(config, load_trained(work / f"run_{name}").model)
        print(f"{name}: largest difference {np.abs(found - theirs).max():.1e}")
        np.testing.assert_allclose(found, theirs, rtol=0, atol=1e-5)
        # peft writes the same file.
        saved, written = (
            load_file(work / f"{of}_{name}" / ADAPTER_WEIGHTS) for of in ("theirs", "adapter")
        )
        assert saved.keys() == written.keys()
        assert all(np.array_equal(saved[key], written[key]) for key in saved)
