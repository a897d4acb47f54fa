"""transformers' pipeline, given texts sorted by length, in batches. A turn predicts all reviews."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from transformers import pipeline
from turns import Turns, job, reviews


def main():
    task, turns = job(), Turns()
    texts, _ = reviews(task)
    classify = pipeline("text-classification", model=task["huggingface"], device="cpu")
    turns.wait()
    while True:
        options = {"truncation": True, "max_length": task["length"], "batch_size": task["batch"]}
        classify(sorted(texts, key=len), top_k=None, **options)
        turns.updated()


main()
