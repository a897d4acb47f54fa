"""bertaccum, as `bertaccum predict` predicts texts. A turn predicts all reviews."""

from turns import Turns, job, reviews

from bertaccum.inference.predict import TextClassifier, stream


def main() -> None:
    task, turns = job(), Turns()
    texts, _ = reviews(task)
    classifier = TextClassifier(task["run"], task["batch"], None)
    turns.wait()
    while True:
        assert len(list(stream(classifier, texts))) == len(texts)
        turns.updated()


main()
