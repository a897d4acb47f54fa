"""Special and added tokens in texts are those of transformers for its models, words for Google's.

https://github.com/google-research/bert has no tokens that are matched in texts; transformers has,
unless its setting `split_special_tokens` is on.
"""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from bertaccum.bert.packed_tokens import unpack
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.tokenizer_files import read_tokenizer, write_tokenizer
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.errors import InputError

WORDS = [*SPECIAL_TOKENS, "good", "food", "sep", "mask", "[", "]", "[unused0]", "a", "##b"]


def token(content: str, **changes: Any) -> dict[str, Any]:
    usual = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False)
    return {"content": content, **usual, **changes}


def decoder(first: int, *tokens: dict[str, Any]) -> dict[str, Any]:
    """Return added tokens as `tokenizer_config.json` lists them."""
    return {"added_tokens_decoder": {str(first + n): token for n, token in enumerate(tokens)}}


def written(folder: Path, settings: Any = None, words: list[str] = WORDS, **files: Any) -> Path:
    """Write a tokenizer of transformers; return the path of its vocabulary."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    files = {"config": {"model_type": "bert"}, "tokenizer_config": settings, **files}
    for name, values in files.items():
        if values is not None:
            (folder / f"{name}.json").write_text(json.dumps(values), "utf-8")
    return folder / "vocab.txt"


def tokens(vocabulary: Vocabulary, text: str) -> str:
    pieces = Tokenizer(Tokenization(vocabulary, 99)).pieces(tf.constant([text]))
    return " ".join(vocabulary.entries[number] for number in pieces.to_list()[0])


SPLIT = {"split_special_tokens": True}
NEXT = len(WORDS)
MASK = {"__type": "AddedToken", **token("[MASK]", normalized=True)}


@pytest.mark.parametrize(
    ("config", "files", "text", "theirs", "google"),
    [
        (None, {}, "good[SEP]food [sep]", "good [SEP] food [ sep ]", "good [ sep ] food [ sep ]"),
        (None, {}, "[PAD] [MASK]", "[PAD] [MASK]", "[ [UNK] ] [ mask ]"),
        (None, {}, "[UNK]", "[UNK]", "[ [UNK] ]"),
        (SPLIT, {}, "good[SEP]", "good [ sep ]", "good [ sep ]"),
        ({}, {"special_tokens_map": {"mask_token": MASK}}, "[mask]", "[MASK]", "[ mask ]"),
        (None, {}, "a\ue000b a\U000f0000b \U0010fffda", "a ##b a ##b a", "[UNK] [UNK] [UNK]"),
        (None, {}, f"{'a' + 100 * 'b'}", "[UNK]", "a" + 100 * " ##b"),
        (
            {"additional_special_tokens": ["[unused0]"]},
            {},
            "[unused0]",
            *["[unused0]", "[ [UNK] ]"],
        ),
        ({"extra_special_tokens": {"x": "<x>"}}, {}, "a<x>", "a <x>", "a [UNK] [UNK] [UNK]"),
        (
            SPLIT | decoder(NEXT, token("<x>", special=True), token("<y>")),
            {},
            "<x>a<y>",
            *2 * ["[UNK] [UNK] [UNK] a <y>"],
        ),
        # Its other special tokens are matched as well, in training and after it.
        ({"pad_token": "[unused0]"}, {}, "[SEP][unused0]", "[SEP] [unused0]", "[ sep ] [ [UNK] ]"),
        # Tokens without an embedding are left out.
        (
            {"additional_special_tokens": ["<e1>"]},
            {"config": {"vocab_size": NEXT}},
            "<e1>",
            *2 * ["[UNK] [UNK] [UNK]"],
        ),
        # Of tokens that overlap, the first and longest one is matched.
        (
            decoder(
                NEXT,
                token("foodgo"),
                token("goodf"),
                token("goodfood"),
                token("É 中", normalized=True),
            ),
            {},
            "goodfoodgo e\t中",
            *2 * ["goodfood [UNK] É 中"],
        ),
    ],
)
def test_tokens_in_texts_are_those_of_the_checkpoints_library(
    tmp_path: Path, config: Any, files: dict[str, Any], text: str, theirs: str, google: str
) -> None:
    path = written(tmp_path, config, **files)
    imported = read_tokenizer(path, "", as_transformers=True)
    assert tokens(imported, text) == theirs
    assert tokens(read_tokenizer(path), text) == google
    write_tokenizer(tmp_path, imported)  # As in a run and in an export.
    assert read_tokenizer(path) == imported


def test_sigma_at_the_end_of_a_word(tmp_path: Path) -> None:
    path = written(tmp_path, words=[*SPECIAL_TOKENS, "οδος", "οδοσ"])
    assert tokens(read_tokenizer(path), "ΟΔΟΣ") == "οδος"
    imported = read_tokenizer(path, "", as_transformers=True)
    assert tokens(imported, "ΟΔΟΣ οδος") == "οδοσ οδος"


@pytest.mark.parametrize(
    ("config", "files", "message"),
    [
        ({"sep_token": "</s>"}, {}, r"its tokenizer's sep_token is </s>, expected \[SEP\]"),
        ({"tokenizer_class": "BertJapaneseTokenizer"}, {}, "tokenizer_class BertJapaneseTokenizer"),
        (None, {"config": {"tokenizer_class": "RobertaTokenizer"}}, "has the tokenizer_class Rob"),
        (None, {"tokenizer": {"model": {"type": "BPE"}}}, "has the model BPE, expected WordPiece"),
        (None, {"tokenizer": {"pre_tokenizer": {"type": "Metaspace"}}}, "pre_tokenizer Metaspace"),
        (
            None,
            {"tokenizer": {"model": {"continuing_subword_prefix": "@@"}}},
            "tokenizer.json: its continuing_subword_prefix is '@@', expected '##'; use a model",
        ),
        (
            None,
            {"tokenizer": {"model": {"max_input_chars_per_word": 0}}},
            "per_word is 0, expected",
        ),
        ({"additional_special_tokens": [5]}, {}, "its added tokens are damaged"),
        (decoder(NEXT, token("\n")), {}, r"its added token '.n' is not visible text in one line"),
    ],
)
def test_other_tokenizers_are_refused(
    tmp_path: Path, config: Any, files: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_tokenizer(written(tmp_path, config, **files), "", as_transformers=True)


TRANSFORMERS = """
import json, sys
from transformers import AutoTokenizer
texts, pairs, *folders = json.load(open(sys.argv[1]))
found = []
for folder in folders:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    both = tokenizer(texts, pairs)
    found.append([tokenizer(texts)["input_ids"], both["input_ids"], both["token_type_ids"]])
print(json.dumps(found))
"""
PARTS = [*SPECIAL_TOKENS, "[sep]", "[ SEP ]", "[[SEP", "]", "[mask]", "<url>", "<URL>", "<user>"]
PARTS += ["New-Food", "NÉW-food", "E\t中b", "xqzabxq", "\ue000", "\uf8ff", "\U000f0000"]
PARTS += ["ΟΔΟΣ", "ς", "x" * 100, "y" * 101, "food", " the", "中文", "naïve", "\u200b", "\x01"]
PARTS += ["[unused3]", "\x03", "\ufffd", "\u2028", "…", "한국", "ß", "don't", "$5.00", "\t"]


def drawn_texts(count: int) -> list[str]:
    rng = random.Random(0)
    lengths = [rng.randrange(1, 12) for _ in range(count)]
    return ["".join(rng.choice(PARTS) + rng.choice(["", " "]) for _ in range(n)) for n in lengths]


@pytest.mark.slow
def test_transformers_gives_the_same_ids_for_special_tokens_in_texts(
    shared: Path, tmp_path: Path, transformers_python: Path
) -> None:
    """Its folders mean the same here; runs and exports of such models mean the same there."""
    cased, uncased = (
        (shared / "data/vocab" / name).read_text("utf-8").removesuffix("\n").split("\n")
        for name in ("vocab_cased.txt", "vocab.txt")
    )
    added = [token("<url>", special=True), token("<user>"), token("New-Food", normalized=True)]
    added += [token("é中b", normalized=True), token("xqzab"), token("abxq"), token("\ue000")]
    configs: list[Any] = [None, SPLIT, decoder(len(uncased), *added)]
    configs += [SPLIT | configs[2], {"additional_special_tokens": ["<url>", "[unused3]"]}]
    configs += [{"mask_token": MASK}, {"do_lower_case": True, "strip_accents": False}]
    folders = [tmp_path / str(number) for number in range(len(configs) + 1)]
    for folder, config in zip(folders[1:], configs, strict=True):
        written(folder, config, uncased)
    written(folders[0], {"do_lower_case": False, **decoder(len(cased), *added)}, cased)
    vocabularies = [read_tokenizer(f / "vocab.txt", "", as_transformers=True) for f in folders]
    for folder, vocabulary in zip(list(folders), vocabularies, strict=True):
        folders.append(folder / "export")
        folders[-1].mkdir()
        write_tokenizer(folders[-1], vocabulary)
        (folders[-1] / "config.json").write_text('{"model_type": "bert"}')
    texts = drawn_texts(300)
    pairs = [f"{text}." for text in drawn_texts(600)[300:]]
    (tmp_path / "texts.json").write_text(json.dumps([texts, pairs, *map(str, folders)]))
    answer = subprocess.run(
        [transformers_python, "-c", TRANSFORMERS, tmp_path / "texts.json"],
        capture_output=True,
        text=True,
        check=True,
    )
    for vocabulary, theirs in zip(2 * vocabularies, json.loads(answer.stdout), strict=True):
        tokenizer = Tokenizer(Tokenization(vocabulary, 4000))
        both = unpack(tokenizer(tf.constant(texts), tf.constant(pairs)))
        ours = [part.to_list() for part in (tokenizer(tf.constant(texts)), *both)]
        for mine, other in zip(ours, theirs, strict=True):
            assert [t for t, a, b in zip(texts, mine, other, strict=True) if a != b] == []
