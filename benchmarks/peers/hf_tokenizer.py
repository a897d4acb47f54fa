"""Hugging Face's tokenizers, written in Rust. A turn tokenizes all reviews on all cores."""

from tokenizers import BertWordPieceTokenizer
from turns import Turns, job, reviews


def main():
    task, turns = job(), Turns()
    texts, _ = reviews(task)
    tokenizer = BertWordPieceTokenizer(task["vocab"], lowercase=True)
    tokenizer.enable_truncation(task["length"])
    turns.wait()
    while True:
        assert len(tokenizer._tokenizer.encode_batch_fast(texts)) == len(texts)
        turns.updated()


main()
