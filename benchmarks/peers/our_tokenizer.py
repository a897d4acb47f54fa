"""bertaccum's tokenizer, as used for token stores. A turn tokenizes all reviews."""

from pathlib import Path

import tensorflow as tf
from turns import Turns, job, reviews

from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.tokenizer_files import read_vocabulary
from bertaccum.bert.vocabulary import Vocabulary
from bertaccum.data.tokenizing import tokenized


def main() -> None:
    task, turns = job(), Turns()
    texts, _ = reviews(task)
    tokenizer = Tokenizer(
        Tokenization(Vocabulary(read_vocabulary(Path(task["vocab"]))), task["length"])
    )
    turns.wait()
    while True:
        rows = sum(tf.shape(tokens.row_lengths())[0] for tokens, _ in tokenized([texts], tokenizer))
        assert rows == len(texts)
        turns.updated()


main()
