"""Token classification: a tag for each word, trained with softmax cross-entropy.

The mean loss of an update is over all words of its window that have a tag. The store of a task
gives an example the weight of its words, so the trainer needs not know them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertaccum.errors import ConfigError, InputError
from bertaccum.system.phrases import counted
from bertaccum.tasks.classification import Classification
from bertaccum.tasks.labels import Labels, class_numbers
from bertaccum.tasks.scoring import ClassScores
from bertaccum.tasks.task import PLAIN, Decoding
from data_prep.labels.formats import LabelFormat
from data_prep.labels.tag_schemes import OUTSIDE, Entity, entities, split_tag
from data_prep.tables.words import separated_words

if TYPE_CHECKING:
    import pandas as pd
    import tensorflow as tf

# The label of what has none: places after the last word of a sentence.
NO_TAG = -1


@dataclass(frozen=True)
class TokenClassification:
    """A `Task` that assigns one tag to each word."""

    options: ClassVar[frozenset[str]] = frozenset(
        {"class_weight", "label_smoothing", "calibrate", "strict"}
    )
    label_shape: ClassVar[tuple[int | None, ...]] = (None,)
    label_dtype: ClassVar[type[np.generic]] = np.int32

    labels: Labels
    decoding: Decoding = PLAIN
    smoothing: float = 0.0
    strict: bool = False  # Whether only entities count whose tags all follow the scheme.
    weights: tuple[float, ...] = ()  # Weight of each tag in training; if empty, 1 for all.

    def __post_init__(self) -> None:
        if self.strict and self.scheme is None:
            what = "`strict` counts entities, but the tags of the run mark none"
            raise ConfigError(what, "omit `strict`")

    @property
    def continued(self) -> np.ndarray:
        """The tag inside of a word for each tag at its start, [tags]: I-TYPE for B-TYPE."""
        names = self.labels.names
        inside = [f"I-{name[2:]}" if name.startswith("B-") else name for name in names]
        pairs = zip(inside, names, strict=True)
        return np.array([names.index(i if i in names else name) for i, name in pairs], np.int64)

    @property
    def scheme(self) -> str | None:
        """Scheme of the tags, as in `tag_schemes`; None for tags that mark no entities."""
        return self.labels.format.get("scheme")

    @property
    def metrics(self) -> tuple[str, ...]:
        if self.scheme:
            return ("entity_f1", "macro_entity_f1", "accuracy", "loss")
        return ("accuracy", "macro_f1", "loss")

    def parts(self, cells: Collection[str], separator: str | None = None) -> dict[str, list[str]]:
        return LabelFormat(" ", lists=False).labels_in(cells)

    def encode(
        self, tsv: Path, table: pd.DataFrame, separator: str | None = None, by_name: bool = False
    ) -> np.ndarray:
        """Return the tags of the words of sentences, [sentences, words] int32, then `NO_TAG`."""
        tags = class_numbers(tsv, table, self.labels, self.parts, by_name)
        for row, text, own in zip(table["row"], table["text"], tags, strict=True):
            if len(own) != (words := len(separated_words(text))):
                what = f"has {counted(words, 'word')} and {counted(len(own), 'tag')}"
                raise InputError(what, "write one tag for each word", path=tsv, row=int(row))
        longest = max(map(len, tags))
        return np.array([own + [NO_TAG] * (longest - len(own)) for own in tags], np.int32)

    def losses(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return the cross-entropy of each word, as `Classification.losses` does."""
        return self._of_words.losses(logits, labels)

    def word_weights(self, tags: tf.Tensor) -> tf.Tensor:
        """Return the weights in training of tokens with these tags, float32; 0 for `NO_TAG`."""
        import tensorflow as tf

        read = tf.cast(tags >= 0, tf.float32)
        return read * tf.gather(self.weights, tf.maximum(tags, 0)) if self.weights else read

    def scores(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        """Return the scores that every evaluation contains.

        Besides the `metrics`: `entity_precision` and `entity_recall`; the number of `words`, and
        of `unread_words` that were truncated and count as `O`. If no tag is `O`, the scores of
        words leave them out.

        Args:
          logits: Logits [sentences, words read, tags]; NaN after the last word that is read.
          labels: Tags [sentences, words], `NO_TAG` after the last word.
        """
        words, (read, tags) = int((labels != NO_TAG).sum()), self._words(logits, labels)
        scored, wanted = self._scored_words(logits, labels)
        of_words = self._of_words.scores(scored, wanted) if len(wanted) else {"accuracy": math.nan}
        result = {
            "examples": len(labels),
            "words": words,
            "unread_words": words - len(tags),
            "accuracy": of_words["accuracy"],
            "loss": self._of_words.mean_loss(read, tags) if len(tags) else math.nan,
        }
        if self.scheme:
            return result | _summary(self._entity_counts(self._predicted(logits, labels), labels))
        return of_words | result

    def report(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        """Return `scores`, `reliability`, and the scores of each type or tag as `classes`.

        `confusion_matrix` counts words by the types, or tags, in `confusion_classes`.
        """
        of_words = self._of_words.report(*self._words(logits, labels))
        result, names = self.scores(logits, labels), self.labels.names
        calibration = ("temperature", "expected_calibration_error", "reliability")
        result |= {name: of_words[name] for name in calibration}
        if self.scheme is None:
            of_words = self._of_words.report(*self._scored_words(logits, labels))
            return of_words | result | {"confusion_classes": names}
        counts = self._entity_counts(self._predicted(logits, labels), labels)
        types = [split_tag(name)[1] or OUTSIDE for name in names]
        kinds = sorted({*types, OUTSIDE}, key=lambda kind: (kind != OUTSIDE, kind))
        of_kind = np.array([[kind == own for own in types] for kind in kinds], int)
        matrix = of_kind @ of_words["confusion_matrix"] @ of_kind.T
        tagged = labels[labels != NO_TAG]
        # Words that are not read count as `O`, the first of the types.
        matrix[:, 0] += of_kind @ np.bincount(tagged, minlength=len(names)) - matrix.sum(axis=1)
        return result | {
            "classes": [_scored(name, *counts[name]) for name in sorted(counts)],
            "confusion_classes": kinds,
            "confusion_matrix": matrix.tolist(),
        }

    def fit_decoding(
        self, logits: np.ndarray, labels: np.ndarray, calibrate: bool, thresholds: bool
    ) -> Decoding:
        """Return `decoding` with a temperature fitted to words; thresholds do not apply."""
        return self._of_words.fit_decoding(*self._words(logits, labels), calibrate, thresholds)

    def predictions(self, logits: np.ndarray) -> Iterator[dict[str, Any]]:
        """Yield the `tags` of the words of each sentence, and the probability of each."""
        names = self.labels.names
        for rows in logits:
            probabilities = self._probabilities(rows[~np.isnan(rows[:, 0])])
            numbers = probabilities.argmax(axis=1)
            best = probabilities[np.arange(len(numbers)), numbers]
            yield {"tags": [names[n] for n in numbers], "tag_probabilities": best.tolist()}

    def in_text(
        self,
        text: str,
        spans: list[tuple[int, int]],
        tags: list[str],
        tag_probabilities: list[float],
    ) -> dict[str, Any]:
        """Return the fields of a `Prediction` for a text, given the spans of its words."""
        unread = len(spans) - len(tags)
        more = {"unread_words": unread} if unread else {}
        if self.scheme is None:
            read = zip(spans, tags, tag_probabilities, strict=False)
            words = [
                {"text": text[start:end], "tag": tag, "start": start, "end": end, "probability": p}
                for (start, end), tag, p in read
            ]
            return {"words": words, "tags": tags, **more}
        found = [
            {
                "text": text[(start := spans[one.start][0]) : (end := spans[one.end - 1][1])],
                "type": one.type,
                "start": start,
                "end": end,
                "probability": float(np.mean(tag_probabilities[one.start : one.end])),
            }
            for one in entities(tags, self.scheme)
        ]
        return {"entities": found, "tags": [*tags, *[OUTSIDE] * unread], **more}

    def mistakes(self, logits: np.ndarray, labels: np.ndarray, count: int) -> list[dict[str, Any]]:
        """Return the sentences with the words whose wrong tags have the highest probabilities."""
        predicted, names = self._predicted(logits, labels), self.labels.names
        found = []
        for index, (own, guesses) in enumerate(zip(labels, predicted, strict=True)):
            wrong = np.flatnonzero((own != guesses) & (own != NO_TAG) & (guesses != NO_TAG))
            if len(wrong):
                probabilities = self._probabilities(logits[index, wrong])
                sure = probabilities[np.arange(len(wrong)), guesses[wrong]]
                word = int(wrong[sure.argmax()])
                found.append(
                    {
                        "index": index,
                        "word": word,
                        "label": names[own[word]],
                        "label_probability": float(probabilities[sure.argmax(), own[word]]),
                        "prediction": names[guesses[word]],
                        "probability": float(sure.max()),
                    }
                )
        return sorted(found, key=lambda one: -one["probability"])[:count]

    def support(self, logits: tf.Tensor, of_passages: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError("each word is read in one passage")

    def head_transform(self) -> tuple[float, float]:
        return 1 / self.decoding.temperature, 0.0

    def serve(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return `logits` and `probabilities` [batch, tokens, tags], and `tag` [batch, tokens]."""
        import tensorflow as tf

        return {
            "logits": logits,
            "probabilities": tf.nn.softmax(logits / self.decoding.temperature),
            "tag": tf.gather(tf.constant(self.labels.names), tf.argmax(logits, axis=-1)),
        }

    def _predicted(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the predicted tags [sentences, words], `NO_TAG` for words that are not read."""
        predicted = np.full(labels.shape, NO_TAG)
        own = logits[:, : labels.shape[1]]
        read = ~np.isnan(own[..., 0]) & (labels[:, : own.shape[1]] != NO_TAG)
        predicted[:, : own.shape[1]][read] = own[read].argmax(axis=-1)
        return predicted

    def _words(self, logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the logits [words, tags] and the tags [words] of all words that are read."""
        own = logits[:, : labels.shape[1]]
        tags = labels[:, : own.shape[1]]
        read = (tags != NO_TAG) & ~np.isnan(own[..., 0])
        return own[read], tags[read]

    def _scored_words(
        self, logits: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the predicted tags [words, tags], one-hot, and the tags [words] of scored words.

        Words that are not read are predicted as `O`; if no tag is `O`, they are left out.
        """
        names, predicted = self.labels.names, self._predicted(logits, labels)
        if OUTSIDE in names:
            predicted[predicted == NO_TAG] = names.index(OUTSIDE)
        scored = (labels != NO_TAG) & (predicted != NO_TAG)
        return np.eye(len(names), dtype=np.float32)[predicted[scored]], labels[scored]

    def _tags(self, numbers: np.ndarray, labels: np.ndarray) -> Iterator[list[str]]:
        """Yield the names of the tags of each sentence; `O` for words that are not read."""
        for own, tags in zip(numbers.tolist(), labels, strict=True):
            count = int((tags != NO_TAG).sum())
            yield [OUTSIDE if n == NO_TAG else self.labels.names[n] for n in own[:count]]

    def _entity_counts(
        self, predicted: np.ndarray, labels: np.ndarray
    ) -> dict[str, tuple[int, int, int]]:
        """Return, by type, the numbers of entities: found and right, predicted, and labeled."""
        assert self.scheme is not None
        right, guessed, wanted = Counter[str](), Counter[str](), Counter[str]()
        sentences = self._tags(predicted, labels), self._tags(labels, labels)
        for own, tags in zip(*sentences, strict=True):
            ours: set[Entity] = {*entities(own, self.scheme, self.strict)}
            theirs: set[Entity] = {*entities(tags, self.scheme, self.strict)}
            right.update(e.type for e in ours & theirs)
            guessed.update(e.type for e in ours)
            wanted.update(e.type for e in theirs)
        kinds = {*guessed, *wanted}
        return {kind: (right[kind], guessed[kind], wanted[kind]) for kind in kinds}

    @property
    def _of_words(self) -> Classification:
        """The classification of single words."""
        return Classification(self.labels, self.decoding, self.smoothing)

    def _probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities [words, tags] float32."""
        import tensorflow as tf

        return tf.nn.softmax(logits / np.float32(self.decoding.temperature)).numpy()


def _scored(name: str, right: int, guessed: int, wanted: int) -> ClassScores:
    precision, recall = right / guessed if guessed else 0.0, right / wanted if wanted else 0.0
    f1 = 2 * right / (guessed + wanted) if guessed + wanted else 0.0
    return ClassScores(name, precision, recall, f1, wanted)


def _macro(scores: list[ClassScores]) -> float:
    return float(np.mean([one.f1 for one in scores])) if scores else 0.0


def _summary(counts: dict[str, tuple[int, int, int]]) -> dict[str, float]:
    """Return the scores of all entities together, and the mean F1 of their types."""
    right, guessed, wanted = (sum(one[n] for one in counts.values()) for n in range(3))
    total = _scored("", right, guessed, wanted)
    return {
        "entity_precision": total.precision,
        "entity_recall": total.recall,
        "entity_f1": total.f1,
        "macro_entity_f1": _macro([_scored(name, *own) for name, own in counts.items()]),
    }
