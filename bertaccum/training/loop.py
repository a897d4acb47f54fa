"""The training loop: windows in, updates out, the best model kept on the way."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum import __version__
from bertaccum.bert.recompute import recompute_layers
from bertaccum.bert.source import find_model
from bertaccum.config import AUTO, PRESETS, EvalConfig, TrainConfig, size_in_bytes
from bertaccum.errors import RunError
from bertaccum.memory.cut import Cut, make_cut
from bertaccum.memory.device import limit_memory, peak_memory_bytes, reset_peak_memory
from bertaccum.memory.plan import make_plan
from bertaccum.progress import Progress, silent
from bertaccum.training.checkpoints import save_best, state_saver
from bertaccum.training.dataset import TokenStore, open_store, read_labels
from bertaccum.training.evaluation import accuracy, mean_loss, predict_store
from bertaccum.training.events import Evaluated, Event, Finished, OutOfMemory, Started, Updated
from bertaccum.training.model import build_model
from bertaccum.training.planner import Subject, learned_limits, make_report, remember_out_of_memory
from bertaccum.training.precision import resolved_precision
from bertaccum.training.recipe import make_optimizer
from bertaccum.training.run_folder import ModelFiles, RunFolder
from bertaccum.training.update import make_predict, make_update
from bertaccum.training.windows import Window, make_window, updates_per_epoch, window_rows


def train(config: TrainConfig, progress: Progress) -> Iterator[Event]:
    """Trains one run; it goes on as long as the events are taken.

    Everything that can be wrong with the input is found before the run folder is made.

    Args:
      config: the whole recipe.
      progress: called during long preparations with what, how much is done, and the total.

    Yields:
      `Started`, then `Updated` and `Evaluated` as they happen, then `Finished`.

    Raises:
      ConfigError, InputError: an option or file cannot be used.
    """
    path = RunFolder.new_path(config.out)
    limit_memory(size_in_bytes("--memory-limit", config.memory_limit))
    data = Path(config.data)
    labels = read_labels(data)
    source = find_model(config, progress)
    tsvs = [data / f"{split}.tsv" for split in ("train", "dev")]
    subject = Subject(config, source, labels, tsvs)
    planned = _plan(subject, progress)
    config = dataclasses.replace(
        config, micro_batch=planned["micro_batch"], recompute=planned["recompute"]
    )
    stores = [
        open_store(tsv, labels, source.vocabulary, config.max_seq_length, progress, digest)
        for tsv, digest in zip(tsvs, subject.store_digests, strict=True)
    ]
    model = build_model(config, source, len(labels.values))
    yield from _Run(config, subject, planned, model, RunFolder(path), *stores).events()


def _plan(subject: Subject, progress: Progress) -> dict[str, Any]:
    """What goes into `plan.json`: as measured, or as the user said."""
    config = subject.config
    if config.micro_batch == AUTO:
        report = make_report(subject, progress)
        report.taken()
        return report.values
    kind = "none" if config.recompute == AUTO else config.recompute
    plan = make_plan(config.target_batch, int(config.micro_batch), kind, config.cut)
    return dataclasses.asdict(plan) | {"why": "as --micro-batch says"}


class _Run:
    """One run under way: its parts, and the best dev accuracy so far."""

    def __init__(
        self,
        config: TrainConfig,
        subject: Subject,
        planned: dict[str, Any],
        model: tf_keras.Model,
        folder: RunFolder,
        train_store: TokenStore,
        dev_store: TokenStore,
    ) -> None:
        self.config, self.subject, self.model, self.folder = config, subject, model, folder
        self.train_store, self.dev_store = train_store, dev_store
        self.source = subject.source
        self.files = ModelFiles(self.source.encoder, self.source.vocabulary, subject.labels)
        self.planned = planned
        assert isinstance(config.micro_batch, int)
        self.plan = make_plan(config.target_batch, config.micro_batch, config.recompute, config.cut)
        per_epoch = updates_per_epoch(len(train_store), config.target_batch)
        # Rounded first: 0.1 epochs of 30 updates are 3, though 0.1 * 30 is a little more.
        scheduled = max(math.ceil(round(config.epochs * per_epoch, 6)), 1)
        # The schedule does not know of --max-updates: stopping early changes no update.
        self.updates = min(scheduled, config.max_updates or scheduled)
        self.eval_every = config.eval_every or per_epoch
        self.optimizer = make_optimizer(config, scheduled, self.plan.accumulation_steps)
        self.update = self._make_update()
        self.predict = make_predict(model)
        self.eval_batch = EvalConfig().batch
        self.best: Evaluated | None = None
        self.peak: int | None = None
        self.shrinkings = 0

    def events(self) -> Iterator[Event]:
        self.folder.create(self._resolved_config())
        self.saver = state_saver(self.model, self.optimizer, self.folder)
        self._write_plan()
        yield self._started()
        start, seconds, examples = time.perf_counter(), 0.0, 0
        for number in range(self.updates):
            updated = yield from self._run_update(number)
            self.folder.append(self.folder.metrics, dataclasses.asdict(updated))
            seconds += updated.seconds
            examples += updated.examples
            yield updated
            if updated.update % self.eval_every == 0 or updated.update == self.updates:
                yield (evaluated := self._evaluate(updated.update))
        summary = self._summary(updated, evaluated, examples, seconds, time.perf_counter() - start)
        self.folder.write_json(self.folder.summary, summary)
        yield Finished(summary)

    def _resolved_config(self) -> TrainConfig:
        """The configuration with nothing left to be derived, and good in any folder."""
        config = self.config
        return dataclasses.replace(
            config,
            data=_absolute(config.data),
            init_checkpoint=_absolute(config.init_checkpoint or config.model or self.source.name),
            bert_config=config.bert_config and _absolute(config.bert_config),
            vocab=config.vocab and _absolute(config.vocab),
            precision=resolved_precision(config.precision),
            eval_every=self.eval_every,
        )

    def _started(self) -> Started:
        return Started(
            folder=self.folder.path,
            model=self.source.name,
            pretrained=self.source.checkpoint is not None,
            parameters=self.model.count_params(),
            train_examples=len(self.train_store),
            dev_examples=len(self.dev_store),
            plan=self.plan,
            why=self.planned["why"],
            updates=self.updates,
        )

    def _make_update(self) -> Callable[[Window], dict[str, float]]:
        accumulate = self.plan.accumulation_steps > 1
        return make_update(self.model, self.optimizer, self.config.seed, accumulate)

    def _run_update(self, number: int) -> Generator[Event, None, Updated]:
        reset_peak_memory()
        start = time.perf_counter()
        config = self.config
        epoch, rows = window_rows(number, len(self.train_store), config.target_batch, config.seed)
        while True:
            window = make_window(self.train_store, rows, self.plan.micro_batch, self._cut())
            try:
                results = self.update(window)
                break
            except tf.errors.ResourceExhaustedError:
                yield self._shrink(number + 1)
        seconds = time.perf_counter() - start
        peak = peak_memory_bytes()
        self.peak = max(filter(None, (peak, self.peak)), default=None)
        return Updated(
            update=number + 1,
            epoch=epoch + 1,
            loss=results["loss"],
            examples=window.examples,
            micro_steps=window.micro_steps,
            padded_tokens=window.padded_tokens,
            tokens=len(window.token_ids),
            learning_rate=results["learning_rate"],
            grad_norm=results["grad_norm"],
            seconds=seconds,
            examples_per_second=window.examples / seconds,
            skipped=not results["applied"],
            peak_memory_bytes=peak,
        )

    def _cut(self) -> Cut:
        # One micro-step has no accumulators, and stays one.
        kind = "count" if self.plan.accumulation_steps == 1 else self.plan.cut
        return make_cut(kind, self.train_store.longest)

    def _shrink(self, update: int) -> OutOfMemory:
        """After running out of memory: forgets the window and cuts what comes smaller, for good.

        Raises:
          RunError: it cannot be cut smaller, or weights have been changed already.
        """
        if self.optimizer.half_updated.numpy():
            raise RunError(
                f"out of memory while the weights of update {update} were being changed",
                "lower --micro-batch or raise --memory-limit, and train again",
            )
        self.optimizer.drop()
        failed, kind = self.plan.micro_batch, self.plan.recompute
        remember_out_of_memory(self.subject, failed, kind)
        if failed == 1 and kind == "layer":
            raise RunError(
                f"out of memory in update {update}, with one example at a time and recomputation",
                "lower --max-seq-length, choose a smaller --model, or raise --memory-limit",
            )
        if failed == 1:
            recompute_layers(self.model.checkpoint_items["encoder"])
            kind = "layer"
        accumulated = self.plan.accumulation_steps > 1
        smaller = max(failed // 2, 1)
        self.plan = make_plan(self.config.target_batch, smaller, kind, self.config.cut)
        if failed == 1 or not accumulated:
            self.update = self._make_update()
        self.shrinkings += 1
        event = OutOfMemory(update, failed, self.plan.micro_batch, kind)
        self.folder.append(self.folder.metrics, dataclasses.asdict(event))
        self._write_plan()
        return event

    def _write_plan(self) -> None:
        """The plan as it is now, with what has been learned about memory."""
        now = dataclasses.asdict(self.plan)
        values = self.planned | now | {"learned_limits": learned_limits(self.subject)}
        self.folder.write_json(self.folder.plan, values)

    def _evaluate(self, update: int) -> Evaluated:
        # What did not fit once is not tried again.
        logits, self.eval_batch = predict_store(
            self.predict, self.dev_store, self.eval_batch, silent
        )
        labels = self.dev_store.labels
        score = accuracy(logits, labels)
        # A small dev.tsv gives many ties; among equals the longest trained is the best guess.
        best = self.best is None or score >= self.best.accuracy
        evaluated = Evaluated(update, score, mean_loss(logits, labels), best)
        if not math.isfinite(evaluated.loss):
            raise RunError(
                f"the loss on dev.tsv is no longer finite at update {update}",
                "try a lower --learning-rate, or --precision mixed_bfloat16 or float32",
            )
        if best:
            self.best = evaluated
            save_best(self.model, self.files, self.folder)
        self.saver.save(update)
        self.folder.append(self.folder.eval, dataclasses.asdict(evaluated))
        return evaluated

    def _summary(
        self, last: Updated, evaluated: Evaluated, examples: int, seconds: float, total: float
    ) -> dict[str, Any]:
        assert self.best is not None
        return {
            "updates": last.update,
            "epochs": last.epoch,
            "examples": examples,
            "final_loss": last.loss,
            "final_dev_accuracy": evaluated.accuracy,
            "best_dev_accuracy": self.best.accuracy,
            "best_update": self.best.update,
            "skipped_windows": int(self.optimizer.skipped_windows.numpy()),
            "training_seconds": round(seconds, 3),
            "total_seconds": round(total, 3),
            "examples_per_second": round(examples / seconds, 3),
            "peak_memory_bytes": self.peak,
            "out_of_memory": self.shrinkings,
            "micro_batch": self.plan.micro_batch,
            "recompute": self.plan.recompute,
            "model": self.source.name,
            "pretrained": self.source.checkpoint is not None,
            "parameters": self.model.count_params(),
            "versions": {
                "bertaccum": __version__,
                "tensorflow": tf.__version__,
                "tf_keras": tf_keras.__version__,
            },
        }


def _absolute(name: str) -> str:
    """A path that holds from any folder; the name of a preset, or none, as it is."""
    if name in PRESETS or not Path(name).exists():
        return name
    return str(Path(name).resolve())
