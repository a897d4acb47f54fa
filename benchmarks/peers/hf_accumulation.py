"""Compares what Hugging Face Trainer logs and trains for whole windows and for micro-batches.

    make build/peers/environments/huggingface
    build/peers/environments/huggingface/bin/python benchmarks/peers/hf_accumulation.py

A `BertForSequenceClassification` of the size of BERT-Tiny, with random weights and without dropout,
trains for six updates of 32 examples with the defaults of `TrainingArguments`, which clip gradients
to norm 1.0. Prints the loss and the gradient norm that Trainer logs for the first update with
1 x 32 and 4 x 8, and the difference between the two changes of the weights over all updates.
"""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

UPDATES, WINDOW, LENGTH = 6, 32, 32


class Examples(torch.utils.data.Dataset):
    """Random tokens. The class tells whether the first is in the upper half of the vocabulary."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        shape = (UPDATES * WINDOW, LENGTH)
        self.ids = torch.randint(0, 1000, shape, generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, row):
        return {"input_ids": self.ids[row], "labels": (self.ids[row, 0] >= 500).long()}


def trained(steps, smoothing):
    """Return Trainer's first log record and the change of all weights as a flat vector."""
    torch.manual_seed(0)
    size = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=1000, intermediate_size=512, **size, **dropout)
    model = BertForSequenceClassification(config)
    start = flat(model)
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=WINDOW // steps,
        gradient_accumulation_steps=steps,
        num_train_epochs=1,
        label_smoothing_factor=smoothing,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Examples())
    trainer.train()
    return trainer.state.log_history[0], flat(model) - start


def flat(model):
    return torch.cat([p.detach().double().ravel() for p in model.parameters()])


def main():
    for smoothing in (0.0, 0.1):
        (whole, change), (cut, cut_change) = (trained(steps, smoothing) for steps in (1, 4))
        print(f"label_smoothing_factor={smoothing}")
        for name in ("loss", "grad_norm"):
            one, other = float(whole[name]), float(cut[name])
            print(f"  {name:9}  1 x 32 {one:.4f}   4 x 8 {other:.4f}   ratio {other / one:.2f}")
        apart = (cut_change - change).norm() / change.norm()
        largest = (cut_change - change).abs().max() / change.abs().max()
        print(f"  weight changes differ by {apart:.1e} in norm, {largest:.1e} at most")


main()
