"""Model folders in Hugging Face's format: their configuration, labels and names of weights.

Only BERT as published can be read; for any other model, an error names the key that differs.
"""

from __future__ import annotations

import dataclasses
import math
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from bertaccum.bert.checkpoint_files import WEIGHT_FILES, WEIGHTS, refuse_folder
from bertaccum.bert.encoder_config import EncoderConfig, checked_config
from bertaccum.bert.model_source import CheckpointFormat, FineTunedHead
from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.bert.tensor_files import open_tensors, shards
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer_files import TOKENIZER, write_tokenizer
from bertaccum.errors import InputError
from bertaccum.options.task_names import (
    CLASSIFICATION,
    MASKED_LM,
    PROBLEM_TYPES,
    TOKEN_CLASSIFICATION,
)
from bertaccum.system.atomic import write_text
from bertaccum.system.files import json_text, read_object

# Prefix of the names of the tensors of a classifier's head.
HEAD = "classifier."
# Prefix of those of a head for masked tokens.
MASKED = "cls."
_CLASSIFIER, _TAGGER = "BertForSequenceClassification", "BertForTokenClassification"
_ARCHITECTURES = {TOKEN_CLASSIFICATION: _TAGGER, MASKED_LM: "BertForMaskedLM"}
_LAYER_NORM_EPSILON = 1e-12
_MAX_LABELS = 1_000_000
_NAMES = yaml.safe_load(
    files("bertaccum.bert").joinpath("huggingface_names.yaml").read_text("utf-8")
)
# Keys that change what the model computes, with their values for BERT as published.
_USUAL: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}

CONFIG = "config.json"


def _is_in(folder: Path, prefix: str) -> bool:
    """Return whether a folder has files in Hugging Face's format and no Google checkpoint."""
    if (folder / f"{prefix}.index").is_file():
        return False
    return any((folder / name).is_file() for name in (CONFIG, *WEIGHT_FILES))


def _check(folder: Path, _prefix: str, _has_dimensions: bool) -> None:
    """Check that a folder contains a configuration and weights."""
    weights = _weights(folder)
    if not weights.is_file():
        refuse_folder(folder)
    if not (folder / CONFIG).is_file():
        raise InputError(f"has no {CONFIG}", "download the model again", path=folder)
    if not weights.is_file():
        raise InputError(
            f"has no {WEIGHTS}",
            f"download the model again, or pass a folder with one of {', '.join(WEIGHT_FILES)}",
            path=folder,
        )
    for shard in shards(weights):
        if not shard.is_file():
            raise InputError(
                f"has no {shard.name}, which {weights.name} lists",
                "download the model again",
                path=folder,
            )


def _weights(folder: Path, _: str = "") -> Path:
    """Return the path of a folder's weights, or of the index of weights in several files."""
    names = (name for name in WEIGHT_FILES if (folder / name).is_file())
    return folder / next(names, WEIGHTS)


def other_model(name: str) -> tuple[str, str] | None:
    """Return which model other than BERT a name means, and what to use instead; None if unknown."""
    said, known = name.rpartition("/")[2].lower(), _NAMES["other_models"]
    if "chinese" in said:  # chinese-roberta-wwm-ext and its relatives are BERT models.
        return None
    # Names begin a word: legal-bert and ClinicalBERT contain "albert", but are BERT models.
    patterns = {kind: re.sub(r"[-_]", "[-_]?", kind) for kind in known}
    kinds = [kind for kind, text in patterns.items() if re.search(f"(?<![a-z]){text}", said)]
    return tuple(known[max(kinds, key=len)]) if kinds else None


def read_huggingface_config(path: Path) -> EncoderConfig:
    """Return the encoder's dimensions from a `config.json`.

    Missing keys have the values of BERT-Base, as in transformers.
    """
    values = read_object(path)
    named = values.get("model_type", "bert")  # Early files have no model_type.
    if named != "bert":
        other = _NAMES["other_models"].get(named) if isinstance(named, str) else None
        name, instead = other or (named, "a model with model_type bert")
        raise InputError(
            f"describes a {name} model, whose layers differ from BERT's",
            f"use {instead}",
            path=path,
        )
    for key, usual in {**_USUAL, "layer_norm_eps": _LAYER_NORM_EPSILON}.items():
        value = values.get(key, usual)
        if value != usual and not _is_close(value, usual):
            raise InputError(
                f"{key} is {value!r}, expected {usual!r}", "use another model", path=path
            )
    base = dataclasses.asdict(PRESET_CONFIGS["bert-base"]) | {"hidden_act": "gelu"}
    return checked_config(base | values | {"hidden_act": _our_activation(values, path)}, path)


def _read_head(path: Path) -> FineTunedHead:
    """Return what a `config.json` says about the head of a classifier."""
    values = read_object(path)
    architectures = values.get("architectures") or [_CLASSIFIER]
    tags = isinstance(architectures, list) and _TAGGER in architectures
    if not isinstance(architectures, list) or (_CLASSIFIER not in architectures and not tags):
        raise InputError(
            f"its architectures {architectures} have no head for texts or tags",
            f"omit `keep_head`, or use a {_CLASSIFIER} or a {_TAGGER}",
            path=path,
        )
    # Without an `id2label`, transformers numbers the labels; by default, there are two.
    count = values.get("num_labels", 2)
    if type(count) is not int or not 0 < count <= _MAX_LABELS:
        raise InputError(f"num_labels is {count!r}, expected a number", "correct it", path=path)
    named = values.get("id2label") or {str(n): f"LABEL_{n}" for n in range(count)}
    problem = PROBLEM_TYPES[TOKEN_CLASSIFICATION] if tags else values.get("problem_type")
    classes = [named.get(str(n)) for n in range(len(named))] if isinstance(named, dict) else [None]
    names = [name for name in classes if isinstance(name, str)]
    if len(names) < len(classes) or not isinstance(problem, str | None):
        raise InputError("its id2label or problem_type is damaged", "correct it", path=path)
    generic = all(re.fullmatch(r"LABEL_\d+", name) for name in names)
    return FineTunedHead(len(names), [] if generic else names, problem)


def _our_activation(values: dict[str, Any], path: Path) -> str:
    named = values.get("hidden_act", "gelu")
    for ours, theirs in _NAMES["activations"].items():
        if named in theirs:
            return ours
    known = ", ".join(name for theirs in _NAMES["activations"].values() for name in theirs)
    raise InputError(
        f"hidden_act is {named!r}", f"use a model whose hidden_act is one of {known}", path=path
    )


def _is_close(value: Any, other: Any) -> bool:
    return all(type(v) is float for v in (value, other)) and math.isclose(
        value, other, rel_tol=1e-3
    )


def tensor_key(name: str) -> str:
    """Return the name of a weight in Hugging Face's files, without the prefix `bert.`."""
    for ours, theirs in _NAMES["weights"]:
        name = name.replace(ours, theirs)
    return name


HUGGINGFACE = CheckpointFormat(
    is_in=_is_in,
    check=_check,
    weights=_weights,
    encoder=lambda folder: read_huggingface_config(folder / CONFIG),
    head=lambda folder: _read_head(folder / CONFIG),
    tensors=open_tensors,
    shards=shards,
    tensor_key=tensor_key,
    head_keys=(f"{HEAD}weight", f"{HEAD}bias"),
    remedy="use the config.json that came with the weights",
    vocabularies=(TOKENIZER,),
    pooler="pooler.dense.",
    transposed=True,
    of_transformers=True,
)


def write_description(
    folder: Path,
    encoder: EncoderConfig,
    tokenization: Tokenization,
    names: list[str],
    dropout: float,
    task: str = CLASSIFICATION,
) -> None:
    """Write the files of a model of transformers, except the weights.

    Args:
      names: Names of the outputs of a classifier.
      task: Kind of task, which decides the class of the model.
    """
    labels: dict[str, Any] = {
        "num_labels": len(names),
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
    if task in PROBLEM_TYPES and task != TOKEN_CLASSIFICATION:
        labels = {"problem_type": PROBLEM_TYPES[task], **labels}
    config = {
        "architectures": [_ARCHITECTURES.get(task, _CLASSIFIER)],
        "model_type": "bert",
        **dataclasses.asdict(encoder),
        "hidden_act": _NAMES["activations"][encoder.hidden_act][0],
        "layer_norm_eps": _LAYER_NORM_EPSILON,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "classifier_dropout": dropout,
        **_USUAL,
        "pad_token_id": tokenization.vocabulary.entries.index("[PAD]"),
        **({} if task == MASKED_LM else labels),
        "torch_dtype": "float32",
    }
    write_text(folder / CONFIG, json_text(config))
    # A pipeline for masked tokens must find [MASK] in texts.
    more = {"split_special_tokens": False} if task == MASKED_LM else {}
    write_tokenizer(
        folder,
        tokenization.vocabulary,
        model_max_length=tokenization.max_seq_length,
        truncation_side="right" if tokenization.head_fraction else "left",
        **more,
    )
