"""bertaccum, as `bertaccum predict` predicts texts. A turn predicts all reviews."""

from turns import Turns, job, reviews

from bertaccum.inference.predict import TextClassifier

# `predict` sorts this many texts together.
TOGETHER = 2048


def main() -> None:
    task, turns = job(), Turns()
    texts, _ = reviews(task)
    classifier = TextClassifier(task["run"], task["batch"], None)
    turns.wait()
    while True:
        for start in range(0, len(texts), TOGETHER):
            classifier([(text, None) for text in texts[start : start + TOGETHER]])
        turns.updated()


main()
