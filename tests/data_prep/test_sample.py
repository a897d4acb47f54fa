"""The sample: reproducible for a seed, of realistic lengths, and neither trivial nor random."""

from __future__ import annotations

from statistics import median

import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from data_prep.sources.sample import MAX_WORDS, MIN_WORDS, sample_source
from data_prep.tables.rows import Row


@pytest.fixture(scope="module")
def sample() -> tuple[list[Row], list[Row]]:
    source = sample_source(0)
    return list(source.train.examples), list(source.given["test"].examples)


def test_same_seed_gives_the_same_reviews(sample: tuple[list[Row], list[Row]]) -> None:
    assert list(sample_source(0).train.examples) == sample[0]
    assert list(sample_source(1).train.examples) != sample[0]


def test_description_says_synthetic() -> None:
    source = sample_source(0)
    assert "synthetic" in source.description and "not real reviews" in source.description


def test_sizes_lengths_and_class_balance(sample: tuple[list[Row], list[Row]]) -> None:
    train, test = sample
    assert (len(train), len(test)) == (4000, 1000)
    assert len({example.text for example in train + test}) == 5000
    lengths = [len(example.text.split()) for example in train]
    assert min(lengths) >= MIN_WORDS and max(lengths) <= MAX_WORDS and max(lengths) > 250
    assert 35 <= median(lengths) <= 50
    assert 0.47 < sum(example.label == "positive" for example in train) / 4000 < 0.53
    assert not any("{" in example.text for example in train)


def test_bag_of_words_classifies_most_but_not_all_reviews(
    sample: tuple[list[Row], list[Row]],
) -> None:
    (train, test), counter = sample, CountVectorizer(binary=True)
    counts = counter.fit_transform([example.text for example in train])
    model = LogisticRegression(C=0.3).fit(counts, [example.label for example in train])
    rest = counter.transform([example.text for example in test])
    assert 0.78 < model.score(rest, [example.label for example in test]) < 0.92
