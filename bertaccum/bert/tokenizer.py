"""A tokenizer that returns exactly the same token IDs as BERT's original tokenizer."""

from __future__ import annotations

from functools import partial

import tensorflow as tf
import tensorflow_text as tf_text

from bertaccum.bert.packed_tokens import NEXT_PASSAGE, SEGMENT
from bertaccum.bert.text_cleaning import TextCleaning, longest_word_bytes
from bertaccum.bert.tokenization import Tokenization


class Tokenizer:
    """A tokenizer that returns rows `[CLS] a [SEP]` or, for pairs, `[CLS] a [SEP] b [SEP]`.

    A pair whose second text is empty is tokenized as a single text. A pair that is too long loses
    tokens of its longer text, one by one, as in google-research/bert. In each text, the tokens at
    the end are lost, unless the tokenization tells otherwise.

    If the tokenization allows several passages, the row of a long text is
    `[CLS] a1 [SEP] [CLS] a2 [SEP] …`, which `split_passages` takes apart.
    """

    def __init__(self, tokenization: Tokenization) -> None:
        self._vocabulary = vocabulary = tokenization.vocabulary
        self._cleaned = TextCleaning(vocabulary)
        # The first op also splits cleaned text into words, but always splits CJK ideographs.
        kind = tf_text.FastBertTokenizer
        if not vocabulary.split_chinese:
            kind = partial(tf_text.FastWordpieceTokenizer, no_pretokenization=True)
        self._wordpiece = kind(
            vocab=self._cleaned.entries,
            token_out_type=tf.int32,
            max_bytes_per_word=longest_word_bytes(vocabulary),
        )
        entries = vocabulary.entries
        self._cls, self._sep = entries.index("[CLS]"), entries.index("[SEP]")
        self.tokenization = tokenization

    def pieces(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Return all IDs [batch, (length)] of strings [batch], without special tokens."""
        texts = self._cleaned(texts)
        if self._vocabulary.split_chinese:
            return self._wordpiece.tokenize(texts)
        return self._wordpiece.tokenize(tf.strings.split(texts)).merge_dims(1, 2)

    def __call__(self, texts: tf.Tensor, pairs: tf.Tensor | None = None) -> tf.RaggedTensor:
        """Return the tokens [batch, (length)] int32 of strings [batch]; see `packed_tokens`."""
        return self.with_lengths(texts, pairs)[0]

    def with_lengths(
        self, texts: tf.Tensor, pairs: tf.Tensor | None = None
    ) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Return the tokens, and the length [batch] int32 of each row before truncation."""
        pieces = self.pieces(texts)
        edge = tf.ones([pieces.nrows(), 1], tf.int32)
        first = pieces.row_lengths()
        room = tf.cast(self.tokenization.longest_text - 2, tf.int64)
        if pairs is None:
            if self.tokenization.head_fraction == 1.0:  # Slices are faster than masks.
                cut = pieces[:, : self.tokenization.longest_text - 2]
            else:
                cut = self._kept(pieces, tf.minimum(first, room))
            whole = tf.concat([self._cls * edge, cut, self._sep * edge], axis=1)
            tokens = self._passages(cut) if self.tokenization.passages > 1 else whole
            return tokens, tf.cast(first + 2, tf.int32)
        others = self.pieces(pairs)
        second = others.row_lengths()
        paired = tf.cast(second > 0, tf.int64)
        room -= paired
        count = tf.minimum(first, tf.maximum(room - second, (room + paired) // (1 + paired)))
        cut = self._kept(pieces, count)
        other = self._kept(others, tf.minimum(second, room - count))
        end = tf.RaggedTensor.from_row_lengths(
            tf.fill([tf.reduce_sum(paired)], self._sep + SEGMENT), paired
        )
        parts = [self._cls * edge, cut, self._sep * edge, other + SEGMENT, end]
        return tf.concat(parts, axis=1), tf.cast(first + second + 2 + paired, tf.int32)

    def _passages(self, rows: tf.RaggedTensor) -> tf.RaggedTensor:
        """Return the tokens of all passages [batch, (length)] of texts [batch, (length)]."""
        step, room = self.tokenization.step, self.tokenization.max_seq_length - 2
        lengths = rows.row_lengths()
        numbers = tf.ragged.range((tf.maximum(lengths - room, 0) + step - 1) // step + 1)
        starts = numbers * step
        ends = tf.minimum(starts + room, lengths[:, None])
        of_batch = rows.row_starts()[:, None]
        places = tf.ragged.range((starts + of_batch).values, (ends + of_batch).values)
        edge = tf.ones([tf.size(numbers), 1], tf.int32)
        later = tf.cast(numbers.values > 0, tf.int32)[:, None]
        parts = [
            self._cls * edge + NEXT_PASSAGE * later,
            places.with_values(tf.gather(rows.values, places.values)),
            self._sep * edge,
        ]
        return numbers.with_values(tf.concat(parts, axis=1)).merge_dims(1, 2)

    def _kept(self, rows: tf.RaggedTensor, counts: tf.Tensor) -> tf.RaggedTensor:
        """Return `counts` [batch] values of each row, from its beginning and from its end."""
        # As in Sun et al. 2019, a quarter of 510 tokens is 128.
        fraction = self.tokenization.head_fraction
        head = tf.cast(tf.math.ceil(tf.cast(counts, tf.float64) * fraction), tf.int64)
        lengths = rows.row_lengths()
        places = tf.ragged.range(lengths)
        after = lengths - (counts - head)
        return tf.ragged.boolean_mask(rows, (places < head[:, None]) | (places >= after[:, None]))
