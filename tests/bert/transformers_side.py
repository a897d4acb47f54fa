"""The part of test_huggingface_folder.py that runs transformers, in a separate environment."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import transformers


def main(work: Path) -> None:
    given = np.load(work / "inputs.npz")
    inputs = {
        "input_ids": torch.tensor(given["token_ids"]).long(),
        "attention_mask": torch.tensor(given["mask"]).long(),
    }
    torch.manual_seed(0)
    with torch.no_grad():
        for folder in sorted(work.glob("ours_*")):
            answer_by_ours(folder, inputs)
        for act in ("gelu", "gelu_new", "gelu_pytorch_tanh"):
            for kind in ("BertModel", "BertForSequenceClassification", "BertForMaskedLM"):
                make(work, kind, act, work / "ours_gelu", inputs)


def answer_by_ours(folder: Path, inputs: dict[str, torch.Tensor]) -> None:
    """Save the logits of a folder that we wrote; no tensor may be missing or unexpected."""
    model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(info.values()), info
    assert model.config.id2label == {0: "negative", 1: "none", 2: "positive"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["GÓOD [SEP] badly " * 9, "good"]
    ids = tokenizer(texts, truncation=True)["input_ids"]
    good, bad, ly, unknown = 5, 6, 7, 1
    first = [good, unknown, unknown, unknown, bad, ly, good, unknown, unknown, unknown]
    assert ids == [[2, *first, 3], [2, good, 3]], ids
    np.savez(folder.with_suffix(".npz"), logits=model(**inputs).logits)


def make(work: Path, kind: str, act: str, words: Path, inputs: dict[str, torch.Tensor]) -> None:
    """Save a random model with transformers, its tokenizer and its outputs."""
    config = transformers.BertConfig.from_pretrained(words, hidden_act=act)
    model = getattr(transformers, kind)(config).eval()
    for weight in model.parameters():
        weight.normal_(0.1, 0.5)
    model.save_pretrained(work / f"{kind}-{act}")
    transformers.AutoTokenizer.from_pretrained(words).save_pretrained(work / f"{kind}-{act}")
    outputs = getattr(model, "bert", model)(**inputs)
    values = {"sequence": outputs.last_hidden_state}
    if outputs.pooler_output is not None:
        values["pooled"] = outputs.pooler_output
    np.savez(work / f"{kind}-{act}.npz", **values)


main(Path(sys.argv[1]))
