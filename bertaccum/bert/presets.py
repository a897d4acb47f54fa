"""Google's released models, under the names by which options select them.

`presets.yaml` lists them, with their sources.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import yaml

from bertaccum.bert.encoder_config import EncoderConfig

# Members of the archives that differ between models.
WEIGHTS_MEMBER, VOCABULARY_MEMBER = "bert_model.ckpt.data-00000-of-00001", "vocab.txt"


@dataclass(frozen=True)
class Preset:
    """A released model."""

    # Release and name of the zip file, the end of its address; the name of one on the Hub.
    archive: str
    encoder: EncoderConfig
    language: str = "English"  # Language of the texts it was pretrained on.
    lower_case: bool = True  # Whether these texts were lowercased.
    # SHA-256 of members of the zip; members without a published digest are absent.
    digests: Mapping[str, str] = field(default_factory=dict)


_TABLE = yaml.safe_load(files("bertaccum.bert").joinpath("presets.yaml").read_text("utf-8"))


def _preset(archive: str, vocabulary: str, weights: str | None = None) -> Preset:
    """Return a released model, whose attention heads have size 64."""
    words = _TABLE["vocabularies"][vocabulary]
    layers, hidden = map(int, re.findall(r"_[LH]-(\d+)", archive))
    encoder = EncoderConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
        vocab_size=words["size"],
    )
    digests = {VOCABULARY_MEMBER: words["digest"], WEIGHTS_MEMBER: weights} if weights else {}
    return Preset(archive, encoder, words["language"], words["lower_case"], digests)


def _relative(name: str, vocabulary: str, dimensions: str) -> Preset:
    """Return a model on the Hub, whose attention heads have size 64."""
    words, sizes = _TABLE["vocabularies"][vocabulary], _TABLE["dimensions"][dimensions]
    hidden = sizes["hidden_size"]
    encoder = EncoderConfig(
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
        vocab_size=words["size"],
        hidden_act="gelu_erf",
        **sizes,
    )
    return Preset(name, encoder, words["language"], words["lower_case"])


PRESETS = {name: _preset(**model) for name, model in _TABLE["models"].items()}
PRESET_CONFIGS = {name: preset.encoder for name, preset in PRESETS.items()}
# Relatives of BERT on the Hub, which are not presets: their weights are downloaded from there.
RELATIVES = {name: _relative(name, **model) for name, model in _TABLE["relatives"].items()}
# The names of Google's files for the presets that have shorter names.
_RELEASED_AS = {Path(preset.archive).stem: name for name, preset in PRESETS.items()}
# Names of Google's models on the Hugging Face Hub.
PUBLISHED = (
    *_TABLE["published"],
    *RELATIVES,
    *(f"google/bert_{Path(p.archive).stem}" for p in PRESETS.values() if p.archive[:4] == "2020"),
)
# The presets that advice names: one for each size.
USUAL = ("bert-tiny", "bert-mini", "bert-small", "bert-medium", "bert-base", "bert-large")


def preset_name(name: str) -> str:
    """Return the preset that Google released under a name; any other name is unchanged."""
    return _RELEASED_AS.get(name, name)


def closest_preset(name: str) -> str | None:
    """Return the model whose name is most similar to a misspelled one; None if none is.

    A name with a word that no model has, such as `roberta` or `german`, is that of another model.
    """
    names = {known.lower(): known for known in (*PRESETS, *_RELEASED_AS)}
    names |= {known.partition("/")[2]: known for known in RELATIVES}
    known_words = {word for known in names for word in re.split(r"[-_]", known)}
    for word in re.findall(r"[a-z][a-z0-9]+", name.lower()):
        if not difflib.get_close_matches(word, known_words, n=1, cutoff=0.81):
            return None
    matches = difflib.get_close_matches(name.lower(), names, n=1)
    return names[matches[0]] if matches else None
