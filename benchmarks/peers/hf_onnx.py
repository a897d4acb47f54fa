"""ONNX Runtime on a model folder in Hugging Face's format.

The only argument is the path of a job, a JSON object with these entries:

  model: folder that `bertaccum export --format huggingface` wrote
  onnx: folder for model.onnx and model-int8.onnx, which are made unless they exist
  quantize: none or int8
  texts: JSON file with a list of texts, or of pairs [text, second text]; or null, with `tokens`
  tokens: .npz file with the tokens of all texts, concatenated, `token_ids` and `segment_ids`
    [tokens], and `offsets` [texts + 1], the start of each text and the end of the last one
  length: maximum number of tokens of a text
  batch: number of texts in a batch; the texts are sorted by length, and each batch is padded to its
    longest text
  repeats: number of times that the texts are predicted; the fastest counts
  out: .npy file to write the probabilities (the score for a regression) to, [texts, outputs]

Prints a JSON object: `export_seconds`; `bytes`, the size of the model; `tokenize_seconds`; and
`seconds`, the time of all predictions without tokenization.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import onnxruntime

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def exported(job):
    """Return the path of the ONNX model, which is made unless it exists."""
    folder = Path(job["onnx"])
    folder.mkdir(parents=True, exist_ok=True)
    plain, int8 = folder / "model.onnx", folder / "model-int8.onnx"
    if not plain.exists():
        export(job["model"], plain)
    if job["quantize"] == "int8" and not int8.exists():
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(plain, int8, weight_type=QuantType.QInt8)
    return int8 if job["quantize"] == "int8" else plain


def export(model, path):
    """Write a model as ONNX, for batches of any size and length."""
    import torch
    from transformers import BertForSequenceClassification

    found = BertForSequenceClassification.from_pretrained(model).eval()
    # torch.export takes one tensor for two inputs as a single input.
    examples = {name: torch.ones((2, 8), dtype=torch.int64) for name in INPUTS}
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=512)}
    torch.onnx.export(
        found,
        kwargs=examples,
        f=path,
        dynamo=True,
        dynamic_shapes={name: axes for name in INPUTS},
        input_names=INPUTS,
        output_names=["logits"],
        external_data=False,
        verbose=False,
    )


def tokenized(job):
    """Return the IDs and the segments of each text; `texts` may also be the list itself."""
    given = job["texts"]
    if given is None:
        tokens = np.load(job["tokens"])
        cuts = tokens["offsets"][1:-1]
        return [np.split(tokens[name], cuts) for name in ("token_ids", "segment_ids")]
    from transformers import BertTokenizerFast

    if isinstance(given, str):
        given = json.loads(Path(given).read_text(encoding="utf-8"))
    columns = list(zip(*given, strict=True)) if isinstance(given[0], list) else [given]
    tokenizer = BertTokenizerFast.from_pretrained(job["model"])
    options = {"truncation": True, "max_length": job["length"], "split_special_tokens": True}
    found = tokenizer(*map(list, columns), **options)
    return found["input_ids"], found["token_type_ids"]


def batches(ids, segments, size):
    """Yield the numbers of the texts and the inputs of each batch."""
    order = np.argsort([len(own) for own in ids], kind="stable")
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        shape = len(rows), len(ids[rows[-1]])
        inputs = {name: np.zeros(shape, np.int64) for name in INPUTS}
        for place, row in enumerate(rows):
            count = len(ids[row])
            for name, values in zip(INPUTS, (ids[row], 1, segments[row]), strict=True):
                inputs[name][place, :count] = values
        yield rows, inputs


def probabilities(logits, problem):
    """Return what transformers computes from logits [texts, outputs]."""
    if problem == "regression":
        return logits
    if problem == "multi_label_classification":
        return 1 / (1 + np.exp(-logits))
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


def predicted(session, ids, segments, size):
    """Return the logits of all texts, in their order."""
    found = [(rows, session.run(None, inputs)[0]) for rows, inputs in batches(ids, segments, size)]
    logits = np.empty((len(ids), found[0][1].shape[1]), np.float32)
    for rows, own in found:
        logits[rows] = own
    return logits


def main():
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    start = time.perf_counter()
    path = exported(job)
    exporting = time.perf_counter() - start
    start = time.perf_counter()
    ids, segments = tokenized(job)
    tokenizing = time.perf_counter() - start
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    seconds = []
    for _ in range(job["repeats"]):
        start = time.perf_counter()
        logits = predicted(session, ids, segments, job["batch"])
        seconds.append(time.perf_counter() - start)
    config = json.loads((Path(job["model"]) / "config.json").read_text(encoding="utf-8"))
    np.save(job["out"], probabilities(logits, config["problem_type"]))
    measured = {"export_seconds": exporting, "bytes": path.stat().st_size}
    measured |= {"tokenize_seconds": tokenizing, "seconds": min(seconds)}
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
