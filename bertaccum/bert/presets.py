"""Google's released models, under the names by which options select them.

Sources: Turc et al. 2019, "Well-Read Students Learn Better", for the release of 2020; Devlin et al.
2018 for all others. Addresses: README of google-research/bert. Digests: NVIDIA's
DeepLearningExamples, `GooglePretrainedWeightDownloader.py`. This module does not import TensorFlow.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bertaccum.bert.encoder_config import EncoderConfig

# Members of the archives that differ between models.
WEIGHTS_MEMBER, VOCABULARY_MEMBER = "bert_model.ckpt.data-00000-of-00001", "vocab.txt"


@dataclass(frozen=True)
class Preset:
    """A released model.

    Args:
      archive: Release and name of the zip file, the end of its address.
      encoder: Dimensions of the encoder.
      language: Language of the texts it was pretrained on.
      lower_case: Whether these texts were lowercased.
      digests: SHA-256 of members of the zip; members without a published digest are absent.
    """

    archive: str
    encoder: EncoderConfig
    language: str = "English"
    lower_case: bool = True
    digests: Mapping[str, str] = field(default_factory=dict)


class _Words(NamedTuple):
    """A vocabulary that several releases have."""

    size: int
    digest: str
    lower_case: bool = False
    language: str = "English"


_UNCASED = _Words(30522, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3", True)
_CASED = _Words(28996, "eeaa9875b23b04b4c54ef759d03db9d1ba1554838f8fb26c5d96fa551df93d02")
_MULTILINGUAL = _Words(
    119547,
    "fe0fda7c425b48c516fc8f160d594c8022a0808447475c1a7c6d6479763f310c",
    language="104 languages",
)
_CHINESE = _Words(
    21128, "45bbac6b341c319adc98a532532882e91a9cefc0329aa57bac9ae761c27b291c", True, "Chinese"
)


def _preset(archive: str, words: _Words, weights: str | None = None) -> Preset:
    """Return a released model, whose attention heads have size 64.

    Args:
      archive: Release and name of the zip file; the name contains the dimensions.
      words: Vocabulary.
      weights: SHA-256 of the weights; None if no digest was published, not even of the vocabulary.
    """
    layers, hidden = map(int, re.findall(r"_[LH]-(\d+)", archive))
    encoder = EncoderConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
        vocab_size=words.size,
    )
    digests = {VOCABULARY_MEMBER: words.digest, WEIGHTS_MEMBER: weights} if weights else {}
    return Preset(archive, encoder, words.language, words.lower_case, digests)


_NICKNAMES = {
    (2, 128): "bert-tiny",
    (4, 256): "bert-mini",
    (4, 512): "bert-small",
    (8, 512): "bert-medium",
    (12, 768): "bert-base",
}


def _of_2020(layers: int, hidden: int) -> tuple[str, Preset]:
    name = f"uncased_L-{layers}_H-{hidden}_A-{hidden // 64}"
    return _NICKNAMES.get((layers, hidden), name), _preset(f"2020_02_20/{name}.zip", _UNCASED)


PRESETS = {
    **dict(_of_2020(n, hidden) for n in (2, 4, 6, 8, 10, 12) for hidden in (128, 256, 512, 768)),
    "bert-large": _preset(
        "2018_10_18/uncased_L-24_H-1024_A-16.zip",
        _UNCASED,
        "bc6b3363e3be458c99ecf64b7f472d2b7c67534fd8f564c0556a678f90f4eea1",
    ),
    "bert-base-uncased": _preset(
        "2018_10_18/uncased_L-12_H-768_A-12.zip",
        _UNCASED,
        "58580dc5e0bf0ae0d2efd51d0e8272b2f808857f0a43a88aaf7549da6d7a8a84",
    ),
    "bert-base-cased": _preset(
        "2018_10_18/cased_L-12_H-768_A-12.zip",
        _CASED,
        "734d5a1b68bf98d4e9cb6b6692725d00842a1937af73902e51776905d8f760ea",
    ),
    "bert-large-cased": _preset(
        "2018_10_18/cased_L-24_H-1024_A-16.zip",
        _CASED,
        "6ff33640f40d472f7a16af0c17b1179ca9dcc0373155fb05335b6a4dd1657ef0",
    ),
    "bert-large-whole-word": _preset("2019_05_30/wwm_uncased_L-24_H-1024_A-16.zip", _UNCASED),
    "bert-large-cased-whole-word": _preset("2019_05_30/wwm_cased_L-24_H-1024_A-16.zip", _CASED),
    "bert-base-multilingual-cased": _preset(
        "2018_11_23/multi_cased_L-12_H-768_A-12.zip",
        _MULTILINGUAL,
        "55b8a2df41f69c60c5180e50a7c31b7cdf6238909390c4ddf05fbc0d37aa1ac5",
    ),
    "bert-base-chinese": _preset(
        "2018_11_03/chinese_L-12_H-768_A-12.zip",
        _CHINESE,
        "756699356b78ad0ef1ca9ba6528297bcb3dd1aef5feadd31f4775d7c7fc989ba",
    ),
}
PRESET_CONFIGS = {name: preset.encoder for name, preset in PRESETS.items()}
# The presets that advice names: one for each size.
USUAL = ("bert-tiny", "bert-mini", "bert-small", "bert-medium", "bert-base", "bert-large")


def closest_preset(name: str) -> str | None:
    """Return the preset whose name is most similar to a misspelled one; None if none is."""
    found = difflib.get_close_matches(name, PRESETS, n=1)
    return found[0] if found else None
