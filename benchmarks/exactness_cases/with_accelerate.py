"""Hugging Face Accelerate, with both loops of its guide to gradient accumulation.

https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.state import AcceleratorState, GradientState

from exactness_cases import torch_training
from exactness_cases.cases import STOP_AFTER, Case, NotSupportedError
from exactness_cases.tables import NOT_APPLICABLE


def large_batch(case: Case) -> list[list[float]]:
    """Train with plain PyTorch, without Accelerate."""
    torch_training.check(case)
    model = torch_training.make_model()
    optimizer, schedule = torch_training.make_optimizer(case, model)
    for _ in range(case.epochs):
        for batch in torch_training.loader(case, accumulate=False):
            model(**batch).loss.backward()
            if norm := torch_training.clip_norm(case):
                torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return torch_training.weights_of(model)


@dataclass
class Prepared:
    """A case's model, optimizer, schedule and loader from `Accelerator.prepare`, and the loop."""

    accelerator: Accelerator
    model: Any
    optimizer: Any
    schedule: Any
    loader: Any
    clip_norm: float

    def train(self, batches: Iterable[dict[str, torch.Tensor]]) -> None:
        for batch in batches:
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(self.model(**batch).loss)
                if self.accelerator.sync_gradients and self.clip_norm:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), self.clip_norm)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()

    def train_windows(self) -> None:
        """Train for an epoch with the loop for "training samples of variable size"."""
        steps, batches = self.accelerator.gradient_accumulation_steps, iter(self.loader)
        while window := list(itertools.islice(batches, steps)):
            count = sum(len(batch["labels"]) for batch in window)
            for batch in window:
                logits = self.model(input_ids=batch["input_ids"]).logits
                loss = torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="sum")
                self.accelerator.backward(loss * steps / count)  # It divides by `steps`.
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()


def prepared(case: Case) -> Prepared:
    AcceleratorState._reset_state()
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=len(case.micro))
    model = torch_training.make_model()
    optimizer, schedule = torch_training.make_optimizer(case, model)
    loader = torch_training.loader(case, accumulate=True)
    parts = accelerator.prepare(model, optimizer, schedule, loader)
    return Prepared(accelerator, *parts, torch_training.clip_norm(case))


def accumulated(case: Case) -> list[list[float]]:
    torch_training.check(case)
    if case.stop == "save":
        raise NotSupportedError("no such option")
    run, remaining = prepared(case), case.epochs
    if case.stop:
        run, remaining = resumed(case, run), case.epochs - 1
    for _ in range(remaining):
        run.train(run.loader)
    return torch_training.weights_of(run.accelerator.unwrap_model(run.model))


def accumulated_windows(case: Case) -> list[list[float]]:
    if not case.sizes_vary:
        raise NotSupportedError(NOT_APPLICABLE)
    torch_training.check(case)
    run = prepared(case)
    for _ in range(case.epochs):
        run.train_windows()
    return torch_training.weights_of(run.accelerator.unwrap_model(run.model))


def resumed(case: Case, run: Prepared) -> Prepared:
    """Train up to the middle of a window, save, and resume to the end of the epoch."""
    run.train(itertools.islice(run.loader, STOP_AFTER))
    with tempfile.TemporaryDirectory() as folder:
        run.accelerator.save_state(folder)
        run = prepared(case)
        run.accelerator.load_state(folder)
    run.train(skip_first_batches(run.loader, STOP_AFTER))
    return run


TRAININGS = {
    "large batch": large_batch,
    "accelerate": accumulated,
    "accelerate windows": accumulated_windows,
}


def start(placement: str, dtype: str) -> Callable[[str, Case], list[list[float]]]:
    if placement == torch_training.WORKERS:
        torch_training.join_cluster()
    return lambda name, case: TRAININGS[name](case)
