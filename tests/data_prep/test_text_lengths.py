"""The lengths of texts are estimated from their words."""

from __future__ import annotations

import pandas as pd
import pytest
import tensorflow as tf

from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.tokenizer_files import read_tokenizer
from bertaccum.cli.display.data_notes import notes
from data_prep.findings import estimated_lengths


def test_words_symbols_and_ideographs_count() -> None:
    texts = [b"one two, three!"] * 3 + ["中文字".encode() * 100] * 2
    found = estimated_lengths(texts)
    assert found["median"] == round(1.07 * 5 + 2)
    assert found["longer_than"] == {"128": 0.4, "256": 0.4, "512": 0.0}


def test_large_sets_are_sampled_evenly() -> None:
    texts = [b"a " * 200] * 15_000 + [b"b"] * 15_000
    assert estimated_lengths(texts)["longer_than"]["128"] == 0.5


def test_estimate_is_close_on_real_texts(shared) -> None:
    file = next((shared / "data/hotels_chinese").glob("*.csv"))
    texts = pd.read_csv(file)["review"].astype(str).tolist()[:2000]
    vocabulary = read_tokenizer(shared / "data/vocab/vocab_chinese.txt")
    exact = Tokenizer(Tokenization(vocabulary, 128)).with_lengths(tf.constant(texts))[1].numpy()
    found = estimated_lengths([text.encode() for text in texts])["longer_than"]
    for limit, share in found.items():
        assert share == pytest.approx((exact > int(limit)).mean(), abs=0.03)


def test_note_names_the_share_of_long_texts() -> None:
    findings = {
        "repeated": {"texts": 0, "rows": 0},
        "conflicting": {"texts": 0, "rows": []},
        "also_in_test": {"texts": 0, "rows": 0},
        "empty": {},
        "missing_labels": {},
        "spellings": {},
        "estimated_tokens": {"median": 150, "longer_than": {"128": 0.6, "256": 0.2, "512": 0.0}},
    }
    rows = {"rows": 99, "classes": {"0": 50, "1": 49}}
    counts = {"train": rows, "dev": rows}
    options = {"drop_duplicates": None, "dev_fraction": 0.1}
    manifest = {"task": "classification", "counts": counts, "options": options, "dev_fraction": 0.1}
    told = [line for line in notes(manifest | {"findings": findings}) if "tokens" in line]
    assert len(told) == 1 and told[0].startswith(
        "note: about 60% of the training texts have more than 128 tokens, 20% more than 256,"
        " 0% more than 512: `train --max-seq-length`"
    )
    findings["estimated_tokens"]["longer_than"]["128"] = 1.0
    assert "note: 100% of the training" in "".join(notes(manifest | {"findings": findings}))
    for share, words in ((0.997, "more than 99%"), (0.004, "less than 1%")):
        findings["estimated_tokens"]["longer_than"]["128"] = share
        told_of = "".join(notes(manifest | {"findings": findings}))
        assert f"note: {words} of the training texts have more than 128" in told_of
    findings["estimated_tokens"]["longer_than"]["128"] = 0.0
    assert not [line for line in notes(manifest | {"findings": findings}) if "tokens" in line]
