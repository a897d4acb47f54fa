"""Tokens that transformers matches in texts before it splits them into words.

These are the tokens that were added to a vocabulary, and unless the tokenizer splits them, the
special tokens. Source: huggingface/transformers `tokenization_utils_base.py` and
huggingface/tokenizers `added_vocabulary.rs`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.errors import InputError

# Each special token, under its key in the files of a tokenizer.
ROLES = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
# Each added token is searched for in every text.
_MAX_ADDED = 10_000


def added_tokens(
    entries: list[str],
    config: dict[str, Any],
    tokenizer: dict[str, Any],
    numbers: dict[str, Any],
    home: Path,
    embeddings: int | None = None,
) -> list[dict[str, Any]]:
    """Return the added and the special tokens of a tokenizer, each with its `id` and `content`.

    Args:
      numbers: Contents of `added_tokens.json`, the ID of each added token.
      embeddings: Number of the model's embeddings; None if it is unknown. A special token to which
        no file gives an ID gets the next one, and is left out if it has no embedding.
    """
    described = config.get("added_tokens_decoder") or {}
    listed = tokenizer.get("added_tokens") or []
    try:
        tokens = {token["content"]: token for token in listed}
        tokens |= {value["content"]: value | {"id": int(key)} for key, value in described.items()}
        tokens |= {
            word: {"content": word, "id": key} | tokens.get(word, {})
            for word, key in numbers.items()
        }
        known = {entry: number for number, entry in enumerate(entries)}
        following = max([len(entries) - 1, *(token["id"] for token in tokens.values())]) + 1
        # Our own files list every token that is matched.
        for token in [] if config.get("as_transformers") is True else _special(config, home):
            before = tokens.get(token["content"])
            if before is None:
                number = known.get(token["content"], following)
                if embeddings is not None and number >= embeddings:
                    continue
                following += number == following
                before = {"id": number}
            tokens[token["content"]] = token | before | {"special": True}
        if all(
            isinstance(word, str) and word and type(token["id"]) is int
            for word, token in tokens.items()
        ):
            return list(tokens.values())
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    raise InputError("its added tokens are damaged", "download the tokenizer again", path=home)


def _special(config: dict[str, Any], home: Path) -> list[dict[str, Any]]:
    """Return the special tokens of a tokenizer, each with its `content`."""
    more: list[Any] = []
    for key in ("additional_special_tokens", "extra_special_tokens"):
        value = config.get(key) or []
        more += value.values() if isinstance(value, dict) else value
    roles = {key: config.get(key) or usual for key, usual in ROLES.items()}
    tokens = [
        token if isinstance(token, dict) else {"content": token}
        for token in (*roles.values(), *more)
    ]
    for key, token in zip(roles, tokens, strict=False):
        if key in ("cls_token", "sep_token", "unk_token") and token["content"] != ROLES[key]:
            raise InputError(
                f"its tokenizer's {key} is {token['content']}, expected {ROLES[key]}",
                "use a model with BERT's own tokenizer",
                path=home,
            )
    return tokens


def with_added_tokens(
    vocabulary: Vocabulary, added: list[dict[str, Any]], split_special: bool, home: Path
) -> Vocabulary:
    """Return a vocabulary with added tokens; those that are not entries yet get the next IDs.

    Args:
      added: Added tokens, each with its `id` and `content`.
      split_special: Whether special tokens in texts are split like other words.
    """
    count = sum(token["content"] not in SPECIAL_TOKENS for token in added)
    if count > _MAX_ADDED:
        raise InputError(
            f"its tokenizer has {count:,} added tokens, more than {_MAX_ADDED:,}",
            "add them to the vocabulary instead",
            path=home,
        )
    entries, matched = list(vocabulary.entries), {}
    known = set(entries)
    for token in sorted(added, key=lambda token: token["id"]):
        number, content = token["id"], token["content"]
        if number == len(entries) and content not in known:
            entries.append(content)
            known.add(content)
        elif not (0 <= number < len(entries) and entries[number] == content):
            raise InputError(
                f"its added token {content!r} has the ID {number}, which is not the next one",
                "save the tokenizer again with transformers",
                path=home,
            )
        if token.get("special") and split_special:
            continue
        if not content.strip() or len(content.splitlines()) > 1:
            raise InputError(
                f"its added token {content!r} is not visible text in one line",
                "remove the token from the tokenizer",
                path=home,
            )
        if token.get("single_word"):
            raise InputError(
                f"its added token {content!r} matches only whole words, which is not supported",
                "use a tokenizer without such tokens",
                path=home,
            )
        matched[content] = bool(token.get("normalized", not token.get("special")))
    return dataclasses.replace(vocabulary, entries=entries, added=matched)


def described_tokens(vocabulary: Vocabulary) -> dict[str, dict[str, Any]]:
    """Return the added tokens of a vocabulary as the `added_tokens_decoder` of transformers."""
    return {
        str(vocabulary.entries.index(entry)): {
            "content": entry,
            "lstrip": False,
            "normalized": in_cleaned,
            "rstrip": False,
            "single_word": False,
            "special": entry in SPECIAL_TOKENS,
        }
        for entry, in_cleaned in vocabulary.added.items()
    }
