"""Files of tokenizers: vocabularies, and how the checkpoints' texts were cleaned.

A setting comes from `tokenizer_config.json`, else from `tokenizer.json`, else from the name of the
checkpoint, as in google-research/bert, else from the entries of the vocabulary. This module does
not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from bertaccum.atomic import write_text
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary, is_cased
from bertaccum.errors import InputError
from bertaccum.files import json_text, read_object, read_text

WORDS, TOKENIZER, SETTINGS = "vocab.txt", "tokenizer.json", "tokenizer_config.json"
_ADDED = "added_tokens.json"
# Each added token is searched for in every text.
_MOST_ADDED = 10_000
# In place of a checkpoint's name. Older runs have no `tokenizer_config.json`, and all lowercased.
OLDER_RUN = "uncased"
_NORMALIZER = "BertNormalizer"
# Each setting of `Vocabulary`, with its keys in `tokenizer_config.json` and in a normalizer.
_KEYS = {
    "lower_case": ("do_lower_case", "lowercase"),
    "strip_accents": ("strip_accents", "strip_accents"),
    "split_chinese": ("tokenize_chinese_chars", "handle_chinese_chars"),
}
_SPECIAL = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}


def read_tokenizer(path: Path, name: str = "") -> Vocabulary:
    """Return the vocabulary in a file, with the settings in the files beside it.

    Args:
      path: A `vocab.txt`, or the `tokenizer.json` of a Hugging Face folder.
      name: Name of the checkpoint, such as cased_L-12_H-768_A-12; "" if it says nothing.

    Raises:
      InputError: A file is missing or damaged, or describes a tokenizer other than BERT's.
    """
    home = path.parent
    tokenizer, config = _object(home / TOKENIZER), _object(home / SETTINGS)
    entries = read_vocabulary(path)
    rules = tokenizer.get("normalizer")
    rules = rules if isinstance(rules, dict) else {}
    if rules.get("type", _NORMALIZER) != _NORMALIZER and "do_lower_case" not in config:
        raise InputError(
            f"its normalizer is a {rules['type']}, expected {_NORMALIZER}",
            "use a model with BERT's own tokenizer",
            path=home / TOKENIZER,
        )
    known = {setting: _known(setting, config, rules, home) for setting in _KEYS}
    if known["lower_case"] is None:
        known["lower_case"] = _usual_lower_case(name, entries)
    if known["strip_accents"] is None:
        known["strip_accents"] = known["lower_case"]
    known["split_chinese"] = known["split_chinese"] is not False
    return _with_added(Vocabulary(entries, **known), _added(home, config, tokenizer), home)


def _object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, which is empty if there is no such file."""
    return read_object(path) if path.is_file() else {}


def _known(setting: str, config: dict[str, Any], rules: dict[str, Any], home: Path) -> Any:
    """Return what the files say about a setting: True, False, or None if nothing."""
    in_config, in_rules = _KEYS[setting]
    value = config.get(in_config)
    value = rules.get(in_rules) if value is None else value
    if not isinstance(value, bool | None):
        raise InputError(
            f"its tokenizer's {setting} is {value!r}, expected true or false",
            "correct tokenizer_config.json",
            path=home,
        )
    return value


def _usual_lower_case(name: str, entries: list[str]) -> bool:
    """Return whether texts are lowercased, from a checkpoint's name or else its vocabulary."""
    words = set(re.split(r"[^a-z]+", name.lower()))
    if "cased" in words:
        return False
    return bool(words & {"uncased", "chinese"}) or not is_cased(entries)


def _with_added(vocabulary: Vocabulary, added: list[dict[str, Any]], home: Path) -> Vocabulary:
    """Return a vocabulary with added tokens; those that are not entries yet get the next IDs."""
    if len(added) > _MOST_ADDED:
        raise InputError(
            f"its tokenizer has {len(added):,} added tokens, more than {_MOST_ADDED:,}",
            "add them to the vocabulary instead",
            path=home,
        )
    entries, any_case = list(vocabulary.entries), {}
    known = set(entries)
    for token in sorted(added, key=lambda token: token["id"]):
        number, content = token["id"], token["content"]
        if content in SPECIAL_TOKENS:
            continue
        if number == len(entries) and content not in known:
            entries.append(content)
            known.add(content)
        elif not (0 <= number < len(entries) and entries[number] == content):
            raise InputError(
                f"its added token {content!r} has the ID {number}, which is not the next one",
                "save the tokenizer again with transformers",
                path=home,
            )
        if token.get("single_word"):
            raise InputError(
                f"its added token {content!r} matches only whole words, which is not supported",
                "use a tokenizer without such tokens",
                path=home,
            )
        any_case[content] = vocabulary.lower_case and bool(token.get("normalized"))
    return dataclasses.replace(vocabulary, entries=entries, added=any_case)


def _added(home: Path, config: dict[str, Any], tokenizer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the added tokens of a tokenizer, each with its `id` and `content`."""
    described = config.get("added_tokens_decoder") or {}
    listed = tokenizer.get("added_tokens") or []
    named = _object(home / _ADDED)
    try:
        found = {token["content"]: token for token in listed}
        found |= {value["content"]: value | {"id": int(key)} for key, value in described.items()}
        found |= {
            word: {"content": word, "id": key} | found.get(word, {}) for word, key in named.items()
        }
        if all(
            isinstance(word, str) and word and type(token["id"]) is int
            for word, token in found.items()
        ):
            return list(found.values())
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    raise InputError("its added tokens are damaged", "download the tokenizer again", path=home)


def read_vocabulary(path: Path) -> list[str]:
    """Return the entries in a `vocab.txt` or `tokenizer.json`, in the order of the IDs.

    Raises:
      InputError: The file is missing or damaged, repeats an entry or lacks a special token.
    """
    if path.name == TOKENIZER:
        entries = _entries_of_json(path)
    else:
        rows = read_text(path).removesuffix("\n").split("\n")
        entries = [row.removesuffix("\r") for row in rows]
    _check_vocabulary(entries, path)
    return entries


def _entries_of_json(path: Path) -> list[str]:
    model = read_object(path).get("model")
    words = model.get("vocab") if isinstance(model, dict) else None
    words = words if isinstance(words, dict) else {}
    numbers = list(words.values())
    whole = numbers and all(type(number) is int for number in numbers)
    if not whole or sorted(numbers) != list(range(len(numbers))):
        raise InputError("contains no WordPiece vocabulary", "add a vocab.txt", path=path)
    return sorted(words, key=words.__getitem__)


def _check_vocabulary(vocabulary: list[str], path: Path) -> None:
    """Raise InputError if a vocabulary lacks a special token or repeats an entry."""
    missing = [token for token in SPECIAL_TOKENS if token not in vocabulary]
    if missing:
        raise InputError(
            f"has no {', '.join(missing)}", "use the vocab.txt of a BERT model", path=path
        )
    first_row: dict[str, int] = {}
    for row, entry in enumerate(vocabulary, start=1):
        if first_row.setdefault(entry, row) != row:
            raise InputError(
                f"repeats {entry!r} of row {first_row[entry]}",
                "list every entry only once",
                path=path,
                row=row,
            )


def write_tokenizer(folder: Path, vocabulary: Vocabulary, **more: Any) -> None:
    """Write a tokenizer's files, which `read_tokenizer` and transformers read.

    Args:
      folder: Existing folder to write to.
      vocabulary: The vocabulary, with its cleaning of texts.
      **more: Further settings for transformers.
    """
    added = {
        str(vocabulary.entries.index(entry)): {
            "content": entry,
            "lstrip": False,
            "normalized": any_case,
            "rstrip": False,
            "single_word": False,
            "special": False,
        }
        for entry, any_case in vocabulary.added.items()
    }
    settings = {
        "tokenizer_class": "BertTokenizer",
        **{key: getattr(vocabulary, setting) for setting, (key, _) in _KEYS.items()},
        # As in training, `[SEP]` in a text is five characters, not a special token.
        "split_special_tokens": True,
        **({"added_tokens_decoder": added} if added else {}),
        **more,
        **_SPECIAL,
    }
    write_text(folder / WORDS, "\n".join(vocabulary.entries) + "\n")
    write_text(folder / "special_tokens_map.json", json_text(_SPECIAL))
    write_text(folder / SETTINGS, json_text(settings))
