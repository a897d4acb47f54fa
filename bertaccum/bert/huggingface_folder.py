"""Folders in Hugging Face's format, but for the weights: dimensions, words, labels.

Only BERT as it was published is read: what would compute something else is refused by the
key that says so. No tensorflow here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from bertaccum.atomic import write_text
from bertaccum.bert.bert_config_file import checked_config, read_object
from bertaccum.bert.encoder_config import PRESET_CONFIGS, WEIGHTS, EncoderConfig
from bertaccum.bert.vocabulary import check_vocabulary, read_vocabulary
from bertaccum.errors import ConfigError, InputError
from bertaccum.files import json_text

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
# Of names in a file that holds more than the encoder; and of the part that it may lack.
PREFIX, POOLER = "bert.", "pooler.dense."
_LAYER_NORM_EPSILON = 1e-12
# Of the tokenizers' settings, those that are on, or left out, for uncased models.
_CLEANING = (
    *("do_lower_case", "lowercase", "strip_accents"),
    *("tokenize_chinese_chars", "handle_chinese_chars"),
)
# Their names of our activations; the first of each is the one to write.
_ACTIVATIONS = {
    "gelu": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate"),
    "gelu_erf": ("gelu", "gelu_python"),
    "relu": ("relu",),
    "tanh": ("tanh",),
    "linear": ("linear",),
}
# Keys that make a BERT another one, with the value that they have in that of the paper.
_USUAL: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
_SPECIAL = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}

CONFIG = "config.json"
WORDS = "vocab.txt"


def safetensors() -> ModuleType:
    """The package that reads and writes the weights.

    Raises:
      ConfigError: it is not installed.
    """
    try:
        import safetensors.numpy
    except ImportError:
        raise ConfigError(
            "Hugging Face's format needs the package safetensors",
            "pip install 'bertaccum[huggingface]'",
        ) from None
    return safetensors


def is_huggingface(folder: Path) -> bool:
    """Whether a folder has the configuration, or weights, of this format and not of Google's."""
    if (folder / "bert_model.ckpt.index").is_file():
        return False
    return any((folder / name).is_file() for name in (CONFIG, WEIGHTS, "pytorch_model.bin"))


def check_folder(folder: Path) -> None:
    """Raises InputError unless all files are there, and the words are cut out of text as ours."""
    if not (folder / CONFIG).is_file():
        raise InputError(f"has no {CONFIG}", "download the model again", path=folder)
    if not (folder / WEIGHTS).is_file():
        pickled = (folder / "pytorch_model.bin").is_file()
        held = ", and a pickled pytorch_model.bin is not opened: it can run any code"
        raise InputError(
            f"has no {WEIGHTS}" + (held if pickled else ""),
            "load it with transformers and save it again with save_pretrained, as one file",
            path=folder,
        )
    _check_text_cleaning(folder)


@contextmanager
def open_weights(path: Path) -> Iterator[Any]:
    """Opens a `model.safetensors`, of which nothing is read yet but what it holds.

    Raises:
      InputError: it cannot be read.
    """
    package = safetensors()
    try:
        with package.safe_open(path, framework="np") as weights:
            yield weights
    except (package.SafetensorError, OSError) as error:
        raise InputError(
            f"is not a readable safetensors file ({error})", "download it again", path=path
        ) from None


def held_names(weights: Any) -> dict[str, str]:
    """The names in a file: as transformers writes them for an encoder today, to as they are."""
    return {_today(name): name for name in weights.keys()}  # noqa: SIM118 (it is no mapping)


def _today(name: str) -> str:
    """The first releases have the names of TensorFlow's layer normalization."""
    name = name.removeprefix(PREFIX).replace("LayerNorm.gamma", "LayerNorm.weight")
    return name.replace("LayerNorm.beta", "LayerNorm.bias")


def has_pooler(names: Container[str]) -> bool:
    """Whether `held_names` are of a model with a pooler."""
    return any(f"{POOLER}{part}" in names for part in ("weight", "bias"))


def read_huggingface_config(path: Path) -> EncoderConfig:
    """The dimensions in a `config.json`; what it leaves out is BERT-Base's, as in transformers.

    Raises:
      InputError: it is missing or damaged, of another architecture, or of a BERT that computes
        something else.
    """
    values = read_object(path)
    named = values.get("model_type", "bert")  # Early files name none.
    if named != "bert":
        raise InputError(
            f"is of a {named} model", "only BERT can be read (model_type bert)", path=path
        )
    for key, usual in {**_USUAL, "layer_norm_eps": _LAYER_NORM_EPSILON}.items():
        value = values.get(key, usual)
        if value != usual and not _is_close(value, usual):
            raise InputError(
                f"{key} is {value!r}, known is {usual!r}", "name another model", path=path
            )
    base = dataclasses.asdict(PRESET_CONFIGS["bert-base"]) | {"hidden_act": "gelu"}
    return checked_config(base | values | {"hidden_act": _our_activation(values, path)}, path)


def _our_activation(values: dict[str, Any], path: Path) -> str:
    named = values.get("hidden_act", "gelu")
    for ours, theirs in _ACTIVATIONS.items():
        if named in theirs:
            return ours
    known = ", ".join(name for theirs in _ACTIVATIONS.values() for name in theirs)
    raise InputError(f"hidden_act is {named!r}", f"known are {known}", path=path)


def _is_close(value: Any, other: Any) -> bool:
    return all(type(v) in (int, float) for v in (value, other)) and math.isclose(
        value, other, rel_tol=1e-3
    )


def _check_text_cleaning(folder: Path) -> None:
    """Raises InputError where text is not lower-cased, or not cut, as for uncased models."""
    for path in (folder / TOKENIZER_CONFIG, folder / TOKENIZER):
        settings: Any = read_object(path) if path.is_file() else {}
        if path.name == TOKENIZER:
            settings = settings.get("normalizer")
        for key in _CLEANING if isinstance(settings, dict) else ():
            if settings.get(key) not in (True, None):
                raise InputError(
                    f"{key} is {settings[key]!r}, and text is cleaned as for uncased models here",
                    "name an uncased model",
                    path=path,
                )


def read_words(path: Path) -> list[str]:
    """A vocabulary from a `vocab.txt`, or from the `tokenizer.json` that newer folders have.

    Raises:
      InputError: it is missing or damaged, or no WordPiece vocabulary.
    """
    if path.name != TOKENIZER:
        return read_vocabulary(path)
    model = read_object(path).get("model")
    words = model.get("vocab") if isinstance(model, dict) else None
    words = words if isinstance(words, dict) else {}
    numbers = list(words.values())
    whole = numbers and all(type(number) is int for number in numbers)
    if not whole or sorted(numbers) != list(range(len(numbers))):
        raise InputError("holds no WordPiece vocabulary", "add a vocab.txt", path=path)
    vocabulary = sorted(words, key=words.__getitem__)
    check_vocabulary(vocabulary, path)
    return vocabulary


def write_description(
    folder: Path,
    encoder: EncoderConfig,
    vocabulary: list[str],
    names: list[str],
    max_seq_length: int,
    dropout: float,
) -> None:
    """Writes all but the weights, as for transformers' BertForSequenceClassification.

    Args:
      folder: that is there.
      encoder: the dimensions.
      vocabulary: the entries, by id.
      names: of the classes, by number.
      max_seq_length: tokens that texts are cut to.
      dropout: rate that it was trained with.
    """
    config = {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        **dataclasses.asdict(encoder),
        "hidden_act": _ACTIVATIONS[encoder.hidden_act][0],
        "layer_norm_eps": _LAYER_NORM_EPSILON,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "classifier_dropout": dropout,
        **_USUAL,
        "pad_token_id": vocabulary.index("[PAD]"),
        "problem_type": "single_label_classification",
        "num_labels": len(names),
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "torch_dtype": "float32",
    }
    write_text(folder / CONFIG, json_text(config))
    write_text(folder / WORDS, "\n".join(vocabulary) + "\n")
    write_text(folder / "special_tokens_map.json", json_text(_SPECIAL))
    tokenizer = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        # `[SEP]` in a text is a bracket, three letters and a bracket, as it was in training.
        "split_special_tokens": True,
        "model_max_length": max_seq_length,
        **_SPECIAL,
    }
    write_text(folder / TOKENIZER_CONFIG, json_text(tokenizer))
