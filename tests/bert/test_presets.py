"""The table of released models agrees with the names of their archives."""

from __future__ import annotations

import re
from pathlib import Path

from bertaccum.bert.presets import PRESETS
from bertaccum.bert.tokenizer_files import read_tokenizer
from bertaccum.bert.vocabulary import SPECIAL_TOKENS


def test_every_released_model_has_a_name() -> None:
    small = [p for p in PRESETS.values() if p.archive.startswith("2020_02_20/")]
    assert len({preset.archive for preset in small}) == 24
    assert len({preset.archive for preset in PRESETS.values()}) == len(PRESETS) == 32


def test_dimensions_and_cleaning_agree_with_the_archive(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIAL_TOKENS))
    for name, preset in PRESETS.items():
        found = re.search(r"_L-(\d+)_H-(\d+)_A-(\d+)\.zip$", preset.archive)
        assert found, name
        encoder = preset.encoder
        dimensions = (encoder.num_hidden_layers, encoder.hidden_size, encoder.num_attention_heads)
        assert tuple(map(int, found.groups())) == dimensions, name
        cleaning = read_tokenizer(tmp_path / "vocab.txt", preset.archive).lower_case
        assert cleaning == preset.lower_case == ("cased" not in re.split(r"[_/]", preset.archive))
        assert ("cased" in name.replace("uncased", "")) == (not preset.lower_case), name
        assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in preset.digests.values())
