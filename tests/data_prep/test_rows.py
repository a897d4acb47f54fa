"""Cleaned text is read back unchanged by any reader that splits at line ends and tabs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from data_prep.tables.rows import clean

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # Including lone surrogates.


@given(ANY_TEXT)
def test_clean_text_is_one_line_of_one_field_in_utf8(text: str) -> None:
    cleaned = clean(text)
    assert len(cleaned.splitlines()) <= 1 and not cleaned.endswith(("\n", "\r", "\x85"))
    assert not set(cleaned) & set("\t\0")
    assert cleaned.encode("utf-8").decode("utf-8") == cleaned


@given(ANY_TEXT)
def test_clean_keeps_positions_and_is_idempotent(text: str) -> None:
    assert len(clean(text)) == len(text)
    assert clean(clean(text)) == clean(text)


def test_clean_keeps_all_other_characters() -> None:
    text = "  naïve “quotes” 🙂 \\n \x1f\x7f\ufeff\xa0 "
    assert clean(text) == text
    assert clean("a\tb\r\nc\u2028d\ud800e") == "a b  c d e"
