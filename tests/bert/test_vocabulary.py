"""Vocabularies are checked when they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertaccum.bert.tokenizer_files import learn_vocabulary, read_vocabulary
from bertaccum.bert.vocabulary import SPECIAL_TOKENS
from bertaccum.errors import InputError


def write(path: Path, *entries: str) -> Path:
    path.write_text("\n".join(entries) + "\n", encoding="utf-8")
    return path


def test_ids_are_line_numbers(tmp_path: Path) -> None:
    entries = [*SPECIAL_TOKENS, "good", "\u2028", "##ing"]
    assert read_vocabulary(write(tmp_path / "vocab.txt", *entries)) == entries


def test_error_names_missing_special_tokens(tmp_path: Path) -> None:
    path = write(tmp_path / "vocab.txt", "[PAD]", "[UNK]", "good")
    with pytest.raises(InputError, match=r"vocab.txt: has no \[CLS\], \[SEP\], \[MASK\]"):
        read_vocabulary(path)


def test_error_names_repeated_entry_and_row(tmp_path: Path) -> None:
    path = write(tmp_path / "vocab.txt", *SPECIAL_TOKENS, "good", "bad", "good")
    with pytest.raises(InputError, match="row 8: repeats 'good' of row 6"):
        read_vocabulary(path)


def test_error_names_row_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"[PAD]\ncaf\xe9\n")
    with pytest.raises(InputError, match="row 2: is not UTF-8"):
        read_vocabulary(path)
    with pytest.raises(InputError, match="no such file"):
        read_vocabulary(tmp_path / "absent.txt")


def test_vocabulary_is_learned_from_texts(tmp_path: Path) -> None:
    texts = ["The pancakes were delicious", "the waiter was RUDE", "delicious, delicious!"] * 20
    vocabulary = learn_vocabulary(texts, size=100)
    assert vocabulary[:5] == list(SPECIAL_TOKENS)
    assert "delicious" in vocabulary
    assert "rude" in vocabulary  # Lower-cased, as in the tokenizer.
    assert read_vocabulary(write(tmp_path / "vocab.txt", *vocabulary)) == vocabulary
