"""A small Hugging Face BERT with its optimizers and data, for every peer on PyTorch.

The model is an unchanged `BertForSequenceClassification` with two classes. Its data are the token
ids of the cases, and the class tells whether the case's target is positive.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification

from exactness_cases.cases import (
    LEARNING_RATES,
    TOKENS,
    WORDS,
    Case,
    NotSupportedError,
    data,
    start_weights,
    windows,
)

torch.set_num_threads(1)  # For such a small model, synchronizing threads takes longer than work.
NAMES = {"Nadam": "NAdam"}
WORKERS = "2 workers"


def check(case: Case) -> None:
    """Raise NotSupportedError if no peer on PyTorch supports the case."""
    missing = {
        "not measured": case.model == "tags",
        "no such option": case.accumulator_dtype
        or case.model == "regularized"
        or case.sample_weights
        or {"clipnorm", "use_ema"} & case.options.keys(),
        "needs a GPU": case.loss_scale or case.mixed or "replicas" in case.placement,
    }
    for reason, applies in missing.items():
        if applies:
            raise NotSupportedError(reason)


def make_model() -> torch.nn.Module:
    """Return the model without dropout and with the start weights of the cases."""
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=TOKENS,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=2,
    )
    model = BertForSequenceClassification(config)
    for name, parameter in model.named_parameters():
        # Attention does not depend on this bias. Its gradient is rounding error, which Adam
        # magnifies.
        parameter.requires_grad = not name.endswith("key.bias")
    chosen = trainable(model)
    with torch.no_grad():
        for parameter, values in zip(chosen, start_weights([p.shape for p in chosen]), strict=True):
            parameter.copy_(torch.from_numpy(values))
    return model


def trainable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def make_optimizer(case: Case, model: torch.nn.Module) -> tuple[Any, Any]:
    """Return the case's optimizer and its schedule, which takes one step per update."""
    kind = getattr(torch.optim, NAMES.get(case.optimizer, case.optimizer), None)
    if kind is None:
        raise NotSupportedError("not available")
    decay = {key: case.options[key] for key in {"weight_decay"} & case.options.keys()}
    optimizer = kind(trainable(model), lr=LEARNING_RATES[case.optimizer], **decay)
    rate = 0.7 if case.schedule else 1.0
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: rate ** (n / 2))


def clip_norm(case: Case) -> float:
    return case.options.get("global_clipnorm", 0.0)


def examples(case: Case) -> list[dict[str, torch.Tensor]]:
    """Return the examples of an epoch."""
    tokens, targets, _ = data(dataclasses.replace(case, model="embedding"), "float32")
    labels = (targets[:, 0] > 0).astype("int64")
    return [
        {"input_ids": torch.tensor(ids, dtype=torch.long), "labels": torch.tensor(label)}
        for ids, label in zip(tokens, labels, strict=True)
    ]


class Batches(list):
    """Rows of each batch, with the attributes that Accelerate requires of a batch sampler."""

    drop_last = False

    @property
    def batch_size(self) -> int:
        return len(self[0])


def loader(case: Case, accumulate: bool) -> torch.utils.data.DataLoader:
    """Return a loader of an epoch in micro-batches or in whole windows.

    With two workers each micro-batch is cut into two halves, because Accelerate gives every second
    batch to each process.
    """
    cuts = [rows for window in windows(case) for rows in window]
    if not accumulate:
        cuts = [slice(window[0].start, window[-1].stop) for window in windows(case)]
    elif case.placement == WORKERS:
        middles = [(cut.start + cut.stop) // 2 for cut in cuts]
        pairs = zip(cuts, middles, strict=True)
        cuts = [s for c, m in pairs for s in (slice(c.start, m), slice(m, c.stop))]
    indices = [list(range(cut.start, cut.stop)) for cut in cuts]
    return torch.utils.data.DataLoader(examples(case), batch_sampler=Batches(indices))


def weights_of(model: torch.nn.Module) -> list[list[float]]:
    """Return the values of each trainable parameter as a flat list."""
    return [p.detach().double().ravel().tolist() for p in trainable(model)]


def join_cluster() -> None:
    """Set PyTorch's environment variables of a cluster from the runner's TF_CONFIG."""
    config = json.loads(os.environ["TF_CONFIG"])
    address, port = config["cluster"]["worker"][0].split(":")
    rank = str(config["task"]["index"])
    count = str(len(config["cluster"]["worker"]))
    os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": port, "RANK": rank}
    os.environ |= {"WORLD_SIZE": count, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": count}
