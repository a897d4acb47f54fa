"""Vocabularies learned from texts, for models without a pretrained one."""

from __future__ import annotations

from collections.abc import Iterable

from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary


def learn_vocabulary(texts: Iterable[str], size: int = 4000) -> list[str]:
    """Return a WordPiece vocabulary of at most `size` entries, learned with tensorflow-text's tool.

    The texts are first normalized as for the tokenizer. The entries start with `[PAD]`, whose ID is
    0.
    """
    # Most data folders need no vocabulary, and TensorFlow takes seconds to import.
    import tensorflow as tf
    from tensorflow_text.tools.wordpiece_vocab import bert_vocab_from_dataset

    from bertaccum.bert.text_cleaning import TextCleaning

    batches = tf.data.Dataset.from_tensor_slices(list(texts)).batch(1024)
    return bert_vocab_from_dataset.bert_vocab_from_dataset(
        batches.map(TextCleaning(Vocabulary([]))),
        vocab_size=size,
        reserved_tokens=list(SPECIAL_TOKENS),
    )
