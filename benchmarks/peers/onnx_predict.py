"""ONNX Runtime, with batches of similar length. A turn tokenizes and predicts all reviews."""

import onnxruntime
from hf_onnx import exported, predicted, tokenized
from turns import Turns, job, reviews


def main():
    task, turns = job(), Turns()
    texts, _ = reviews(task)
    # Two of these processes may start at the same time, so each has its own folder.
    folder = f"{task['onnx']}-{task['quantize']}"
    own = {"model": task["huggingface"], "onnx": folder, "quantize": task["quantize"]}
    session = onnxruntime.InferenceSession(exported(own), providers=["CPUExecutionProvider"])
    turns.wait()
    while True:
        ids, segments = tokenized(own | {"texts": texts, "length": task["length"]})
        predicted(session, ids, segments, task["batch"])
        turns.updated()


main()
