"""A tokenizer that returns exactly the same token IDs as BERT's original tokenizer.

tensorflow-text lowercases with Unicode's NFKC case folding, which also turns `…` into three periods
and changes `™`, ligatures and `ß`. Texts are therefore cleaned with one op for each step of the
original tokenizer, up to words separated by spaces.

Source: google-research/bert `tokenization.py`, class BasicTokenizer; for added entries and the
cleaning of transformers, huggingface/tokenizers `added_vocabulary.rs` and `normalizers/bert.rs`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial

import tensorflow as tf
import tensorflow_text as tf_text

from bertaccum.bert.tokenization import NEXT_PASSAGE, SEGMENT, TAG, Tokenization
from bertaccum.bert.vocabulary import Vocabulary
from bertaccum.options.commands import ALL

# Characters that are words by themselves: ASCII symbols and Unicode punctuation, and in most models
# CJK ideographs.
_PUNCTUATION = r"!-/:-@\[-`{-~\p{P}"
_IDEOGRAPHS = (
    r"\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}"
    r"\x{20000}-\x{2A6DF}\x{2A700}-\x{2CEAF}\x{2F800}-\x{2FA1F}"
)
# Added entries are replaced by characters of this private-use area, which are words by themselves
# after cleaning. Texts lose these characters.
_STAND_INS = range(0xF0000, 0xFFFFE)
# Control characters around an added entry that was found, and one without a meaning. Cleaning drops
# all of them.
_START, _END, _NOTHING = "\x01", "\x02", "\x03"
# A private-use character that is probably in no vocabulary.
_UNKNOWN = "\U00100000"
# Capitals beyond ASCII whose lowercase depends on the language: İ in Turkish and Azerbaijani, the
# others in Lithuanian. They get that of all other languages.
_OF_LOCALES = {"İ": "i\u0307", "Į": "į", "Ì": "ì", "Í": "í", "Ĩ": "ĩ"}
# RE2 runs out of memory, and becomes slow, with thousands of alternatives.
_ALTERNATIVES = 500


def longest_word_bytes(vocabulary: Vocabulary) -> int:
    """Return the number of bytes of the longest word that is not [UNK], in any script.

    The WordPiece op counts bytes, so cleaning replaces a word of too many characters with one that
    exceeds this number.
    """
    return 4 * vocabulary.longest_word


class TextCleaning:
    """A function that cleans texts, and replaces added entries by characters."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary, added = vocabulary, vocabulary.added
        longest_first = sorted(added, key=len, reverse=True)
        # The character that replaces each added entry.
        # [UNK] must stay in the vocabulary; a character that is in none becomes [UNK] as well.
        self.stand_ins = {
            entry: chr(number) for number, entry in zip(_STAND_INS, longest_first, strict=False)
        }
        self._as_written = [entry for entry in longest_first if not added[entry]]
        in_cleaned = [entry for entry in longest_first if added[entry]]
        with tf.init_scope():  # Eagerly, even if a graph is being built.
            found = self._characters_cleaned(tf.constant(in_cleaned, tf.string)).numpy().tolist()
        self._as_cleaned = {
            text.decode(): entry for text, entry in zip(found, in_cleaned, strict=True)
        }

    @property
    def entries(self) -> list[str]:
        """The vocabulary's entries, with the characters that replace added ones."""
        stand_ins = self.stand_ins | {"[UNK]": "[UNK]"}
        return [stand_ins.get(entry, entry) for entry in self._vocabulary.entries]

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        """Return strings [batch] as words separated by spaces; invalid UTF-8 is dropped."""
        vocabulary = self._vocabulary
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", replacement_char=0xFFFD)
        if vocabulary.added:
            instead = _NOTHING if vocabulary.as_transformers else _UNKNOWN
            texts = tf.strings.regex_replace(texts, r"[\x{F0000}-\x{FFFFD}]", instead)
            texts = tf.strings.regex_replace(texts, f"[{_START}{_END}]", _NOTHING)
            texts = self._replaced(texts, {entry: entry for entry in self._as_written})
        texts = self._characters_cleaned(texts)
        texts = self._replaced(texts, self._as_cleaned)
        texts = tf.strings.regex_replace(texts, f"([{_PUNCTUATION}])", r" \1 ")
        too_long = f"[^ ]{{{vocabulary.longest_word + 1},}}"
        return tf.strings.regex_replace(texts, too_long, "x" * (longest_word_bytes(vocabulary) + 1))

    def _characters_cleaned(self, texts: tf.Tensor) -> tf.Tensor:
        """Drop, replace and lowercase characters, and separate ideographs."""
        vocabulary = self._vocabulary
        texts = tf.strings.regex_replace(texts, r"[\t\n\r\p{Z}]", " ")
        dropped = r"\x00\x{FFFD}\p{Cc}\p{Cf}"
        if vocabulary.as_transformers:
            dropped += r"\x{E000}-\x{F8FF}\x{100000}-\x{10FFFD}"
            dropped += "" if vocabulary.added else r"\x{F0000}-\x{FFFFD}"
        texts = tf.strings.regex_replace(texts, f"[{dropped}]", "")
        if vocabulary.split_chinese:
            texts = tf.strings.regex_replace(texts, f"([{_IDEOGRAPHS}])", r" \1 ")
        if vocabulary.lower_case:
            if vocabulary.as_transformers:
                # Capital and small sigma.
                texts = tf.strings.regex_replace(texts, "\u03a3", "\u03c3")
            # The last op has other rules for some letters if an environment variable names one of
            # these languages. Without an encoding, the op lowercases ASCII in the same way always.
            texts = tf.strings.lower(texts)
            for capital, small in _OF_LOCALES.items():
                texts = tf.strings.regex_replace(texts, capital, small)
            texts = tf.strings.lower(texts, encoding="utf-8")
        if vocabulary.strip_accents:
            texts = tf_text.normalize_utf8(texts, "NFD")
            texts = tf.strings.regex_replace(texts, r"\p{Mn}", "")
        return texts

    def _replaced(self, texts: tf.Tensor, wanted: dict[str, str]) -> tf.Tensor:
        """Replace the added entries that texts contain: of those that overlap, the first one."""
        for some in _groups([text for text in wanted if text]):
            pattern = "|".join(re.escape(text) for text in some)
            texts = tf.strings.regex_replace(texts, f"({pattern})", rf"{_START}\1{_END}")
            for text in some:
                stand_in = self.stand_ins[wanted[text]]
                found = re.escape(f"{_START}{text}{_END}")
                texts = tf.strings.regex_replace(texts, found, f" {stand_in} ")
        return texts


def _groups(items: list[str]) -> Iterator[Iterable[str]]:
    return (items[start : start + _ALTERNATIVES] for start in range(0, len(items), _ALTERNATIVES))


class Tokenizer:
    """A tokenizer that returns rows `[CLS] a [SEP]` or, for pairs, `[CLS] a [SEP] b [SEP]`.

    A pair whose second text is empty is tokenized as a single text. A pair that is too long loses
    tokens of its longer text, one by one, as in google-research/bert. In each text, the tokens at
    the end are lost, unless the tokenization tells otherwise.

    If the tokenization allows several passages, the row of a long text is
    `[CLS] a1 [SEP] [CLS] a2 [SEP] …`, which `split_passages` takes apart.

    If texts are words that get tags, the first piece of each word has the tag 0, and each of the
    others 1 if it is trained. A word without a piece becomes [UNK]. In passages that overlap, a
    word has its tag only in the passage whose center is the nearest, where it has the most context.
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
        self._unknown = entries.index("[UNK]")
        self.tokenization = tokenization

    def pieces(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Return all tokens [batch, (length)] of strings [batch], without special tokens."""
        if not self.tokenization.words:
            return self._ids(texts)
        words = tf.strings.split(texts)
        pieces = self._ids(words.flat_values)
        missing = tf.cast(pieces.row_lengths() == 0, tf.int64)
        unknown = tf.fill([tf.reduce_sum(missing)], self._unknown)
        pieces = tf.concat(
            [pieces, tf.RaggedTensor.from_row_lengths(unknown, missing, validate=False)], axis=1
        )
        first, others = pieces.row_starts()[:, tf.newaxis], tf.zeros_like(pieces.flat_values)
        if self.tokenization.words == ALL:
            others += 2 * TAG
        tags = tf.tensor_scatter_nd_update(others, first, tf.fill([tf.shape(first)[0]], TAG))
        tokens = pieces.flat_values + tags
        return words.with_flat_values(pieces.with_flat_values(tokens)).merge_dims(1, 2)

    def _ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
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
        tokens = tf.gather(rows.values, places.values)
        if self.tokenization.words:
            # The text of each token, its place there, and the number of its passage.
            of_text = tf.gather(numbers.value_rowids(), places.value_rowids())
            inside = places.values - tf.gather(of_batch[:, 0], of_text)
            passage = tf.gather(numbers.values, places.value_rowids())
            nearest = (2 * inside - (room - 1) + step) // (2 * step)
            last = tf.gather(numbers.row_lengths() - 1, of_text)
            decides = passage == tf.minimum(tf.maximum(nearest, 0), last)
            tokens = tf.where(decides, tokens, tokens % TAG)
        edge = tf.ones([tf.size(numbers), 1], tf.int32)
        later = tf.cast(numbers.values > 0, tf.int32)[:, None]
        parts = [
            self._cls * edge + NEXT_PASSAGE * later,
            places.with_values(tokens),
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
