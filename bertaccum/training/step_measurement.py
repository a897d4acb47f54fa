"""Training steps that are measured in a separate process.

`python -m bertaccum.training.step_measurement` reads a job and then requests, each as a line of
JSON, and answers each with one line. If this process crashes, the process that started it
continues.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from bertaccum.accumulation.window import WindowOptimizer
from bertaccum.bert.encoder import set_recompute
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.precision import length_multiple, resolved_precision
from bertaccum.bert.tokenization import NEXT_PASSAGE, TAG
from bertaccum.bert.vocabulary import Vocabulary
from bertaccum.data.corpus_store import cached_stores
from bertaccum.data.masking import most_masked
from bertaccum.data.run_inputs import tokenizations
from bertaccum.data.tokenizing import open_store, open_unlabelled
from bertaccum.data.windows import Window, updates_per_epoch, window_rows
from bertaccum.distribution import device_memory
from bertaccum.distribution.topology import Topology
from bertaccum.errors import NO_SPACE, RunError
from bertaccum.inference.predictor import make_predict
from bertaccum.options.pretraining import train_config
from bertaccum.planning.measurement import MeasurementRequest
from bertaccum.planning.plan import Shape
from bertaccum.system.child_process import answering
from bertaccum.system.temporary_paths import scratch_folder
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels
from bertaccum.training.checkpoints import write_state
from bertaccum.training.recipe import build_model, make_optimizer, offload
from bertaccum.training.step import make_update

# Number of windows whose examples' shapes are reported.
_WINDOWS = 4
_SEED = 0


def main() -> None:
    """Answer requests from stdin until it is closed."""
    with answering() as (answer, progress):
        try:
            bench = MeasuredModel(json.loads(sys.stdin.readline()), progress)
            answer(**bench.description())
            for line in sys.stdin:
                answer(**bench.run(MeasurementRequest(**json.loads(line))))
        except tf.errors.ResourceExhaustedError:
            answer(out_of_memory=True)


class MeasuredModel:
    """A model that trains on random tokens; the cost of a step does not depend on the tokens."""

    def __init__(self, job: dict[str, Any], progress: Callable[..., None]) -> None:
        self.devices = job["devices"]
        device_memory.limit_memory(job["limit_bytes"])
        self.task = make_task(Labels(**job["labels"]))
        self.config = train_config(job["config"] | {"task": self.task.labels.task})
        source = ModelSource("probe", EncoderConfig(**job["encoder"]), None, None)
        most = source.encoder.max_position_embeddings
        self.examples: int | None = None
        self.largest, self.windows = self._shapes(job, most, progress)
        self.model = build_model(self.config, source, self.task.labels.outputs)
        self.optimizer = make_optimizer(self.config, 1000, job["accumulation_steps"])
        self.optimizer.build(self.model.trainable_variables)
        self.offloaded = self.config.offload
        self.updates: dict[tuple[str, bool, bool], Callable[..., Any]] = {}
        self.vocabulary_size = source.encoder.vocab_size

    def _shapes(
        self, job: dict[str, Any], most: int, progress: Callable[..., None]
    ) -> tuple[Shape, list[list[Shape]]]:
        """Return the largest example's shape, and the shapes of all examples in some windows."""
        config, target = self.config, self.config.target_batch
        largest = (config.windows, config.max_seq_length)
        if job.get("corpus"):
            opened = list(cached_stores(**job["corpus"]))
        elif job["tsvs"]:
            both = tokenizations(Vocabulary(**job["vocabulary"]), config)
            opened = [
                open_store(Path(tsv), self.task, tokenization, progress)
                for tsv, tokenization in zip(job["tsvs"], both, strict=False)
            ]
            if found := job.get("unlabelled"):
                made_of = Path(found["path"]), self.task, both[0], progress, found["digest"]
                opened[0] = opened[0].followed_by(open_unlabelled(*made_of))
        else:
            return largest, [[largest] * target]
        multiple = length_multiple(resolved_precision(config.precision))
        stores = [store.padded_to(multiple, most) for store in opened]
        train, self.examples = stores[0], len(stores[0])
        count = min(_WINDOWS, updates_per_epoch(len(train), target))
        rows = [window_rows(number, len(train), target, _SEED)[1] for number in range(count)]
        windows = [sorted(map(tuple, train.shapes[r].tolist())) for r in rows]
        # An incomplete last window is not typical, so use it only if there is no other.
        whole = [w for w in windows if len(w) == len(windows[0])]
        return max(store.largest for store in stores), whole

    def description(self) -> dict[str, Any]:
        """Return facts about the model, the device and the data; memory is in bytes."""
        return {
            "static_bytes": {
                "parameters": _bytes(self.model.variables),
                "embeddings": _bytes(
                    v
                    for v in self.model.variables
                    if "embedding" in v.name and "norm" not in v.name
                ),
                "slots": _bytes(self.optimizer.inner.variables),
                "accumulators": _bytes(self.optimizer.accumulators),
            },
            "limit_bytes": device_memory.total_bytes(self.devices),
            "device": device_memory.device_name(),
            "precision": resolved_precision(self.config.precision),
            "parameters": self.model.count_params(),
            "train_examples": self.examples,
            "largest": self.largest,
            "windows": self.windows,
        }

    def run(self, request: MeasurementRequest) -> dict[str, Any]:
        """Run one update, and return its duration and peak memory, or `out_of_memory`."""
        window = self._window(request.micro_batches, request.padded)
        if request.offload != self.offloaded:
            offload(self.optimizer, request.offload, self.config.offload_folder)
            self.offloaded, self.updates = request.offload, {}
        update = self._update(request.recompute, request.accumulate, request.padded is not None)
        gc.collect()
        device_memory.reset_peak_memory()
        resting = device_memory.used_bytes()
        start = time.perf_counter()
        try:
            update(window)
            seconds = time.perf_counter() - start
            if request.thorough:
                longest = max(request.micro_batches, key=_tokens)
                make_predict(self.model, Topology())(self._window([longest]))
                write_scratch_state(self.model, self.optimizer)
        except tf.errors.ResourceExhaustedError:
            self.optimizer.drop()
            return {"out_of_memory": True}
        peak = device_memory.peak_memory_bytes() or 0
        return {"seconds": seconds, "peak_bytes": peak, "resting_bytes": resting}

    def _update(self, *kind: Any) -> Callable[[Window], Any]:
        """Return the update for a kind of recomputation, accumulation and compilation.

        Each is traced only once.
        """
        if kind not in self.updates:
            recompute, accumulate, compile = kind
            encoder = self.model.checkpoint_items["encoder"]
            set_recompute(encoder, recompute == "layer")
            made_of = self.task, self.model, self.optimizer, _SEED
            self.updates[kind] = make_update(*made_of, accumulate, compile=compile)
        return self.updates[kind]

    def _window(
        self, micro_batches: Sequence[Sequence[Shape]], padded: Sequence[Shape] | None = None
    ) -> Window:
        shapes = [shape for micro_batch in micro_batches for shape in micro_batch]
        rng = np.random.default_rng(_SEED)
        lengths = [length for passages, length in shapes for _ in range(passages)]
        token_ids = rng.integers(0, self.vocabulary_size, sum(lengths), dtype=np.int32)
        token_ids[np.cumsum([0, *lengths[:-1]])] += NEXT_PASSAGE
        if self.config.tags_words:  # At worst, the head reads all tokens.
            token_ids += TAG
        own = [self.task.labels.outputs for _ in self.task.label_shape]
        labels = np.zeros([len(shapes), *own], self.task.label_dtype)
        if self.config.predicts_masked:
            count = most_masked(self.config.max_seq_length)
            labels = np.ones([len(shapes), count, 2], np.int32)
        return Window(
            token_ids=token_ids,
            row_splits=np.cumsum([0, *map(math.prod, shapes)], dtype=np.int64),
            labels=labels,
            cuts=np.cumsum([0, *map(len, micro_batches)], dtype=np.int32),
            padded=None if padded is None else np.array(padded, np.int32),
        )


def write_scratch_state(model: tf_keras.Model, optimizer: WindowOptimizer) -> None:
    """Write a checkpoint that is deleted at once.

    Raises:
      RunError: The disk is full. TensorFlow uses the same error when it is out of memory.
    """
    # The operating system may kill this process, because memory runs out.
    with scratch_folder(Path(tempfile.gettempdir(), "bertaccum-state")) as folder:
        try:
            write_state(model, optimizer, folder / "state")
        except tf.errors.ResourceExhaustedError as error:
            full = [why for why in map(os.strerror, NO_SPACE) if why in str(error)]
            if not full:
                raise
            raise RunError(
                f"cannot be written ({full[0]})",
                "free space there, or set TMPDIR to another folder",
                path=folder.parent,
            ) from None


def _tokens(micro_batch: Sequence[Shape]) -> int:
    return sum(map(math.prod, micro_batch))


def _bytes(variables: Iterable[tf.Variable]) -> int:
    """Return the memory of variables in bytes, counting each variable once."""
    kept = {
        id(v): v.shape.num_elements() * v.dtype.size
        for v in variables
        if isinstance(v, tf.Variable)  # Others are in host memory.
    }
    return sum(kept.values())


if __name__ == "__main__":
    main()
