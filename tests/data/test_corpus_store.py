"""A corpus becomes sequences of equal length, without memory that grows with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small import Notes

from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.data import corpus_store, token_store
from bertaccum.data.corpus_store import open_corpus
from bertaccum.data.token_store import TokenStore
from bertaccum.errors import InputError
from bertaccum.system.progress import silent
from data_prep.tables import corpus
from data_prep.tables.corpus import Corpus, find_corpus

CLS, SEP = 2, 3
WORDS = [f"w{number}" for number in range(50)]
VOCABULARY = Vocabulary([*SPECIAL_TOKENS, *WORDS])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def documents_of(count: int, longest: int = 30) -> list[list[int]]:
    draw = np.random.default_rng(count)
    return [draw.integers(5, 55, draw.integers(1, longest)).tolist() for _ in range(count)]


def written(path: Path, documents: list[list[int]]) -> Corpus:
    lines = [" ".join(VOCABULARY.entries[token] for token in tokens) for tokens in documents]
    path.write_text("".join(f"{line}\n" for line in lines))
    return find_corpus([path])


def opened(read: Corpus, length: int = 16, **options: object) -> tuple[TokenStore, TokenStore]:
    return open_corpus(read, Tokenization(VOCABULARY, length), silent, **options)


def sequences(store: TokenStore) -> list[list[int]]:
    return [row.tolist() for row in np.split(store.token_ids, store.offsets[1:-1])]


def packed(documents: list[list[int]], length: int, apart: bool) -> list[list[int]]:
    """Pack documents into sequences, one token at a time."""
    found: list[list[int]] = [[]]
    for number, document in enumerate(documents):
        if apart and found[-1]:
            found.append([])
        for token in document if apart or number == 0 else [SEP, *document]:
            if len(found[-1]) == length - 2:
                found.append([])
            found[-1].append(token)
    return [[CLS, *tokens, SEP] for tokens in found]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("characters", [1, 300, 10**6])
def test_documents_are_packed_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: bool, characters: int
) -> None:
    monkeypatch.setattr(corpus_store, "_BATCH_CHARACTERS", characters)
    documents = documents_of(60)
    train, dev = opened(written(tmp_path / "a.txt", documents), apart=apart, dev_fraction=0.1)
    held = [0, 16, 22, 38, 44, 50]
    assert sequences(dev) == packed([documents[n] for n in held], 16, apart)
    kept = [document for number, document in enumerate(documents) if number not in held]
    assert sequences(train) == packed(kept, 16, apart)
    lengths = np.diff(train.offsets)
    assert np.array_equal(train.shapes[:-1, 1], lengths[:-1]) and (train.shapes[:, 0] == 1).all()
    assert train.shapes[-1, 1] == (lengths[-1] if apart else 16)


@pytest.mark.parametrize("character", ["\x0c", "\x85"])
def test_words_are_separate_as_in_prepared_files(tmp_path: Path, character: str) -> None:
    """The tokenizer drops such characters, and `prepare` replaces them with spaces."""
    documents = documents_of(60)
    path = tmp_path / "a.txt"
    expected = sequences(opened(written(path, documents))[0])
    path.write_text(path.read_text().replace(" ", character))
    assert sequences(opened(find_corpus([path]))[0]) == expected


def test_arrays_are_not_in_memory(tmp_path: Path) -> None:
    for apart in (False, True):
        train, _ = opened(written(tmp_path / "a.txt", documents_of(60)), apart=apart)
        assert isinstance(train.token_ids, np.memmap) and isinstance(train.offsets, np.memmap)
        assert isinstance(train.shapes, np.memmap) or not train.shapes.strides[0]
        assert train.labels.strides == train.weights.strides == (0,)
        assert train.weights[3] == 1 and train.labels[3] == 0
        padded = train.padded_to(8, 512).shapes
        assert np.array_equal(padded[:, 1], -(-train.shapes[:, 1] // 8) * 8)
        assert apart or not padded.strides[0]


@pytest.mark.parametrize("apart", [False, True])
def test_long_documents_are_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    documents = documents_of(40, 200)
    whole = opened(written(tmp_path / "a.txt", documents), apart=apart)
    monkeypatch.setattr(corpus_store, "_BATCH_CHARACTERS", 60)
    monkeypatch.setattr(corpus, "_LONGEST_PART", 25)
    monkeypatch.setattr(token_store, "_FORMAT_OF_CORPUS", 0)  # The store is made again.
    in_parts = opened(find_corpus([tmp_path / "a.txt"]), apart=apart)
    for one, other in zip(whole, in_parts, strict=True):
        assert sequences(one) == sequences(other)


def test_few_documents_are_held_back_from_large_corpora(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_store, "_MOST_DEV", 4)
    documents = documents_of(3000)
    train, dev = opened(written(tmp_path / "a.txt", documents), dev_fraction=0.5)
    assert 2 <= len(dev) <= 6 and len(train) > 1000
    text, rest = (
        [token for row in sequences(store) for token in row if token > SEP]
        for store in (dev, train)
    )
    # They come from all parts of the corpus, not only from its beginning.
    joined = " ".join(map(str, text))
    long = {n: " ".join(map(str, own)) for n, own in enumerate(documents) if len(own) > 5}
    assert max(number for number, own in long.items() if own in joined) > 1000
    everything = sorted(token for tokens in documents for token in tokens)
    assert sorted(text + rest) == everything


def test_rest_of_a_long_document_is_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_store, "_MOST_DEV", 2)
    monkeypatch.setattr(corpus, "_LONGEST_PART", 25)
    document = np.random.default_rng(0).integers(5, 55, 500).tolist()
    train, dev = opened(written(tmp_path / "a.txt", [document]))
    in_dev = sum(len(row) - 2 for row in sequences(dev))
    assert 28 <= in_dev < 38 and sequences(train) == packed([document[in_dev:]], 16, False)


def test_store_is_made_once(tmp_path: Path, cache: Path) -> None:
    read = written(tmp_path / "a.txt", documents_of(20))
    for options, made in (({}, 1), ({}, 0), ({"apart": True}, 1), ({"dev_fraction": 0.2}, 1)):
        before = len(list(cache.glob("tokens/*")))
        opened(read, **options)
        assert len(list(cache.glob("tokens/*"))) == before + made
    opened(written(tmp_path / "a.txt", documents_of(21)))
    assert len(list(cache.glob("tokens/*"))) == 4


def test_store_is_temporary_if_the_cache_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    documents = documents_of(20)
    expected = opened(written(tmp_path / "a.txt", documents))
    monkeypatch.setenv("BERTACCUM_TEMPORARY_CACHE", "")
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "file/cache"))
    found = opened(written(tmp_path / "a.txt", documents))
    assert [*map(sequences, found)] == [*map(sequences, expected)]


def test_failed_store_leaves_no_files(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.txt"
    written(path, documents_of(20))
    with path.open("ab") as file:
        file.write(b"w1 \xff\n")
    with pytest.raises(InputError, match="row 21"):
        opened(find_corpus([path], documents="line"))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    whole = written(path, documents_of(20))
    tokenization = Tokenization(VOCABULARY, 16)
    with pytest.raises(KeyboardInterrupt):
        open_corpus(whole, tokenization, interrupt, digest="a" * 32)
    assert list(cache.glob("tokens/*")) == []
    assert list(cache.glob("tokens/.*")) == []


def test_single_document_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only one document"):
        opened(written(tmp_path / "a.txt", [[5, 6, 7]]))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["ก ข", "ค ง"], r"the texts to train on have no piece .* \[UNK\]; choose a model whose"),
        (["ก", "w1", "w2", "w3"], "the texts that are held back have no piece .*; raise `dev_fr"),
        (["\u200b", "w1", "w2", "w3"], "the texts that are held back have no piece"),
        (["w1", "ก", "ข"], "the texts to train on have no piece"),
        (["w1", "\u200b"], "only one document"),
    ],
)
def test_texts_of_which_nothing_can_be_masked_are_refused(
    tmp_path: Path, cache: Path, lines: list[str], message: str
) -> None:
    (tmp_path / "a.txt").write_text("\n".join(lines))
    with pytest.raises(InputError, match=f"a.txt: .*{message}"):
        opened(find_corpus([tmp_path / "a.txt"]))
    assert list(cache.glob("tokens/*")) == []
    if len(lines) == 4:  # Now the last document is held back as well.
        _, dev = opened(find_corpus([tmp_path / "a.txt"]), dev_fraction=0.5)
        assert VOCABULARY.entries.index("w3") in dev.token_ids


@pytest.mark.parametrize(("line", "noted"), [("w1 w2 w3 ก", True), ("w1 " * 19 + "ก", False)])
def test_many_unknown_tokens_are_noted(tmp_path: Path, line: str, noted: bool) -> None:
    (tmp_path / "a.txt").write_text(f"{line}\n" * 3)
    notes = Notes()
    open_corpus(find_corpus([tmp_path / "a.txt"]), Tokenization(VOCABULARY, 16), notes)
    found = [note for note in notes.lines if "[UNK]" in note]
    said = "25% of the tokens to train on are [UNK]; choose a model whose vocabulary has their"
    assert found == ([f"{said} characters"] if noted else [])


def test_ways_to_read_documents_are_noted(tmp_path: Path) -> None:
    notes = Notes()
    read = written(tmp_path / "a.txt", documents_of(20))
    open_corpus(read, Tokenization(VOCABULARY, 16), notes)
    assert notes.lines == [
        "documents are lines in 1 file of text; `documents` chooses one for all files"
    ]


def test_texts_that_change_before_they_are_read_get_no_store(tmp_path: Path, cache: Path) -> None:
    read = written(tmp_path / "a.txt", documents_of(5))
    digest = token_store.corpus_digest(read, Tokenization(VOCABULARY, 16), silent)
    written(tmp_path / "a.txt", documents_of(6))
    with pytest.raises(InputError, match=r"^the texts changed meanwhile; run the command again$"):
        opened(read, digest=digest)
    assert list((cache / "tokens").iterdir()) == []
