"""Files of tokenizers: vocabularies, and how the checkpoints' texts were cleaned.

A setting comes from `tokenizer_config.json`, unless transformers ignores it for the class of the
tokenizer; else from `tokenizer.json`, else from the name of the checkpoint, as in
google-research/bert, else from the entries of the vocabulary. Without a setting, `[SEP]` in a text
is a special token in models of transformers, and three words in Google's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertaccum.bert.added_tokens import ROLES, added_tokens, described_tokens, with_added_tokens
from bertaccum.bert.vocabulary import (
    LONGEST_ENTRY_BYTES,
    LONGEST_WORD,
    SPECIAL_TOKENS,
    Vocabulary,
    is_cased,
    is_too_long,
)
from bertaccum.errors import InputError
from bertaccum.system.atomic import write_text
from bertaccum.system.files import json_text, read_mapping, read_object, read_optional, read_text

WORDS, TOKENIZER, SETTINGS = "vocab.txt", "tokenizer.json", "tokenizer_config.json"
_ADDED, _MAP = "added_tokens.json", "special_tokens_map.json"
FILES = (WORDS, TOKENIZER, SETTINGS, _ADDED, _MAP)
# The parts of a tokenizer.json in which BERT's tokenizer differs from others.
_PARTS = {"normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer", "model": "WordPiece"}
_CONTINUES = "##"  # The beginning of an entry that continues a word.
# Classes of transformers with BERT's tokenizer, and those that a tokenizer.json describes, without
# the settings in `tokenizer_config.json`.
_CLASS = "BertTokenizer"
_DESCRIBED = re.compile(r"PreTrainedTokenizer(Fast)?|TokenizersBackend")
_CLASSES = re.compile(
    r"(Bert|DistilBert|Electra|MobileBert|ConvBert|SqueezeBert)Tokenizer(Fast)?|"
    + _DESCRIBED.pattern
)
# Each setting of `Vocabulary`, with its keys in `tokenizer_config.json` and in a normalizer.
_KEYS = {
    "lower_case": ("do_lower_case", "lowercase"),
    "strip_accents": ("strip_accents", "strip_accents"),
    "split_chinese": ("tokenize_chinese_chars", "handle_chinese_chars"),
}
# Keys of our own in `tokenizer_config.json`: fields of `Vocabulary`.
_OURS = ("longest_word", "as_transformers")
_LONGEST_WORD_OF_TRANSFORMERS = 100
# RE2 cannot count further.
_LONGEST_POSSIBLE_WORD = 999


def read_tokenizer(path: Path, name: str = "", as_transformers: bool = False) -> Vocabulary:
    """Return the vocabulary in a file, with the settings in the files beside it.

    Args:
      path: A `vocab.txt`, or the `tokenizer.json` of a Hugging Face folder.
      name: Name of the checkpoint, such as cased_L-12_H-768_A-12; "" if it says nothing.
    """
    home = path.parent
    tokenizer = read_optional(home / TOKENIZER)
    config = read_optional(home / _MAP) | read_optional(home / SETTINGS)
    entries = read_vocabulary(path)
    if path.name == WORDS:
        _check_same_entries(entries, tokenizer, path)
    rules = _part(tokenizer, "normalizer")
    settings = {} if _is_described(home, config, tokenizer) else config
    known = {setting: _setting(setting, settings, rules, home) for setting in _KEYS}
    if known["lower_case"] is None:
        known["lower_case"] = _usual_lower_case(name, entries)
    if known["strip_accents"] is None:
        known["strip_accents"] = known["lower_case"]
    known["split_chinese"] = known["split_chinese"] is not False
    as_transformers = as_transformers or config.get("as_transformers") is True
    # Google's checkpoints keep the limit of the original tokenizer.
    model = _part(tokenizer, "model") if as_transformers else {}
    usual = _LONGEST_WORD_OF_TRANSFORMERS if as_transformers else LONGEST_WORD
    known["longest_word"] = _longest_word(config, model, usual, home)
    vocabulary = Vocabulary(entries, **known, as_transformers=as_transformers)
    split = config.get("split_special_tokens", not as_transformers)
    size = read_optional(home / "config.json").get("vocab_size")
    embeddings = size if type(size) is int else None
    numbers = read_optional(home / _ADDED)
    added = added_tokens(entries, config, tokenizer, numbers, home, embeddings)
    vocabulary = with_added_tokens(vocabulary, added, split is True, home)
    _check_lengths(vocabulary, path)
    return vocabulary


def _check_same_entries(entries: list[str], tokenizer: dict[str, Any], path: Path) -> None:
    """Raise InputError if the tokenizer.json beside a vocab.txt has other entries.

    Either file may have more rows, and tools differ in whether they keep spaces at the end of one.
    """
    words = _part(_part(tokenizer, "model"), "vocab")
    others = {number: word for word, number in words.items() if type(number) is int}
    for number, entry in enumerate(entries):
        other = others.get(number, entry)
        if other.rstrip() != entry.rstrip():
            raise InputError(
                f"has the entry {entry!r}, but {other!r} has its ID in {TOKENIZER} beside it",
                f"delete the file that is out of date, or set `vocab` to {TOKENIZER}, which"
                " transformers reads",
                path=path,
                row=number + 1,
            )


def _check_lengths(vocabulary: Vocabulary, path: Path) -> None:
    """Raise InputError if an entry is too long; added ones are matched in another way."""
    for row, entry in enumerate(vocabulary.entries, start=1):
        if is_too_long(entry) and entry not in vocabulary.added:
            raise InputError(
                f"has the entry {entry[:20]}… of more than {LONGEST_ENTRY_BYTES} bytes",
                "use the vocabulary of another model",
                path=path,
                row=row if path.name != TOKENIZER else None,
            )


def gives_segments(home: Path) -> bool:
    """Return whether the tokenizer in a folder gives segments to a model of transformers."""
    config = read_mapping(home / SETTINGS) or {}
    named = config.get("model_input_names")
    if isinstance(named, list):
        return "token_type_ids" in named
    return not str(config.get("tokenizer_class")).startswith("DistilBert")


def _part(tokenizer: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a part of a tokenizer.json, which is empty if the file does not describe it."""
    part = tokenizer.get(name)
    return part if isinstance(part, dict) else {}


def _is_described(home: Path, config: dict[str, Any], tokenizer: dict[str, Any]) -> bool:
    """Return whether tokenizer.json alone describes how texts are cleaned.

    Raises:
      InputError: The files describe another kind of tokenizer than BERT's.
    """
    key, hint = "tokenizer_class", "use a model with BERT's own tokenizer"
    named = config.get(key) or read_optional(home / "config.json").get(key)
    if named is not None and not _CLASSES.fullmatch(str(named)):
        raise InputError(f"has the {key} {named}, expected {_CLASS}", hint, path=home)
    described = bool(tokenizer) and _DESCRIBED.fullmatch(str(named)) is not None
    for part, kind in _PARTS.items():
        found = _part(tokenizer, part).get("type")
        # Old files do not name the type of the model.
        missing = found is None and described and part != "model"
        # BERT's classes make a normalizer from the settings.
        replaced = part == "normalizer" and "do_lower_case" in config and not described
        if missing or (found not in (None, kind) and not replaced):
            what = f"has no {part}" if missing else f"has the {part} {found}"
            raise InputError(f"{what}, expected {kind}", hint, path=home / TOKENIZER)
    prefix = _part(tokenizer, "model").get("continuing_subword_prefix", _CONTINUES)
    if prefix != _CONTINUES:
        what = f"its continuing_subword_prefix is {prefix!r}, expected {_CONTINUES!r}"
        raise InputError(what, hint, path=home / TOKENIZER)
    return described


def _longest_word(config: dict[str, Any], model: dict[str, Any], usual: int, home: Path) -> int:
    limit = config.get("longest_word", model.get("max_input_chars_per_word", usual))
    if type(limit) is int and 0 < limit <= _LONGEST_POSSIBLE_WORD:
        return limit
    raise InputError(
        f"its tokenizer's max_input_chars_per_word is {limit!r},"
        f" expected a number from 1 to {_LONGEST_POSSIBLE_WORD}",
        "correct tokenizer.json",
        path=home,
    )


def _setting(setting: str, config: dict[str, Any], rules: dict[str, Any], home: Path) -> Any:
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


def read_vocabulary(path: Path) -> list[str]:
    """Return the entries in a `vocab.txt` or `tokenizer.json`, in the order of the IDs."""
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


def learn_vocabulary(texts: Iterable[str], size: int = 4000) -> list[str]:
    """Return a WordPiece vocabulary of at most `size` entries, learned with tensorflow-text's tool.

    The texts are first normalized as for the tokenizer. The entries start with `[PAD]`, whose ID is
    0.
    """
    # Most data folders need no vocabulary, and TensorFlow takes seconds to import.
    import tensorflow as tf
    from tensorflow_text.tools.wordpiece_vocab import bert_vocab_from_dataset

    from bertaccum.bert.tokenizer import TextCleaning

    batches = tf.data.Dataset.from_tensor_slices(list(texts)).batch(1024)
    return bert_vocab_from_dataset.bert_vocab_from_dataset(
        batches.map(TextCleaning(Vocabulary([]))),
        vocab_size=size,
        reserved_tokens=list(SPECIAL_TOKENS),
    )


def write_tokenizer(folder: Path, vocabulary: Vocabulary, **more: Any) -> None:
    """Write a tokenizer's files, which `read_tokenizer` and transformers read."""
    added = described_tokens(vocabulary)
    settings = {
        "tokenizer_class": _CLASS,
        **{key: getattr(vocabulary, setting) for setting, (key, _) in _KEYS.items()},
        # Whether `[SEP]` in a text is five characters, as in training, or a special token.
        "split_special_tokens": "[SEP]" not in vocabulary.added,
        **{key: getattr(vocabulary, key) for key in _OURS if vocabulary.as_transformers},
        **({"added_tokens_decoder": added} if added else {}),
        **more,
        **ROLES,
    }
    write_text(folder / WORDS, "\n".join(vocabulary.entries) + "\n")
    write_text(folder / _MAP, json_text(ROLES))
    write_text(folder / SETTINGS, json_text(settings))
