"""ONNX Runtime on a model folder in Hugging Face's format.

The only argument is the path of a job, a JSON object with these entries:

  model: folder that `bertaccum export --format huggingface` wrote
  onnx: folder for model.onnx, fused.onnx and fused-int8.onnx, which are made unless they exist
  quantize: none or int8
  texts: JSON file with a list of texts, or of pairs [text, second text]; or null, with `tokens`
  tokens: .npz file with the tokens of all texts, concatenated, `token_ids` and `segment_ids`
    [tokens], and `offsets` [texts + 1], the start of each text and the end of the last one
  length: maximum number of tokens of a text
  batch: number of texts in a batch; the texts are sorted by length, and each batch is padded to its
    longest text
  repeats: number of times that the texts are predicted; the fastest counts
  out: .npy file to write the probabilities (the score for a regression) to, [texts, outputs]

Prints a JSON object: `export_seconds`; `bytes`, the size of the model; `fused`, how often the model
contains each operator that only ONNX Runtime has; `tokenize_seconds`; and `seconds`, the time of
all predictions without tokenization.
"""

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import onnx
import onnxruntime

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def exported(job):
    """Return the path of the ONNX model, which is made unless it exists."""
    folder = Path(job["onnx"])
    folder.mkdir(parents=True, exist_ok=True)
    fused, int8 = folder / "fused.onnx", folder / "fused-int8.onnx"
    if not fused.exists():
        export(job["model"], folder / "model.onnx", fused)
    if job["quantize"] == "int8" and not int8.exists():
        from onnxruntime.quantization import QuantType, quantize_dynamic

        types = {"DefaultTensorType": onnx.TensorProto.FLOAT}  # of the outputs of fused operators
        quantize_dynamic(fused, int8, weight_type=QuantType.QInt8, extra_options=types)
    return int8 if job["quantize"] == "int8" else fused


def export(model, plain, fused):
    """Write a model as ONNX, for batches of any size and length, and with fused operators.

    ONNX Runtime's documentation recommends this optimizer for inputs of any size, and before
    quantization. It finds the attention of transformers 5 only in the graph that the older exporter
    makes of the eager implementation.
    """
    import torch
    from onnxruntime.transformers.optimizer import optimize_model
    from transformers import BertForSequenceClassification

    axes = {name: {0: "batch", 1: "length"} for name in INPUTS}
    found = BertForSequenceClassification.from_pretrained(model, attn_implementation="eager")
    torch.onnx.export(
        found.eval(),
        kwargs={name: torch.ones((2, 8), dtype=torch.int64) for name in INPUTS},
        f=plain,
        dynamo=False,
        dynamic_axes=axes | {"logits": {0: "batch"}},
        input_names=[*INPUTS],
        output_names=["logits"],
    )
    heads, hidden = found.config.num_attention_heads, found.config.hidden_size
    optimize_model(str(plain), "bert", heads, hidden).save_model_to_file(str(fused))


def fused_operators(path):
    """Return how often a model contains each operator that only ONNX Runtime has."""
    operators = onnx.load(path).graph.node
    return Counter(node.op_type for node in operators if node.domain == "com.microsoft")


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
    measured["fused"] = fused_operators(path)
    measured |= {"tokenize_seconds": tokenizing, "seconds": min(seconds)}
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
