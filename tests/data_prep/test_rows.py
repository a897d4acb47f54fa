"""Cleaned text is read back unchanged by any reader that splits at line ends and tabs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertaccum.errors import InputError
from bertaccum.system.progress import silent
from data_prep.tables.rows import Part, Row, clean, read_part

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


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("second texts", Row(1, "a", "b", "c"), Row(2, "a", "b")),
        ("second texts", Row(1, "a", "b"), Row(2, "a", "b", "c")),
        ("weights", Row(1, "a", "b", None, 1.0), Row(2, "a", "b")),
        ("weights", Row(1, "a", "b"), Row(2, "a", "b", None, 1.0)),
    ],
)
def test_columns_of_only_some_rows_are_refused(name: str, first: Row, second: Row) -> None:
    with pytest.raises(InputError, match=f"x, row 2: has {name} only in some rows; give"):
        read_part(Part("x", [first, second]), "training", silent)
