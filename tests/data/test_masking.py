"""Masks are those of BERT, and depend on the seed, the update and the position in the window."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.data.masking import make_masking
from bertaccum.data.token_store import TokenStore

LENGTH = 32
SPECIAL = len(SPECIAL_TOKENS)
WORDS = Vocabulary(
    [*SPECIAL_TOKENS, *(f"w{n}" for n in range(600)), *(f"##{n}" for n in range(395))]
)
UNKNOWN, CLS, SEP, MASK = 1, 2, 3, 4


def store_of(rows: list[np.ndarray]) -> TokenStore:
    """Return a token store of sequences, without their [CLS] and [SEP]."""
    whole = [np.concatenate([[CLS], row, [SEP]]).astype(np.int32) for row in rows]
    lengths = [len(row) for row in whole]
    return TokenStore(
        token_ids=np.concatenate(whole),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        shapes=np.stack([np.ones_like(lengths), lengths], axis=1).astype(np.int32),
        labels=np.broadcast_to(np.int32(0), len(rows)),
        weights=np.broadcast_to(np.float32(1), len(rows)),
    )


def texts(count: int, seed: int = 0, shortest: int = 1) -> TokenStore:
    draw = np.random.default_rng(seed)
    sizes = draw.integers(shortest, LENGTH - 1, count)
    return store_of([draw.integers(SPECIAL, len(WORDS), size) for size in sizes])


def rows_of(store: TokenStore) -> list[np.ndarray]:
    return np.split(store.token_ids, store.offsets[1:-1])


@pytest.mark.parametrize("whole_words", [False, True])
def test_labels_are_the_places_and_the_ids_of_masked_tokens(whole_words: bool) -> None:
    store, masking = texts(300), make_masking(WORDS, LENGTH, whole_words=whole_words)
    rows = np.random.default_rng(1).permutation(300)[:200]
    masked = masking.of_window(store, rows, 3, 5)
    assert masked.labels.shape == (200, masking.most, 2) and masked.labels.dtype == np.int32
    assert masked.weights.dtype == np.float32 and masked.token_ids.dtype == np.int32
    assert np.array_equal(masked.shapes, store.shapes[rows])
    for row, found, labels, weight in zip(
        rows, rows_of(masked), masked.labels, masked.weights, strict=True
    ):
        original = rows_of(store)[row]
        own = labels[labels[:, 0] > 0]
        places = own[:, 0]
        assert len(places) == weight >= 1 and not labels[len(own) :].any()
        assert np.array_equal(places, np.unique(places)) and places.max() < len(original) - 1
        assert np.array_equal(own[:, 1], original[places])
        others = np.setdiff1d(np.arange(len(original)), places)
        assert np.array_equal(found[others], original[others])


def test_count_is_a_fraction_of_the_tokens() -> None:
    masking = make_masking(WORDS, LENGTH)
    sizes = np.arange(1, LENGTH - 1)
    store = store_of([np.full(size, 9) for size in sizes])
    weights = masking.of_window(store, np.arange(len(store)), 0, 0).weights
    assert weights.tolist() == [max(1, round(0.15 * size)) for size in sizes.tolist()]
    assert masking.most == weights.max() == 4


def test_special_tokens_are_never_chosen() -> None:
    some = np.array([SEP, 9, UNKNOWN, 10, MASK])
    store = store_of([np.tile(some, 6), np.full(9, UNKNOWN)])
    for update in range(50):
        masked = make_masking(WORDS, LENGTH).of_window(store, np.array([0, 1]), 0, update)
        assert set(masked.labels[0, :, 1].tolist()) <= {0, 9, 10}
        assert masked.weights.tolist() == [2, 0]  # 12 of the first row's tokens may be chosen.


def test_shares_are_those_of_google() -> None:
    """As in google-research/bert: 15% of the tokens, of which 80% [MASK], 10% others, 10% kept."""
    store, masking = texts(4000, shortest=LENGTH - 2), make_masking(WORDS, LENGTH)
    masked = masking.of_window(store, np.arange(4000), 0, 0)
    places = masked.labels[:, :, 0] + masked.offsets[:-1, None]
    found, original = masked.token_ids[places].ravel(), masked.labels[:, :, 1].ravel()
    count = len(found)
    assert count / (4000 * (LENGTH - 2)) == pytest.approx(4 / 30)  # round(0.15 * 30) is 4.
    is_mask, kept = found == MASK, found == original
    for share, expected in ((is_mask, 0.8), (kept, 0.1 + 0.1 / len(WORDS))):
        assert abs(share.mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / count)
    replaced = found[~is_mask & ~kept]
    histogram = np.bincount(replaced * 10 // len(WORDS), minlength=10) / len(replaced)
    assert np.abs(histogram - 0.1).max() < 4 * np.sqrt(0.09 / len(replaced))
    by_place = np.bincount(masked.labels[:, :, 0].ravel(), minlength=LENGTH)[1:-1] / 4000
    assert np.abs(by_place - 4 / 30).max() < 4 * np.sqrt(4 / 30 * (1 - 4 / 30) / 4000)


def google_choice(ids: np.ndarray, draws: np.ndarray, wanted: int) -> list[int]:
    """Choose whole words as in `create_masked_lm_predictions`; `draws` give the random order."""
    words: list[list[int]] = []
    for place, number in enumerate(ids):
        if number in (CLS, SEP):
            continue
        if words and WORDS.entries[number].startswith("##") and words[-1][-1] == place - 1:
            words[-1].append(place)
        else:
            words.append([place])
    words.sort(key=lambda word: draws[word[0]])
    chosen: list[int] = []
    for word in words:
        if len(chosen) >= wanted:
            break
        if len(chosen) + len(word) <= wanted:
            chosen += word
    return sorted(chosen)


def test_whole_words_are_chosen_as_by_google() -> None:
    store, masking = texts(200, shortest=8), make_masking(WORDS, LENGTH, 0.3, whole_words=True)
    masked = masking.of_window(store, np.arange(200), 7, 11)
    width = LENGTH + masking.most
    raw = np.random.Philox(key=[7, 11], counter=[0, 0, 0, 1]).random_raw(200 * width)
    complete = 0
    for ids, draws, labels in zip(
        rows_of(store), raw.reshape(200, width), masked.labels, strict=True
    ):
        wanted = max(1, round(0.3 * (len(ids) - 2)))
        expected = google_choice(ids, draws, wanted)
        complete += len(expected) == wanted
        if expected:
            assert labels[labels[:, 0] > 0, 0].tolist() == expected
    assert complete > 100  # Most rows reach the number.


def test_word_longer_than_the_number_is_masked_in_part() -> None:
    word = np.array([9, *range(SPECIAL + 600, SPECIAL + 609)])
    masking = make_masking(WORDS, LENGTH, whole_words=True)
    assert masking.of_window(store_of([word]), np.array([0]), 0, 0).weights.tolist() == [2]


@pytest.mark.parametrize("whole_words", [False, True])
def test_masks_depend_on_seed_update_and_position_only(whole_words: bool) -> None:
    store, other = texts(20), texts(20, seed=5)
    masking = make_masking(WORDS, LENGTH, whole_words=whole_words)
    rows = np.arange(20)
    masked = masking.of_window(store, rows, 1, 2)
    mixed = TokenStore(
        np.concatenate([other.token_ids, store.token_ids]),
        np.concatenate([other.offsets, store.offsets[1:] + other.offsets[-1]]),
        *(np.concatenate([getattr(s, n) for s in (other, store)]) for n in ("shapes", "labels")),
        np.ones(40, np.float32),
    )
    swapped = masking.of_window(mixed, np.array([0, 1, 2, *range(23, 40), 7]), 1, 2)
    for one, again in list(zip(rows_of(masked), rows_of(swapped), strict=False))[3:]:
        assert np.array_equal(one, again)
    assert np.array_equal(masked.labels[3:], swapped.labels[3:20])
    for seed, update in ((1, 3), (2, 2)):
        assert not np.array_equal(
            masking.of_window(store, rows, seed, update).labels, masked.labels
        )


def test_dev_masks_are_always_the_same() -> None:
    store, masking = texts(20), make_masking(WORDS, LENGTH)
    first, again = masking.of_dev(store), masking.of_dev(store)
    assert np.array_equal(first.token_ids, again.token_ids) and len(first) == 20


def test_masks_stay_the_same_in_new_versions() -> None:
    rows = np.arange(12)
    store = store_of([np.arange(5, LENGTH + 3) * (row + 7) % 990 + 5 for row in rows])
    masked = make_masking(WORDS, LENGTH, whole_words=True).of_window(store, rows, 1, 2)
    digest = hashlib.sha256(masked.token_ids.astype("<i4").tobytes()).hexdigest()
    assert digest[:16] == "e8e931f41a79a0bf"
