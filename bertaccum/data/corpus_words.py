"""The words of a corpus that are worth an entry in the vocabulary."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import islice

import tensorflow as tf

from bertaccum.bert.added_words import pieces_of
from bertaccum.bert.tokenizer import TextCleaning
from bertaccum.bert.vocabulary import Vocabulary, is_too_long
from bertaccum.data.corpus_store import batches
from bertaccum.system.parallel import parallel
from bertaccum.system.progress import Progress, tell
from data_prep.tables.corpus import Corpus

# Number of distinct words above which the rare ones are forgotten, so that memory is limited.
_MOST_WORDS = 2**21
_AT_ONCE = 1024


def frequent_split_words(
    corpus: Corpus, vocabulary: Vocabulary, count: int, progress: Progress
) -> list[str]:
    """Return the most frequent words that a vocabulary splits into several pieces, at most `count`.

    Words are cleaned as texts are, contain a letter, and are not too long for an entry.
    """
    clean = tf.function(
        TextCleaning(vocabulary),
        input_signature=[tf.TensorSpec([None], tf.string)],
        autograph=False,
    )

    def words_in(batch: tuple[list[str], object, int]) -> tuple[Counter[bytes], int]:
        texts, _, size = batch
        return Counter(b" ".join(clean(tf.constant(texts)).numpy()).split()), size

    counts, read, total, least = Counter[bytes](), 0, corpus.text_bytes, 1
    for found, size in parallel(words_in, batches(corpus.parts(partial(tell, progress)))):
        counts.update(found)
        while len(counts) > _MOST_WORDS:
            counts = Counter({word: number for word, number in counts.items() if number > least})
            least *= 2
        read += size
        progress("counting words (MiB)", read >> 20, total and max(read, total) >> 20)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    words = (word.decode() for word, _ in ranked)
    candidates = (word for word in words if any(map(str.isalpha, word)))
    result: list[str] = []
    while len(result) < count and (some := list(islice(candidates, _AT_ONCE))):
        pieces = zip(some, pieces_of(vocabulary, some), strict=True)
        result += [word for word, ids in pieces if len(ids) > 1 and not is_too_long(word)]
    return result[:count]
