"""BertForSequenceClassification of transformers in NumPy, with its file format and names.

It follows modeling_bert.py of transformers and computes what a model folder means there, without
PyTorch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

ACTIVATIONS = {
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def logits(
    folder: Path, token_ids: np.ndarray, mask: np.ndarray, segments: np.ndarray | int = 0
) -> np.ndarray:
    """Return logits [batch, classes] float64 of token ids, mask and segments [batch, length]."""
    weights, _ = read(folder)
    return linear(weights, "classifier", pooled(folder, token_ids, mask, segments))


def pooled(
    folder: Path, token_ids: np.ndarray, mask: np.ndarray, segments: np.ndarray | int = 0
) -> np.ndarray:
    """Return the pooled output [batch, hidden] float64 of token ids, mask and segments."""
    weights, config = read(folder)
    tables = "bert.embeddings.{}_embeddings.weight"
    x = weights[tables.format("word")][token_ids]
    x = x + weights[tables.format("position")][: token_ids.shape[1]]
    x = norm(
        weights, "bert.embeddings.LayerNorm", x + weights[tables.format("token_type")][segments]
    )
    for number in range(config["num_hidden_layers"]):
        layer = f"bert.encoder.layer.{number}."
        attended = attention(weights, layer, config["num_attention_heads"], x, mask)
        attended = linear(weights, layer + "attention.output.dense", attended)
        x = norm(weights, layer + "attention.output.LayerNorm", attended + x)
        inner = linear(weights, layer + "intermediate.dense", x)
        inner = linear(weights, layer + "output.dense", ACTIVATIONS[config["hidden_act"]](inner))
        x = norm(weights, layer + "output.LayerNorm", inner + x)
    return np.tanh(linear(weights, "bert.pooler.dense", x[:, 0]))


def read(folder: Path) -> tuple[dict[str, np.ndarray], dict]:
    held = load_file(folder / "model.safetensors")
    weights = {name: tensor.astype(np.float64) for name, tensor in held.items()}
    return weights, json.loads((folder / "config.json").read_text())


def attention(
    weights: Mapping[str, np.ndarray], layer: str, heads: int, x: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    def cut(name: str) -> np.ndarray:
        parts = linear(weights, f"{layer}attention.self.{name}", x)
        return parts.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    query, key, value = map(cut, ("query", "key", "value"))
    scores = query @ key.swapaxes(2, 3) / math.sqrt(query.shape[-1])
    scores = np.where(mask[:, None, None] == 1, scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return (shares @ value).transpose(0, 2, 1, 3).reshape(x.shape)


def linear(weights: Mapping[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def norm(weights: Mapping[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12)
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]
