"""Hugging Face Trainer on PyTorch, with batches padded to their longest review.

The entry `sampling` of the task is `random` or `group_by_length`.
"""

import tempfile

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from turns import Turns, job, reviews


class Reviews(torch.utils.data.Dataset):
    """Reviews that are tokenized before training, as with `datasets.map`."""

    def __init__(self, encodings, labels):
        self.encodings, self.labels = encodings, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        return {name: values[row] for name, values in self.encodings.items()} | {
            "labels": self.labels[row]
        }


class AfterUpdate(TrainerCallback):
    def __init__(self, turns):
        self.turns = turns

    def on_step_end(self, *_, **__):
        self.turns.updated()


def main():
    task, turns = job(), Turns()
    texts, labels = reviews(task)
    tokenizer = BertTokenizerFast(task["vocab"], do_lower_case=True)
    encodings = tokenizer(texts, truncation=True, max_length=task["length"])
    dropout = task["dropout"]
    config = BertConfig(
        **task["encoder"], hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=task["micro_batch"],
        gradient_accumulation_steps=task["accumulation_steps"],
        max_steps=10**6,
        learning_rate=2e-5,
        bf16=task["precision"] == "bfloat16",
        train_sampling_strategy=task["sampling"],
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=Reviews(dict(encodings), labels),
        data_collator=DataCollatorWithPadding(tokenizer),
        callbacks=[AfterUpdate(turns)],
    )
    turns.wait()
    trainer.train()


main()
