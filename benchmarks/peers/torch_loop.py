"""A plain PyTorch loop around transformers' model, with fused AdamW and dynamic padding.

The entry `sampling` of the task is `sequential`, because the reviews have been shuffled, or
`group_by_length`: then the reviews of the whole epoch are sorted by length, windows are cut from
them, and the windows are shuffled. With the entry
`compiled`, `torch.compile` compiles the forward and backward passes. On a GPU, it makes CUDA graphs
of each length of a micro-batch, so micro-batches are padded to two to four different lengths.
"""

import torch
from torch_device import DEVICE, ON_GPU, inputs, length_multiple, settle
from transformers import BertConfig, BertForSequenceClassification
from turns import Turns, job, tokens


def windows(task, lengths):
    """Yield the rows of each window without end."""
    size = task["micro_batch"] * task["accumulation_steps"]
    rows = torch.arange(len(lengths))
    while True:
        grouped = task["sampling"] == "group_by_length"
        order = rows[torch.argsort(torch.tensor(lengths), descending=True)] if grouped else rows
        whole = order[: len(order) // size * size].reshape(-1, size)
        yield from (whole[torch.randperm(len(whole))] if grouped else whole).tolist()


def main():
    task, turns = job(), Turns(settle)
    ids, labels = tokens(task)
    ids, labels = [torch.from_numpy(row) for row in ids], torch.from_numpy(labels)
    torch.manual_seed(0)
    dropout = task["dropout"]
    config = BertConfig(
        **task["encoder"],
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        problem_type="single_label_classification",  # else the forward pass changes the config
    )
    model = BertForSequenceClassification(config).to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01, fused=True)
    precision, compiled = task["precision"], task.get("compiled", False)
    half = torch.autocast(DEVICE, getattr(torch, precision), enabled=precision != "float32")
    scaler = torch.amp.GradScaler(DEVICE, enabled=precision == "float16")
    run, multiple = model, length_multiple(precision)
    if compiled and not ON_GPU:
        run = torch.compile(model, dynamic=True)
    elif compiled:
        run = torch.compile(model, mode="reduce-overhead", dynamic=False)
        multiple = max(64, task["length"] // 4)
        for weight in model.parameters():
            # The next run of a CUDA graph overwrites its outputs, so gradients need other memory.
            weight.grad = torch.zeros_like(weight)

    def on_device(batch):
        return batch.pin_memory().to(DEVICE, non_blocking=True) if ON_GPU else batch

    turns.wait()
    for window in windows(task, [len(one) for one in ids]):
        optimizer.zero_grad(set_to_none=not compiled)
        for start in range(0, len(window), task["micro_batch"]):
            rows = window[start : start + task["micro_batch"]]
            batch = inputs([ids[row] for row in rows], multiple) | {"labels": labels[rows]}
            with half:
                loss = run(**{name: on_device(values) for name, values in batch.items()}).loss
            scaler.scale(loss * len(rows) / len(window)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        turns.updated()


main()
