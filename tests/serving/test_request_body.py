"""Bodies of prediction requests: which are accepted, and the message about each other one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from bertaccum.serving.request_checks import schema, texts_of

PAIR = {"text": "a", "text_pair": "b"}
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("texts"),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["texts", "text", "text_pair", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def test_texts_and_pairs_are_returned_in_order() -> None:
    body = {"texts": ["b", "", "a\0\n", "\U0001f600"]}
    assert texts_of(json.dumps(body).encode(), False, 4) == [(t, None) for t in body["texts"]]
    body = {"texts": [PAIR, {"text": "", "text_pair": "é"}]}
    assert texts_of(json.dumps(body, ensure_ascii=False).encode(), True, 4) == [
        ("a", "b"),
        ("", "é"),
    ]
    assert texts_of(b'\xef\xbb\xbf {"texts": ["a"]}', False, 1) == [("a", None)]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "the body is not JSON (Expecting value at character 0)"),
        (b'{"texts": ["a"', 400, "the body is not JSON (Expecting ',' delimiter at character 14)"),
        (b'{"texts": ["\xff"]}', 400, "the body is not in UTF-8"),
        ('{"texts": ["a"]}'.encode("utf-16"), 400, "the body is not in UTF-8"),
        (b"[" * 200_000, 400, "the body is nested too deeply"),
        (
            b'{"texts": [' + b"9" * 10_000 + b"]}",
            400,
            "the body contains a number with too many digits",
        ),
        (["a"], 422, "the body must be an object with the key texts only"),
        ({"texts": ["a"], "x": 1}, 422, "the body must be an object with the key texts only"),
        ({"texts": "a"}, 422, "texts must be a list with at least one text"),
        ({"texts": []}, 422, "texts must be a list with at least one text"),
        ({"texts": ["a"] * 5}, 413, "texts has 5 texts; send at most 4 in a request"),
        ({"texts": ["a", 1]}, 422, "texts[1] must be a string"),
        ({"texts": ["a", None]}, 422, "texts[1] must be a string"),
        (
            {"texts": ["\ud800"]},
            422,
            "texts[0] contains half of a surrogate pair, which is not a character",
        ),
        ({"texts": [PAIR]}, 422, "texts[0] is an object; the model takes single texts, as strings"),
    ],
)
def test_error_says_what_is_wrong(body: Any, status: int, message: str) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(HTTPException) as refused:
        texts_of(data, False, 4)
    assert (refused.value.status_code, refused.value.detail) == (status, message)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            ["a"],
            "texts[0] is a single text; the model takes pairs, as objects with text and text_pair",
        ),
        ([PAIR, {"text": "a"}], "texts[1] must be an object with the keys text and text_pair only"),
        ([PAIR | {"x": 1}], "texts[0] must be an object with the keys text and text_pair only"),
        ([None], "texts[0] must be an object with the keys text and text_pair only"),
        ([PAIR | {"text_pair": 1}], "texts[0].text_pair must be a string"),
    ],
)
def test_error_for_a_model_of_pairs(texts: Any, message: str) -> None:
    with pytest.raises(HTTPException) as refused:
        texts_of(json.dumps({"texts": texts}).encode(), True, 4)
    assert (refused.value.status_code, refused.value.detail) == (422, message)


@settings(max_examples=300)
@given(body=st.binary() | JSON_VALUES.map(lambda v: json.dumps(v).encode()), pairs=st.booleans())
def test_any_body_is_accepted_or_refused(body: bytes, pairs: bool) -> None:
    try:
        found = texts_of(body, pairs, 4)
    except HTTPException as error:
        assert 400 <= error.status_code < 500 and "\n" not in error.detail
    else:
        assert found and all((second is not None) == pairs for _, second in found)


@pytest.mark.parametrize("pairs", [False, True])
def test_schema_describes_what_is_accepted(pairs: bool) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema needs Python 3.11")
    bodies = [
        {"texts": ["a"]},
        {"texts": [PAIR]},
        {"texts": []},
        {"texts": ["a"] * 5},
        {"texts": [PAIR] * 5},
        {"texts": [PAIR | {"x": 1}]},
        {"texts": [1]},
        {"texts": ["a"], "x": 1},
        {},
        [],
    ]
    validator = jsonschema.Draft202012Validator(schema(pairs, 4))
    accepted = []
    for body in bodies:
        try:
            texts_of(json.dumps(body).encode(), pairs, 4)
        except HTTPException:
            continue
        accepted.append(body)
    assert accepted == [body for body in bodies if validator.is_valid(body)]
    assert accepted == [{"texts": [PAIR if pairs else "a"]}]
    assert validator.is_valid(schema(pairs, 4)["example"])
