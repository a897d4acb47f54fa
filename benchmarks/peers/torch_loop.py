"""A plain PyTorch loop around transformers' model, with fused AdamW and dynamic padding.

The entry `sampling` of the task is `random`, or `group_by_length`: then the reviews of the whole
epoch are sorted by length, windows are cut from them, and the windows are shuffled.
"""

import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast
from turns import Turns, job, reviews


def windows(task, lengths):
    """Yield the rows of each window without end."""
    size = task["micro_batch"] * task["accumulation_steps"]
    rows = torch.arange(len(lengths))
    while True:
        if task["sampling"] == "random":
            order = rows[torch.randperm(len(rows))]
        else:
            order = rows[torch.argsort(torch.tensor(lengths), descending=True)]
        whole = order[: len(order) // size * size].reshape(-1, size)
        yield from whole[torch.randperm(len(whole))].tolist()


def main():
    task, turns = job(), Turns()
    texts, labels = reviews(task)
    tokenizer = BertTokenizerFast(task["vocab"], do_lower_case=True)
    ids = tokenizer(texts, truncation=True, max_length=task["length"])["input_ids"]
    labels = torch.tensor(labels)
    torch.manual_seed(0)
    dropout = task["dropout"]
    model = BertForSequenceClassification(
        BertConfig(
            **task["encoder"], hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
        )
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01, fused=True)
    half = torch.autocast("cpu", torch.bfloat16, enabled=task["precision"] == "bfloat16")
    turns.wait()
    for window in windows(task, [len(one) for one in ids]):
        optimizer.zero_grad()
        for start in range(0, len(window), task["micro_batch"]):
            rows = window[start : start + task["micro_batch"]]
            inputs = tokenizer.pad({"input_ids": [ids[row] for row in rows]}, return_tensors="pt")
            with half:
                loss = model(**inputs, labels=labels[rows]).loss
            (loss * len(rows) / len(window)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        turns.updated()


main()
