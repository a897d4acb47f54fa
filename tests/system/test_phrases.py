"""Phrases of messages: numbers with their nouns, and lists that are cut short."""

from __future__ import annotations

from bertaccum.system.phrases import counted, listed, percent


def test_number_one_has_a_singular_noun() -> None:
    assert [counted(n, "row") for n in (0, 1, 2000)] == ["0 rows", "1 row", "2,000 rows"]
    assert counted(1, "class", "classes") == "1 class"
    assert counted(3, "class", "classes") == "3 classes"


def test_only_none_and_all_are_0_and_100_percent() -> None:
    shares = [percent(part) for part in (0.0, 0.004, 0.37, 0.997, 1.0)]
    assert shares == ["0%", "less than 1%", "37%", "more than 99%", "100%"]


def test_list_says_how_many_items_it_leaves_out() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed(["a", "b", "c"], 2) == "a, b and 1 more"
    assert listed(list("abcdefg"), separator="; ") == "a; b; c; d; e and 2 more"


def test_long_items_are_cut() -> None:
    assert listed(["x" * 300, "b"]) == "x" * 200 + "…, b"
