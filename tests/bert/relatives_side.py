"""The part of test_relatives.py that runs transformers, in a separate environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

HEADS = ("Model", "ForSequenceClassification", "ForTokenClassification", "ForMaskedLM")


def main(work: Path) -> None:
    given = np.load(work / "inputs.npz")
    inputs = {name: torch.tensor(given[name]).long() for name in given}
    torch.manual_seed(0)
    for folder in sorted(work.glob("ours_*")):
        config = json.loads((folder / "config.json").read_text())
        known = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            own = known if config["model_type"] == "distilbert" else inputs
            answer_by_ours(folder, own)
            for head in HEADS:
                make(folder, head, own)
    for path in sorted(work.glob("shape_*.json")):
        build(path, inputs)
    for path in sorted(work.glob("training_*.json")):
        train(path, json.loads(path.read_text()))


def answer_by_ours(folder: Path, inputs: dict[str, torch.Tensor]) -> None:
    """Save the logits of a folder that we wrote; no tensor may be missing or unexpected."""
    model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(info.values()), info
    encoded = transformers.AutoTokenizer.from_pretrained(folder)("good", "bad")
    outputs = model(**{name: torch.tensor([ids]) for name, ids in encoded.items()})
    assert outputs.logits.shape == (1, 3)
    np.savez(folder.with_suffix(".npz"), logits=model(**inputs).logits)


def make(like: Path, head: str, inputs: dict[str, torch.Tensor]) -> None:
    """Save a random model with transformers, its tokenizer and its outputs."""
    config = transformers.AutoConfig.from_pretrained(like)
    names = {"bert": "Bert", "distilbert": "DistilBert", "electra": "Electra"}
    model = getattr(transformers, names[config.model_type] + head)(config).eval()
    for weight in model.parameters():
        weight.normal_(0.1, 0.5)
    folder = like.with_name(like.name.replace("ours", "theirs") + head)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(like).save_pretrained(folder)
    outputs = model(**inputs)
    np.savez(folder.with_suffix(".npz"), outputs=outputs[0])


def build(path: Path, inputs: dict[str, torch.Tensor]) -> None:
    """Save a classifier with the dimensions of a published model, and its logits."""
    values = json.loads(path.read_text())
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    model.save_pretrained(path.with_suffix(""))
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent / "ours_bert")
    tokenizer.save_pretrained(path.with_suffix(""))
    if config.model_type == "distilbert":
        inputs = {name: value for name, value in inputs.items() if name != "token_type_ids"}
    with torch.no_grad():
        np.savez(path.with_suffix(".npz"), logits=model(**inputs).logits)


def train(path: Path, job: dict[str, Any]) -> None:
    """Train a classifier on given windows of texts, and save its weights.

    The optimizer is AdamW as in Keras, which adds epsilon before it corrects the bias.
    """
    model = transformers.AutoModelForSequenceClassification.from_pretrained(job["model"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["model"])
    named = dict(model.named_parameters())
    moments = {name: [torch.zeros_like(w), torch.zeros_like(w)] for name, w in named.items()}
    for step, (texts, labels, rate) in enumerate(job["windows"], 1):
        batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        model(**batch, labels=torch.tensor(labels)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scale = rate * (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)
        with torch.no_grad():
            for name, weight in named.items():
                if weight.grad is None:
                    continue
                first, second = moments[name]
                first.lerp_(weight.grad, 0.1)
                second.lerp_(weight.grad**2, 0.001)
                if not name.endswith("bias") and "norm" not in name.lower():
                    weight -= rate * 0.01 * weight
                weight -= scale * first / (second.sqrt() + job["epsilon"])
        model.zero_grad()
    weights = {name: weight.detach().numpy() for name, weight in named.items()}
    np.savez(path.with_suffix(".npz"), **weights)


main(Path(sys.argv[1]))
