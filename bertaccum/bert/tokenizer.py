"""A tokenizer that returns exactly the same token IDs as BERT's original tokenizer.

tensorflow-text lowercases with Unicode's NFKC case folding, which also turns `…` into three periods
and changes `™`, ligatures and `ß`. This module therefore normalizes texts with one op for each step
of the original tokenizer, and uses tensorflow-text's fast op only to split words into pieces.

Source: google-research/bert `tokenization.py`, class BasicTokenizer.
"""

from __future__ import annotations

import re
from functools import partial

import tensorflow as tf
import tensorflow_text as tf_text

from bertaccum.bert.packed_tokens import NEXT_PASSAGE, SEGMENT
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.vocabulary import Vocabulary

# The original tokenizer maps a word of more than 200 characters to [UNK]. The WordPiece op counts
# bytes, so `normalize` replaces such a word with one that exceeds the op's limit in any script.
_MAX_WORD_BYTES = 4 * 200
_LONG_WORD = r"[^ ]{201,}"
# Characters that are words by themselves: ASCII symbols and Unicode punctuation, and in most models
# CJK ideographs.
_PUNCTUATION = r"!-/:-@\[-`{-~\p{P}"
_IDEOGRAPHS = (
    r"\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}"
    r"\x{20000}-\x{2A6DF}\x{2A700}-\x{2CEAF}\x{2F800}-\x{2FA1F}"
)
# Added entries are replaced by characters of this private-use area, which are words by themselves
# after cleaning. Texts lose these characters, which no vocabulary contains.
_STAND_INS = range(0xF0000, 0xFFFFE)


def cleaned(texts: tf.Tensor, vocabulary: Vocabulary) -> tf.Tensor:
    """Clean texts and separate words as the original tokenizer does.

    Args:
      texts: Strings [batch]; invalid UTF-8 is dropped.
      vocabulary: Vocabulary whose cleaning applies.

    Returns:
      Strings [batch] with words separated by spaces.
    """
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", replacement_char=0xFFFD)
    if vocabulary.added:
        texts = tf.strings.regex_replace(texts, r"[\x{F0000}-\x{FFFFD}]", chr(0xE000))
    for entry, stand_in in _stand_ins(vocabulary).items():
        flags = "(?i)" if vocabulary.added[entry] else ""
        texts = tf.strings.regex_replace(texts, flags + re.escape(entry), f" {stand_in} ")
    texts = tf.strings.regex_replace(texts, r"[\t\n\r\p{Z}]", " ")
    texts = tf.strings.regex_replace(texts, r"[\x00\x{FFFD}\p{Cc}\p{Cf}]", "")
    if vocabulary.lower_case:
        texts = tf.strings.lower(texts, encoding="utf-8")
    if vocabulary.strip_accents:
        texts = tf_text.normalize_utf8(texts, "NFD")
        texts = tf.strings.regex_replace(texts, r"\p{Mn}", "")
    alone = _PUNCTUATION + (_IDEOGRAPHS if vocabulary.split_chinese else "")
    texts = tf.strings.regex_replace(texts, f"([{alone}])", r" \1 ")
    return tf.strings.regex_replace(texts, _LONG_WORD, "x" * (_MAX_WORD_BYTES + 1))


def _stand_ins(vocabulary: Vocabulary) -> dict[str, str]:
    """Return the character that stands for each added entry, longest entries first."""
    entries = sorted(vocabulary.added, key=len, reverse=True)
    return {entry: chr(number) for number, entry in zip(_STAND_INS, entries, strict=False)}


class Tokenizer:
    """A tokenizer that returns rows `[CLS] a [SEP]` or, for pairs, `[CLS] a [SEP] b [SEP]`.

    A pair whose second text is empty is tokenized as a single text. A pair that is too long loses
    tokens of its longer text, one by one, as in google-research/bert. In each text, the tokens at
    the end are lost, unless the tokenization tells otherwise.

    If the tokenization allows several passages, the row of a long text is
    `[CLS] a1 [SEP] [CLS] a2 [SEP] …`, which `split_passages` takes apart.

    Args:
      tokenization: The vocabulary, the maximum number of tokens, and what is truncated. Pairs
        have only one passage.
    """

    def __init__(self, tokenization: Tokenization) -> None:
        self._vocabulary = vocabulary = tokenization.vocabulary
        stand_ins = _stand_ins(vocabulary)
        entries = [stand_ins.get(entry, entry) for entry in vocabulary.entries]
        # The first op also splits cleaned text into words, but always splits CJK ideographs.
        kind = tf_text.FastBertTokenizer
        if not vocabulary.split_chinese:
            kind = partial(tf_text.FastWordpieceTokenizer, no_pretokenization=True)
        self._wordpiece = kind(
            vocab=entries, token_out_type=tf.int32, max_bytes_per_word=_MAX_WORD_BYTES
        )
        self._cls, self._sep = entries.index("[CLS]"), entries.index("[SEP]")
        self.tokenization = tokenization

    def pieces(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Return all IDs [batch, (length)] of strings [batch], without special tokens."""
        texts = cleaned(texts, self._vocabulary)
        if self._vocabulary.split_chinese:
            return self._wordpiece.tokenize(texts)
        return self._wordpiece.tokenize(tf.strings.split(texts)).merge_dims(1, 2)

    def __call__(self, texts: tf.Tensor, pairs: tf.Tensor | None = None) -> tf.RaggedTensor:
        """Return the tokens [batch, (length)] int32 of strings [batch]; see `packed_tokens`.

        Args:
          texts: Strings [batch].
          pairs: The second text of each pair, strings [batch]; None for single texts.
        """
        return self.with_lengths(texts, pairs)[0]

    def with_lengths(
        self, texts: tf.Tensor, pairs: tf.Tensor | None = None
    ) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Return the tokens as `__call__` does, and the length of each row before truncation.

        The lengths, [batch] int32, include [CLS] and [SEP].
        """
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
        """Return `counts` [batch] values of each row: some from its beginning, others from its end.

        As in Sun et al. 2019, a quarter of 510 tokens is 128.
        """
        fraction = self.tokenization.head_fraction
        head = tf.cast(tf.math.ceil(tf.cast(counts, tf.float64) * fraction), tf.int64)
        lengths = rows.row_lengths()
        places = tf.ragged.range(lengths)
        after = lengths - (counts - head)
        return tf.ragged.boolean_mask(rows, (places < head[:, None]) | (places >= after[:, None]))
