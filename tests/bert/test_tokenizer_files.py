"""Settings of tokenizers come from files, else from names, else from the vocabulary."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.tokenizer_files import read_tokenizer, write_tokenizer
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.errors import InputError

LOWER = [f"word{number}" for number in range(150)]
CAPITALS = [*LOWER[:100], *(f"Wörd{number}" for number in range(50))]


def folder_of(folder: Path, words: list[str], **files: Any) -> Path:
    """Write a vocabulary, and JSON files named by the keywords; return the vocabulary's path."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n")
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    return folder / "vocab.txt"


@pytest.mark.parametrize(
    ("words", "name", "files", "lower_case"),
    [
        (LOWER, "", {}, True),
        (CAPITALS, "", {}, False),
        (CAPITALS, "uncased_L-2_H-128_A-2", {}, True),
        (LOWER, "multi_cased_L-12_H-768_A-12.zip", {}, False),
        (LOWER, "bert-base-german-cased", {}, False),
        (CAPITALS, "chinese_L-12_H-768_A-12", {}, True),
        (LOWER, "uncased", {"tokenizer": {"normalizer": {"lowercase": False}}}, False),
        (
            LOWER,
            "uncased",
            {
                "tokenizer": {"normalizer": {"lowercase": False}},
                "tokenizer_config": {"do_lower_case": True},
            },
            True,
        ),
    ],
)
def test_lower_case_comes_from_files_then_name_then_vocabulary(
    tmp_path: Path, words: list[str], name: str, files: dict[str, Any], lower_case: bool
) -> None:
    found = read_tokenizer(folder_of(tmp_path, words, **files), name)
    assert (found.lower_case, found.strip_accents) == (lower_case, lower_case)
    assert found.split_chinese


def test_accents_and_ideographs_have_settings_of_their_own(tmp_path: Path) -> None:
    settings = {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False}
    found = read_tokenizer(folder_of(tmp_path, LOWER, tokenizer_config=settings))
    assert (found.lower_case, found.strip_accents, found.split_chinese) == (True, False, False)


def test_doubt_has_evidence() -> None:
    cased, uncased = ([*SPECIAL_TOKENS, *words] for words in (CAPITALS, LOWER))
    casing_warning = str(Vocabulary(cased, lower_case=True).casing_warning())
    assert "50 of the vocabulary's 150 words" in casing_warning and "Wörd0" in casing_warning
    assert "--no-lower-case" in casing_warning
    assert "only 0 of" in str(Vocabulary(uncased, lower_case=False).casing_warning())
    assert Vocabulary(cased, lower_case=False).casing_warning() is None
    assert Vocabulary(uncased, lower_case=True).casing_warning() is None
    assert Vocabulary(cased[:60], lower_case=False).casing_warning() is None


def test_added_tokens_come_from_each_file(tmp_path: Path) -> None:
    first = len(SPECIAL_TOKENS) + len(LOWER)
    decoder = {
        "0": {"content": "[PAD]", "special": True},
        str(first): {"content": "<url>", "normalized": True},
    }
    listed = [{"id": first + 1, "content": "COVID-19", "normalized": False}]
    path = folder_of(
        tmp_path,
        LOWER,
        tokenizer_config={"added_tokens_decoder": decoder},
        tokenizer={"added_tokens": listed},
        added_tokens={"<user>": first + 2},
    )
    found = read_tokenizer(path)
    assert found.entries[first:] == ["<url>", "COVID-19", "<user>"]
    assert found.added == {"<url>": True, "COVID-19": False, "<user>": True}
    assert found.identity() != read_tokenizer(folder_of(tmp_path / "a", LOWER)).identity()


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ({"id": 200, "content": "<url>"}, "'<url>' has the ID 200, which is not the next one"),
        ({"id": 7, "content": "<url>"}, "has the ID 7"),
        ({"id": 155, "content": "<a>", "single_word": True}, "'<a>' matches only whole words"),
        ({"id": "x", "content": "<url>"}, "its added tokens are damaged"),
        ({"id": 155}, "its added tokens are damaged"),
    ],
)
def test_unusable_added_tokens_are_refused(
    tmp_path: Path, token: dict[str, Any], message: str
) -> None:
    path = folder_of(tmp_path, LOWER, tokenizer={"added_tokens": [token]})
    with pytest.raises(InputError, match=message):
        read_tokenizer(path)


def test_more_added_tokens_than_any_tokenizer_has_are_refused(tmp_path: Path) -> None:
    words = {f"<{number}>": 155 + number for number in range(10_001)}
    path = folder_of(tmp_path, LOWER, added_tokens=words)
    with pytest.raises(InputError, match=r"its tokenizer has 10,001 added tokens, more than 10,0"):
        read_tokenizer(path)
    del words["<10000>"]
    folder_of(tmp_path, LOWER, added_tokens=words)
    assert len(read_tokenizer(path).added) == 10_000


def test_other_normalizers_are_refused(tmp_path: Path) -> None:
    path = folder_of(tmp_path, LOWER, tokenizer={"normalizer": {"type": "Sequence"}})
    with pytest.raises(InputError, match="has the normalizer Sequence, expected BertNormalizer"):
        read_tokenizer(path)
    folder_of(tmp_path, LOWER, tokenizer_config={"do_lower_case": False})
    assert not read_tokenizer(path).lower_case


BERT = {"type": "BertNormalizer", "lowercase": False, "handle_chinese_chars": False}
PRE = {"type": "BertPreTokenizer"}


@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "TokenizersBackend"])
def test_classes_of_any_tokenizer_do_what_tokenizer_json_says(tmp_path: Path, kind: str) -> None:
    """As in transformers, the settings beside it have no effect."""
    settings = {"do_lower_case": True, "strip_accents": True, "tokenize_chinese_chars": True}
    path = folder_of(
        tmp_path,
        LOWER,
        tokenizer={"normalizer": BERT, "pre_tokenizer": PRE},
        tokenizer_config={"tokenizer_class": kind, **settings},
    )
    found = read_tokenizer(path, "uncased")
    assert (found.lower_case, found.strip_accents, found.split_chinese) == (False, False, False)
    folder_of(tmp_path, LOWER, tokenizer_config={"tokenizer_class": "BertTokenizer", **settings})
    assert read_tokenizer(path).lower_case


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"normalizer": None, "pre_tokenizer": PRE}, "has no normalizer, expected BertNormalizer"),
        ({"pre_tokenizer": PRE}, "has no normalizer, expected BertNormalizer"),
        ({"normalizer": BERT, "pre_tokenizer": None}, "has no pre_tokenizer, expected BertPreTok"),
        ({"normalizer": {"type": "Sequence"}, "pre_tokenizer": PRE}, "has the normalizer Sequence"),
    ],
)
def test_tokenizer_json_that_is_not_of_bert_is_refused(
    tmp_path: Path, parts: dict[str, Any], message: str
) -> None:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}
    path = folder_of(tmp_path, LOWER, tokenizer=parts, tokenizer_config=settings)
    with pytest.raises(InputError, match=message):
        read_tokenizer(path)


def vocab_of(words: list[str]) -> dict[str, Any]:
    """Return the parts of a tokenizer.json with these entries after the special tokens."""
    entries = [*SPECIAL_TOKENS, *words]
    return {"model": {"vocab": {entry: n for n, entry in enumerate(entries)}}}


@pytest.mark.parametrize(
    "words", [LOWER, [*LOWER, "more"], LOWER[:-1], [*LOWER[:-1], f"{LOWER[-1]}\u3000"], []]
)
def test_tokenizer_json_may_have_other_rows_at_the_end(tmp_path: Path, words: list[str]) -> None:
    path = folder_of(tmp_path, LOWER, tokenizer=vocab_of(words))
    assert read_tokenizer(path).entries == [*SPECIAL_TOKENS, *LOWER]


def test_vocabularies_that_disagree_are_refused(tmp_path: Path) -> None:
    words = ["other" if word == "word3" else word for word in LOWER]
    path = folder_of(tmp_path, LOWER, tokenizer=vocab_of(words))
    with pytest.raises(InputError, match=r"vocab.txt, row 9: has the entry 'word3', but 'other'"):
        read_tokenizer(path)
    assert read_tokenizer(tmp_path / "tokenizer.json").entries[8] == "other"


def test_entry_that_is_too_long_is_refused(tmp_path: Path) -> None:
    word = "ж" * 129
    path = folder_of(tmp_path, ["a", f"##{word[1:]}", word])
    with pytest.raises(InputError, match=r"row 8: has the entry ж{20}… of more than 256 bytes"):
        read_tokenizer(path)
    # Added tokens are not entries of the op.
    folder_of(tmp_path, ["a", f"##{word[1:]}", word], added_tokens={word: 7})
    tokenizer = Tokenizer(Tokenization(read_tokenizer(path), 8))
    assert tokenizer.pieces(tf.constant([f"a {word}"])).to_list() == [[5, 7]]


def test_written_files_are_read_back(tmp_path: Path) -> None:
    entries = [*SPECIAL_TOKENS, *CAPITALS, "<url>", "Née"]
    given = Vocabulary(entries, False, True, False, {"<url>": False, "Née": False})
    write_tokenizer(tmp_path, given)
    assert read_tokenizer(tmp_path / "vocab.txt", "uncased") == given


TRANSFORMERS = """
import json, sys
from transformers import AutoTokenizer
texts, folder = json.load(open(sys.argv[1])), sys.argv[2]
tokenizer = AutoTokenizer.from_pretrained(folder)
print(json.dumps(tokenizer(texts, add_special_tokens=False)["input_ids"]))
tokenizer.save_pretrained(folder + "/again")
"""


@pytest.mark.slow
@pytest.mark.parametrize("lower_case", [False, True])
def test_transformers_gives_the_same_ids(
    shared: Path, tmp_path: Path, transformers_python: Path, lower_case: bool
) -> None:
    """The files that we write, and those that transformers writes from them, mean the same."""
    name = "vocab.txt" if lower_case else "vocab_cased.txt"
    found = read_tokenizer(shared / "data/vocab" / name)
    entries, added = [*found.entries, "<url>"], {"<url>": False}
    vocabulary = Vocabulary(entries, lower_case, lower_case, True, added)
    write_tokenizer(tmp_path, vocabulary, model_max_length=128)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    golden = json.loads((shared / "golden/tokens_more.json").read_text(encoding="utf-8"))
    texts = [case["text"] for kind in golden.values() for case in kind]
    texts = [text for text in texts if max(map(len, text.split()), default=0) <= 100]
    texts += ["see<url>now", "<url> <URL>", "naïve Ünïcödé 中文"]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    answer = subprocess.run(
        [transformers_python, "-c", TRANSFORMERS, tmp_path / "texts.json", tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )
    ours = Tokenizer(Tokenization(vocabulary, 128)).pieces(tf.constant(texts)).to_list()
    theirs = json.loads(answer.stdout)
    assert [t for t, a, b in zip(texts, ours, theirs, strict=True) if a != b] == []
    for path in (tmp_path / "again" / "vocab.txt", tmp_path / "again" / "tokenizer.json"):
        if path.exists():
            assert read_tokenizer(path) == vocabulary
