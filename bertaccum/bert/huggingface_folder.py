"""Model folders in Hugging Face's format: their configuration, labels and names of weights.

BERT and its relatives in `FAMILIES` can be read; for any other model, an error says what differs.
"""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from bertaccum.bert.checkpoint_files import WEIGHT_FILES, WEIGHTS, refuse_folder, weights_in
from bertaccum.bert.encoder_config import BERT, DISTILBERT, ELECTRA, EncoderConfig, checked_config
from bertaccum.bert.model_source import HEAD_LAYER, CheckpointFormat, FineTunedHead
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

# Parts of the names of classes, after that of the family.
_CLASSIFIER, _TAGGER = "ForSequenceClassification", "ForTokenClassification"
_ARCHITECTURES = {TOKEN_CLASSIFICATION: _TAGGER, MASKED_LM: "ForMaskedLM"}
_MAX_LABELS = 1_000_000
_NAMES = yaml.safe_load(
    files("bertaccum.bert").joinpath("huggingface_names.yaml").read_text("utf-8")
)
_FAMILIES: dict[str, dict[str, Any]] = _NAMES["families"]
# Beginnings of the names of weights in the encoders of all families.
_IN_ENCODER = ("embeddings", "encoder.", "transformer.", "pooler.")
# Keys that change what the model computes, with their values for BERT as published.
_USUAL: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}

CONFIG = "config.json"


def _is_in(model_type: str, folder: Path, prefix: str) -> bool:
    """Return whether a folder has files of a family in Hugging Face's format, and no Google's.

    With the name of the weights as the prefix, Google's files do not matter.
    """
    has_weights, path = weights_in(folder) is not None, folder / CONFIG
    # A config.json alone does not tell the format, because it may be beside Google's files.
    others = [folder / f"{prefix}.index"] if has_weights else folder.glob("*.index")
    if any(map(Path.is_file, others)) or not (has_weights or path.is_file()):
        return False
    named = _model_type(read_object(path)) if path.is_file() else BERT
    return (named if named in _FAMILIES else BERT) == model_type


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
    return folder / (weights_in(folder) or WEIGHTS)


def other_model(name: str) -> tuple[str, str] | None:
    """Return which model other than BERT a name means, and what to use instead; None if unknown."""
    said, known = name.rpartition("/")[2].lower(), _NAMES["other_models"]
    if "chinese" in said:  # chinese-roberta-wwm-ext and its relatives are BERT models.
        return None
    # Names begin a word: legal-bert and ClinicalBERT contain "albert", but are BERT models.
    patterns = {kind: re.sub(r"[-_]", "[-_]?", kind) for kind in known}
    kinds = [kind for kind, text in patterns.items() if re.search(f"(?<![a-z]){text}", said)]
    return tuple(known[max(kinds, key=len)]) if kinds else None


def _model_type(values: dict[str, Any]) -> str:
    named = values.get("model_type", BERT)  # Early files have no model_type.
    return named if isinstance(named, str) else str(named)


def read_huggingface_config(path: Path) -> EncoderConfig:
    """Return the encoder's dimensions from a `config.json`.

    Missing keys have the default values of transformers.
    """
    values = read_object(path)
    named = _model_type(values)
    if named not in _FAMILIES:
        other = _NAMES["other_models"].get(named)
        name, instead = other or (named, f"a model with model_type {', '.join(_FAMILIES)}")
        raise InputError(
            f"describes a {name} model, whose layers differ from BERT's",
            f"use {instead}",
            path=path,
        )
    for key, usual in _USUAL.items():
        value = values.get(key, usual)
        if value != usual:
            raise InputError(
                f"{key} is {value!r}, expected {usual!r}", "use another model", path=path
            )
    family = _FAMILIES[named]
    known = {name: value for name, value in values.items() if name not in family["ignored"]}
    known |= {ours: values[theirs] for ours, theirs in family["keys"].items() if theirs in values}
    base = dataclasses.asdict(PRESET_CONFIGS["bert-base"]) | {"hidden_act": "gelu"}
    merged = base | family["defaults"] | known | {"model_type": named}
    return checked_config(merged | {"hidden_act": _our_activation(merged, path)}, path)


def _read_head(model_type: str, path: Path) -> FineTunedHead:
    """Return what a `config.json` says about the head of a classifier."""
    values = read_object(path)
    classifier, tagger = (_FAMILIES[model_type]["classes"] + of for of in (_CLASSIFIER, _TAGGER))
    architectures = values.get("architectures") or [classifier]
    tags = isinstance(architectures, list) and tagger in architectures
    if not isinstance(architectures, list) or (classifier not in architectures and not tags):
        raise InputError(
            f"its architectures {architectures} have no head for texts or tags",
            f"omit `keep_head`, or use a {classifier} or a {tagger}",
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


def tensor_key(name: str, model_type: str = BERT) -> str:
    """Return the name of a weight in Hugging Face's files, without a prefix such as `bert.`."""
    for ours, theirs in [*_NAMES["weights"], *_FAMILIES[model_type]["weights"]]:
        name = name.replace(ours, theirs)
    return name


def tensor_name(name: str, model_type: str, pooled: bool) -> str:
    """Return the whole name of a weight in Hugging Face's files.

    Args:
      pooled: Whether the model has a pooler. Without it, the heads of all families have the same
        names.
    """
    if not pooled and name.startswith(HEAD_LAYER):
        return tensor_key(name)
    key = tensor_key(name, model_type)
    return f"{model_type}.{key}" if key.startswith(_IN_ENCODER) else key


def _format(model_type: str) -> CheckpointFormat:
    """Return the format of a family's checkpoints."""
    kernels = (tensor_key(f"{HEAD_LAYER}/logits/kernel", named) for named in (model_type, BERT))
    return CheckpointFormat(
        is_in=partial(_is_in, model_type),
        check=_check,
        weights=_weights,
        encoder=lambda folder: read_huggingface_config(folder / CONFIG),
        head=lambda folder: _read_head(model_type, folder / CONFIG),
        tensors=open_tensors,
        shards=shards,
        tensor_key=partial(tensor_key, model_type=model_type),
        head_keys=tuple((key, key.replace("weight", "bias")) for key in kernels),
        remedy="use the config.json that came with the weights",
        vocabularies=(TOKENIZER,),
        pooler=tensor_key("pooler_transform/", model_type),
        transposed=True,
        of_transformers=True,
    )


HUGGINGFACE, *RELATIVES = map(_format, (BERT, DISTILBERT, ELECTRA))


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
    family = _FAMILIES[encoder.model_type]
    values = dataclasses.asdict(encoder) | {
        "embedding_size": encoder.embedding_width,
        "hidden_act": _NAMES["activations"][encoder.hidden_act][0],
    }
    config = {
        "architectures": [family["classes"] + _ARCHITECTURES.get(task, _CLASSIFIER)],
        **{family["keys"].get(k, k): v for k, v in values.items() if k not in family["ignored"]},
        **dict.fromkeys(family["dropouts"], dropout),
        **_USUAL,
        "pad_token_id": tokenization.vocabulary.entries.index("[PAD]"),
        **({} if task == MASKED_LM else labels),
        "torch_dtype": "float32",
    }
    write_text(folder / CONFIG, json_text(config))
    write_tokenizer_of(folder, encoder, tokenization, task)


def write_tokenizer_of(
    folder: Path, encoder: EncoderConfig, tokenization: Tokenization, task: str
) -> None:
    """Write only the tokenizer of a model of transformers."""
    # A pipeline for masked tokens must find [MASK] in texts.
    more: dict[str, Any] = {"split_special_tokens": False} if task == MASKED_LM else {}
    if encoder.type_vocab_size < 2:
        more["model_input_names"] = ["input_ids", "attention_mask"]
    write_tokenizer(
        folder,
        tokenization.vocabulary,
        model_max_length=tokenization.max_seq_length,
        truncation_side="right" if tokenization.head_fraction else "left",
        **more,
    )
