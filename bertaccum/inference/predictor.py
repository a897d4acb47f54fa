"""Prediction of whole token stores on all replicas, in batches that fit in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from bertaccum.data.token_store import TokenStore
from bertaccum.data.windows import Window, batches_by_length, make_window
from bertaccum.distribution.collectives import sum_over_workers
from bertaccum.distribution.device_memory import disable_fused_matmul, memory_is_limited
from bertaccum.distribution.topology import Topology
from bertaccum.distribution.watchdog import WAITING, Watch
from bertaccum.errors import RunError
from bertaccum.system.progress import Progress
from bertaccum.system.stopping import StoppedEarlyError
from bertaccum.tasks import forward
from bertaccum.tasks.forward import Tagger, deciding_passages, reads_passages
from bertaccum.tasks.masked_model import MaskedLanguageModel
from bertaccum.tasks.task import Task


class Predictor:
    """A callable that returns a model's logits for token stores.

    If a batch runs out of memory, this and all later calls split all batches.

    Args:
      batch: Number of the longest passages that each replica processes in one forward pass; see
        `batches_by_length`.
      topology: Replicas that share the work; None if there is only one.
    """

    def __init__(
        self,
        model: tf_keras.Model,
        batch: int,
        topology: Topology | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._topology = topology or Topology()
        self._watch = watch or Watch(self._topology)
        self._predict = make_predict(model, self._topology)
        self.bytes = sum(w.dtype.size * w.shape.num_elements() for w in model.weights)
        self._outputs, self._pools = model.output_shape[-1], reads_passages(model)
        self._tags, self._batch, self._pieces = isinstance(model, Tagger), batch, 1
        self._masks = isinstance(model, MaskedLanguageModel)

    def __call__(
        self, store: TokenStore, progress: Progress, should_stop: Callable[[], bool] = lambda: False
    ) -> np.ndarray:
        """Return the logits [examples, outputs] float32 of texts, as `with_passages` does."""
        return self.with_passages(store, progress, should_stop)[:, 0]

    def with_passages(
        self, store: TokenStore, progress: Progress, should_stop: Callable[[], bool] = lambda: False
    ) -> np.ndarray:
        """Return the logits of texts and of their passages, in the store's order.

        All workers must call this method. The batches do not depend on the topology. The logits are
        therefore bit-identical on any topology, unless memory runs out.

        Returns:
          Logits [examples, 1 + passages, outputs] float32: those of the whole text, then those of
            each of its passages, read alone, and NaN after the last one. If the model reads each
            text in one passage, the shape is [examples, 1, outputs]; for tags, it is [examples, 1,
            words, outputs], NaN after the last word. For masked tokens, it is [examples, 1, masked,
            2], as in `MaskedLanguageModel.evaluated`.

        Raises:
          StoppedEarlyError: A worker was asked to stop.
          RunError: A single example does not fit in memory.
        """
        batches = batches_by_length(store, self._batch)
        first, replicas = self._topology.first_replica, self._topology.replicas
        passages = store.largest[0] if self._pools and len(store) else 0
        shape: tuple[int, ...] = len(store), 1 + passages, self._outputs
        if self._tags:
            shape = len(store), 1, int(store.words.max(initial=0)), self._outputs
        if self._masks:
            shape = len(store), 1, store.labels.shape[1], 2
        logits, done = np.zeros(shape, np.float32), 0
        for start in range(0, len(batches), replicas):
            present = batches[start : start + replicas]
            self._watch.doing("predicting")
            for rows, found in self._own(
                store, present[first : first + self._topology.local_replicas]
            ):
                logits[rows] = math.nan
                places: Any = (rows, *map(slice, found.shape[1:]))
                logits[places] = found
            self._watch.doing(WAITING)
            if sum_over_workers(self._topology, np.array([should_stop()])).any():
                raise StoppedEarlyError
            done += sum(map(len, present))
            progress("evaluating", done, len(store))
        return sum_over_workers(self._topology, logits)

    def predict(self, store: TokenStore, rows: np.ndarray) -> list[np.ndarray]:
        """Return the logits of some texts in one forward pass, without recovery."""
        return self._predict(make_window(store, rows, len(rows)))

    def _own(
        self, store: TokenStore, batches: list[np.ndarray]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the rows and logits of this worker's batches, split so that they fit in memory."""
        size = self._topology.local_replicas
        pieces = _split(batches, self._pieces)
        while pieces:
            windows = [make_window(store, rows, len(rows)) for rows in pieces[:size]]
            # Replicas without work repeat the first window.
            windows += windows[:1] * (size - len(windows))
            try:
                logits = self._predict(*windows)
            except tf.errors.ResourceExhaustedError:
                if max(map(len, pieces[:size])) == 1:
                    raise RunError(
                        "out of memory with one example at a time",
                        "raise `memory_limit`, or train with a lower `max_seq_length` or fewer"
                        " `windows`",
                    ) from None
                self._pieces *= 2
                pieces = _split(pieces, 2)
                continue
            yield from zip(pieces[:size], logits, strict=False)
            pieces = pieces[size:]


def deciding_windows(task: Task, store: TokenStore, logits: np.ndarray) -> list[dict[str, Any]]:
    """Return which window of each text decided, for results that users see.

    Returns:
      For each text, `window` (the deciding one, counted from 1) and `windows` (their number); empty
        dicts if the model reads each text in one window.
    """
    if logits.shape[1] == 1:
        return [{}] * len(store)
    counts = store.shapes[:, 0].tolist()
    deciding = deciding_passages(task.support, logits).numpy().tolist()
    return [{"window": k, "windows": n} for k, n in zip(deciding, counts, strict=True)]


def _split(batches: list[np.ndarray], pieces: int) -> list[np.ndarray]:
    return [piece for rows in batches for piece in np.array_split(rows, min(pieces, len(rows)))]


def make_predict(model: tf_keras.Model, topology: Topology) -> Callable[..., list[np.ndarray]]:
    """Return a function that predicts one window per replica of this process.

    It takes the windows and returns the logits of each, [examples, 1 + passages, outputs] float32,
    as `Predictor.with_passages` does.
    """
    masked = isinstance(model, MaskedLanguageModel)
    # In batches of at most `MAX_TOKENS`, memory runs out only if it is limited.
    if memory_is_limited():
        disable_fused_matmul()
    strategy, number = topology.strategy, topology.present_replica
    names = ["token_ids", "row_splits", *(["labels"] if masked else [])]
    specs = [tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int64)]
    specs += [tf.TensorSpec([None, None, 2], tf.int32)] if masked else []

    # AutoGraph would convert every layer before the first prediction.
    @tf.function(input_signature=specs * topology.local_replicas, autograph=False)
    def predict(*flat: tf.Tensor) -> Any:
        def own() -> tf.Tensor:
            first = len(specs) * number()
            token_ids, row_splits, *labels = flat[first : first + len(specs)]
            tokens = tf.RaggedTensor.from_row_splits(token_ids, row_splits, validate=False)
            if masked:
                return model.evaluated(tokens, *labels)[:, tf.newaxis]
            return forward.logits_of_texts_and_passages(model, tokens)

        return strategy.experimental_local_results(strategy.run(own))

    def run(*windows: Window) -> list[np.ndarray]:
        found = predict(*(field for w in windows for field in (getattr(w, n) for n in names)))
        return [logits.numpy() for logits in found]

    return run
