"""Hugging Face Trainer on every kind of task, from given weights and in a given order.

The only argument is the path of a job, a JSON object with these entries:

  data: folder with train.tsv, dev.tsv and test.tsv, as `bertaccum prepare` writes them
  initial: model folder in Hugging Face's format, with the initial weights
  out: folder to write to
  orders: file with the order of the training rows in each epoch, [epochs, rows]
  task: classification, regression, multi-label or token-classification
  outputs, length, dropout, seed, learning_rate, updates, warmup, steps: numbers; `steps` is the
    number of micro-batches in a window of 32
  loss: model (the loss of the model), subclass (compute_loss of a subclass returns PyTorch's
    weighted mean) or function (compute_loss_func divides the weighted sum by num_items_in_batch)
  divide: whether to set loss_is_scaled_for_ga to False, so that Trainer divides losses by `steps`
  class_weight: weight of each class; null for the loss of the model
  predict: splits to predict after training: dev, test, both or none
  lora_rank: rank of low-rank adapters, which peft adds to queries and values; null for none
  keras_epsilon: whether AdamW adds epsilon before it corrects the bias of the second moment, as in
    Keras

Writes the trained weights, and `logits.npz` with the logits and labels of the splits in `predict`.
Logits and labels of a regression are in the unit of the labels; those of tags are [texts, tokens],
with the label -100 for tokens that are not the first one of a word.
"""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertTokenizerFast,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

WINDOW = 32
TAGS = "token-classification"
KINDS = {
    "classification": "single_label_classification",
    "regression": "regression",
    "multi-label": "multi_label_classification",
}


class Order(torch.utils.data.Sampler):
    """The rows of each epoch, in the given order."""

    def __init__(self, orders):
        self.orders, self.epoch = orders, -1

    def __len__(self):
        return len(self.orders[0])

    def __iter__(self):
        self.epoch += 1
        return iter(self.orders[self.epoch].tolist())


class OrderedTrainer(Trainer):
    def __init__(self, orders, **options):
        super().__init__(**options)
        self.orders = orders

    def _get_train_sampler(self, train_dataset=None):
        return Order(self.orders)


class WeightedTrainer(OrderedTrainer):
    """The usual recipe for class weights."""

    class_weight = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(outputs.logits, labels, self.class_weight)
        return (loss, outputs) if return_outputs else loss


class KerasEpsilon(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **_):
        correction = 1 - args.adam_beta2 ** (state.global_step + 1)
        for group in optimizer.param_groups:
            group["eps"] = args.adam_epsilon / correction**0.5


def examples(job, tokenizer, split):
    """Return the tokenized examples of a split with their labels, which are not standardized."""
    csv.field_size_limit(2**30)
    with (Path(job["data"]) / f"{split}.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    pairs = [row["text_pair"] for row in rows] if "text_pair" in rows[0] else None
    texts = [row["text"] for row in rows]
    options = {"truncation": True, "max_length": job["length"], "split_special_tokens": True}
    if job["task"] == TAGS:
        words = [text.split(" ") for text in texts]
        encodings = tokenizer(words, is_split_into_words=True, **options)
        tags = [[int(tag) for tag in row["label"].split(" ")] for row in rows]
        labels = [tags_of(encodings.word_ids(i), own) for i, own in enumerate(tags)]
        return [
            {"input_ids": ids, "labels": own}
            for ids, own in zip(encodings["input_ids"], labels, strict=True)
        ]
    encodings = tokenizer(texts, pairs, **options)
    labels = [label_of(row["label"], job) for row in rows]
    return [
        {name: values[i] for name, values in encodings.items()} | {"labels": labels[i]}
        for i in range(len(rows))
    ]


def tags_of(words, tags):
    """Return the label of each token, given the number of its word, or None."""
    before = [None, *words[:-1]]
    return [
        tags[word] if word is not None and word != other else -100
        for word, other in zip(words, before, strict=True)
    ]


def label_of(cell, job):
    if job["task"] == "classification":
        return int(cell)
    if job["task"] == "regression":
        return float(cell)
    numbers = {int(part) for part in cell.split("|") if part}
    return [float(number in numbers) for number in range(job["outputs"])]


def arguments_of(job):
    return TrainingArguments(
        output_dir=job["out"],
        per_device_train_batch_size=WINDOW // job["steps"],
        gradient_accumulation_steps=job["steps"],
        per_device_eval_batch_size=64,
        max_steps=job["updates"],
        learning_rate=job["learning_rate"],
        warmup_steps=job["warmup"],
        lr_scheduler_type="linear",
        weight_decay=0.01,
        max_grad_norm=1.0,
        adam_epsilon=1e-8,
        seed=job["seed"],
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def adapted(model, rank):
    """Freeze a model except for low-rank adapters, its pooler and its head, as bertaccum does."""
    from peft import LoraConfig, get_peft_model

    options = {"target_modules": ["query", "value"], "modules_to_save": ["pooler", "classifier"]}
    return get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, **options))


def trainer_of(job, tokenizer, train):
    weight = job["class_weight"] and torch.tensor(job["class_weight"])

    def by_items(outputs, labels, num_items_in_batch=None):
        losses = torch.nn.functional.cross_entropy(outputs.logits, labels, weight, reduction="sum")
        return losses / num_items_in_batch

    config = json.loads((Path(job["initial"]) / "config.json").read_text())
    config |= {"problem_type": KINDS.get(job["task"]), "classifier_dropout": job["dropout"]}
    config |= {f"{part}_dropout_prob": job["dropout"] for part in ("hidden", "attention_probs")}
    tags = job["task"] == TAGS
    shape = BertForTokenClassification if tags else BertForSequenceClassification
    model = shape.from_pretrained(job["initial"], config=BertConfig(**config))
    if job["lora_rank"] is not None:
        model = adapted(model, job["lora_rank"])
    collator = DataCollatorForTokenClassification if tags else DataCollatorWithPadding
    kind = WeightedTrainer if job["loss"] == "subclass" else OrderedTrainer
    trainer = kind(
        orders=np.load(job["orders"]),
        model=model,
        args=arguments_of(job),
        train_dataset=train,
        data_collator=collator(tokenizer),
        compute_loss_func=by_items if job["loss"] == "function" else None,
        callbacks=[KerasEpsilon()] if job["keras_epsilon"] else [],
    )
    trainer.class_weight = weight
    if job["divide"]:
        trainer.loss_is_scaled_for_ga = False
    return trainer


def main():
    job = json.loads(Path(sys.argv[1]).read_text())
    tokenizer = BertTokenizerFast.from_pretrained(job["initial"])
    train = examples(job, tokenizer, "train")
    mean, std = 0.0, 1.0
    if job["task"] == "regression":
        labels = [example["labels"] for example in train]
        mean, std = np.mean(labels), np.std(labels)
        for example in train:
            example["labels"] = (example["labels"] - mean) / std
    trainer = trainer_of(job, tokenizer, train)
    trainer.train()
    trainer.save_model()
    saved = {}
    for name in job["predict"]:
        split = examples(job, tokenizer, name)
        found = trainer.predict(split)
        saved[f"{name}_logits"] = found.predictions * std + mean
        labels = found.label_ids if job["task"] == TAGS else [one["labels"] for one in split]
        saved[f"{name}_labels"] = np.array(labels)
    np.savez(Path(job["out"]) / "logits.npz", **saved)


main()
