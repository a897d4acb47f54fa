"""The SavedModel of a run, given texts in batches of similar length. A turn predicts all texts."""

import tensorflow as tf
import tensorflow_text  # noqa: F401 (registers the tokenizer's operations)
from turns import Turns, job, reviews


def main() -> None:
    task, turns = job(), Turns()
    texts, _ = reviews(task)
    model = tf.saved_model.load(task["savedmodel"])
    serve, size = model.signatures["serving_default"], task["batch"]
    turns.wait()
    while True:
        texts.sort(key=len)
        for start in range(0, len(texts), size):
            serve(text=tf.constant(texts[start : start + size]))["probabilities"].numpy()
        turns.updated()


main()
