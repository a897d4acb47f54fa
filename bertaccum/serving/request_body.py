"""Checks of the body of a prediction request."""

from __future__ import annotations

import json
from typing import Any

from starlette.exceptions import HTTPException

from bertaccum.inference.results import TextAndPair
from data_prep.tables.columns import PAIR, TEXT

TEXTS = "texts"
# HTTP status codes of refused requests.
MALFORMED, TOO_LARGE, UNPROCESSABLE = 400, 413, 422


def texts_of(body: bytes, pairs: bool, most: int) -> list[TextAndPair]:
    """Return up to `most` texts of a request such as `{"texts": ["a text"]}`, JSON in UTF-8.

    With `pairs`, each is an object with `text` and `text_pair`. Raises HTTPException.
    """
    values = _parsed(body)
    if not isinstance(values, dict) or values.keys() != {TEXTS}:
        raise _wrong(f"the body must be an object with the key {TEXTS} only")
    texts = values[TEXTS]
    if not isinstance(texts, list) or not texts:
        raise _wrong(f"{TEXTS} must be a list with at least one text")
    if len(texts) > most:
        what = f"{TEXTS} has {len(texts):,} texts; send at most {most:,} in a request"
        raise HTTPException(TOO_LARGE, what)
    return [_checked(f"{TEXTS}[{number}]", text, pairs) for number, text in enumerate(texts)]


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise HTTPException(MALFORMED, "the body is not in UTF-8") from None
    except RecursionError:
        raise HTTPException(MALFORMED, "the body is nested too deeply") from None
    except json.JSONDecodeError as error:
        problem = f"{error.msg} at character {error.pos}"
        raise HTTPException(MALFORMED, f"the body is not JSON ({problem})") from None
    except ValueError:  # Python refuses to convert numbers with thousands of digits.
        raise HTTPException(MALFORMED, "the body contains a number with too many digits") from None


def _checked(where: str, text: Any, pairs: bool) -> TextAndPair:
    """Return a text, or raise an HTTPException that names the place of the text."""
    if not pairs and isinstance(text, dict):
        raise _wrong(f"{where} is an object; the model takes single texts, as strings")
    if not pairs:
        return _string(where, text), None
    if isinstance(text, str):
        wanted = f"the model takes pairs, as objects with {TEXT} and {PAIR}"
        raise _wrong(f"{where} is a single text; {wanted}")
    if not isinstance(text, dict) or text.keys() != {TEXT, PAIR}:
        raise _wrong(f"{where} must be an object with the keys {TEXT} and {PAIR} only")
    return _string(f"{where}.{TEXT}", text[TEXT]), _string(f"{where}.{PAIR}", text[PAIR])


def _string(where: str, text: Any) -> str:
    if not isinstance(text, str):
        raise _wrong(f"{where} must be a string")
    try:
        text.encode()
    except UnicodeEncodeError:
        problem = "contains half of a surrogate pair, which is not a character"
        raise _wrong(f"{where} {problem}") from None
    return text


def _wrong(problem: str) -> HTTPException:
    return HTTPException(UNPROCESSABLE, problem)


def schema(pairs: bool, most: int) -> dict[str, Any]:
    """Return the JSON schema of the bodies that `texts_of` accepts."""
    string = {"type": "string"}
    single = string | {"title": "Text", "examples": ["The food was great."]}
    example = {TEXT: "Is it open?", PAIR: "When does it open?"}
    pair = _object("Pair", {TEXT: string, PAIR: string}) | {"examples": [example]}
    items = pair if pairs else single
    listed = {"type": "array", "minItems": 1, "maxItems": most, "items": items}
    return _object("Texts", {TEXTS: listed}) | {"example": {TEXTS: items["examples"]}}


def _object(title: str, properties: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an object with all of these properties and no others."""
    only = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "title": title, **only, "properties": properties}
