"""Hugging Face Trainer on PyTorch, with batches padded to their longest review.

The entry `sampling` of the task is Trainer's `train_sampling_strategy`. With the entry `outputs`,
the number of tags, each token has a tag, or -100 for none. With the entry `text`, a model of masked
tokens is pretrained, with the collator of `run_mlm.py`.
"""

import functools
import tempfile

import numpy as np
import torch
from torch_device import ON_GPU, inputs, length_multiple, settle
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertTokenizerFast,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from turns import Turns, job, tokens


class Reviews(torch.utils.data.Dataset):
    """Reviews that are tokenized before training, as with `datasets.map`."""

    def __init__(self, ids, labels):
        self.ids, self.labels = ids, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        return {"input_ids": self.ids[row], "labels": torch.as_tensor(self.labels[row])}


class Sequences(torch.utils.data.Dataset):
    """Sequences of texts; the collator would look for special tokens much more slowly."""

    def __init__(self, ids, tokenizer):
        special = torch.tensor(tokenizer.all_special_ids)
        self.rows = [
            {"input_ids": row, "special_tokens_mask": torch.isin(row, special).long()}
            for row in ids
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, row):
        return dict(self.rows[row])


class AfterUpdate(TrainerCallback):
    def __init__(self, turns):
        self.turns = turns

    def on_step_end(self, *_, **__):
        self.turns.updated()


def batch_of(multiple, examples):
    labels = [example["labels"] for example in examples]
    if labels[0].ndim:
        padded = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
    else:
        padded = torch.stack(labels)
    rows = [example["input_ids"] for example in examples]
    return inputs(rows, multiple) | {"labels": padded}


def main():
    task, turns = job(), Turns(settle)
    ids, labels = tokens(task)
    dropout, outputs, model = task["dropout"], 2, BertForSequenceClassification
    if "outputs" in task:
        outputs, model = task["outputs"], BertForTokenClassification
        labels = np.split(labels, np.cumsum([len(row) for row in ids])[:-1])
    config = BertConfig(
        **task["encoder"],
        num_labels=outputs,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=task["micro_batch"],
        gradient_accumulation_steps=task["accumulation_steps"],
        max_steps=10**6,
        learning_rate=2e-5,
        optim="adamw_torch_fused",
        bf16=task["precision"] == "bfloat16",
        fp16=task["precision"] == "float16",
        use_cpu=not ON_GPU,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        train_sampling_strategy=task["sampling"],
    )
    rows = [torch.from_numpy(row) for row in ids]
    collate = functools.partial(batch_of, length_multiple(task["precision"]))
    if "text" in task:
        tokenizer, model = BertTokenizerFast(task["vocab"]), BertForMaskedLM
        data, collate = Sequences(rows, tokenizer), DataCollatorForLanguageModeling(tokenizer)
    else:
        data = Reviews(rows, labels)
    trainer = Trainer(
        model=model(config),
        args=arguments,
        train_dataset=data,
        data_collator=collate,
        callbacks=[AfterUpdate(turns)],
    )
    turns.wait()
    trainer.train()


main()
