"""ONNX Runtime, with batches of similar length. A turn tokenizes and predicts all reviews."""

import onnxruntime
from hf_onnx import exported, predicted, tokenized
from turns import Turns, job, reviews


def main():
    task, turns = job(), Turns()
    texts, _ = reviews(task)
    own = {"model": task["huggingface"], "onnx": task["onnx"], "quantize": task["quantize"]}
    session = onnxruntime.InferenceSession(exported(own), providers=["CPUExecutionProvider"])
    turns.wait()
    while True:
        ids, segments = tokenized(own | {"texts": texts, "length": task["length"]})
        predicted(session, ids, segments, task["batch"])
        turns.updated()


main()
