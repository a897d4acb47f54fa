"""Hugging Face Trainer with `gradient_accumulation_steps`, with and without label smoothing."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from exactness_cases import torch_training
from exactness_cases.cases import Case, NotSupportedError


class OrderedTrainer(Trainer):
    """A Trainer that takes the case's batches in order, instead of shuffled and of one size."""

    def __init__(self, loader: torch.utils.data.DataLoader, **options: Any) -> None:
        super().__init__(train_dataset=loader.dataset, **options)
        self.loader = loader

    def get_train_dataloader(self) -> torch.utils.data.DataLoader:
        return self.accelerator.prepare(self.loader)


def trained(case: Case, accumulate: bool, smoothing: float) -> list[list[float]]:
    torch_training.check(case)
    if case.stop:
        raise NotSupportedError("only between updates")
    model = torch_training.make_model()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            gradient_accumulation_steps=len(case.micro) if accumulate else 1,
            num_train_epochs=case.epochs,
            max_grad_norm=torch_training.clip_norm(case),
            label_smoothing_factor=smoothing,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        OrderedTrainer(
            loader=torch_training.loader(case, accumulate),
            model=model,
            args=arguments,
            optimizers=torch_training.make_optimizer(case, model),
        ).train()
    return torch_training.weights_of(model)


TRAININGS: dict[str, Callable[[Case], list[list[float]]]] = {
    "large batch": lambda case: trained(case, False, 0.0),
    "trainer": lambda case: trained(case, True, 0.0),
    "smoothed large batch": lambda case: trained(case, False, 0.1),
    "smoothed trainer": lambda case: trained(case, True, 0.1),
}


def start(placement: str, dtype: str) -> Callable[[str, Case], list[list[float]]]:
    if placement == torch_training.WORKERS:
        torch_training.join_cluster()
    return lambda name, case: TRAININGS[name](case)
