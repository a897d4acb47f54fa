"""Classification of texts as they arrive."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.config import PredictConfig
from bertaccum.data.tokenizing import store_of
from bertaccum.inference.predictor import Predictor
from bertaccum.inference.results import Prediction
from bertaccum.planning.device_memory import limit_memory
from bertaccum.progress import silent
from bertaccum.reporting.run_paths import RunPaths
from bertaccum.reporting.run_record import read_run_config
from bertaccum.settings import size_in_bytes
from bertaccum.tasks.classification import CLASSIFICATION
from bertaccum.tasks.saved_classifier import load_best

# Maximum number of texts that are sorted by length together. Texts that have arrived do not wait
# for more.
_TOGETHER = 2048


def predict(config: PredictConfig, texts: Iterable[str]) -> Iterator[Prediction]:
    """Classify texts with a run's best model.

    The texts may come from a pipe: texts that have arrived are classified while more are read.

    Args:
      config: Options, including the run.
      texts: Any number of texts; another thread iterates over them.

    Yields:
      A prediction for each text, in the order of the texts.

    Raises:
      InputError: The run does not exist or has no best checkpoint. Errors that `texts` raises are
        raised again.
    """
    limit_memory(size_in_bytes("memory_limit", config.memory_limit))
    folder = RunPaths(Path(config.run))
    trained = read_run_config(folder.path)
    model, files = load_best(folder.best_checkpoint())
    tokenizer = Tokenizer(files.vocabulary, trained.max_seq_length)
    predictor = Predictor(CLASSIFICATION, model, config.batch)
    for some in _as_they_come(texts):
        logits = predictor(store_of(some, tokenizer), silent)
        for text, of_text in zip(some, tf.nn.softmax(logits).numpy(), strict=True):
            of_class = zip(files.labels.names, of_text.tolist(), strict=True)
            yield Prediction(text, files.labels.names[np.argmax(of_text)], dict(of_class))


def _as_they_come(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of the texts that have arrived; wait until there is at least one."""
    read: queue.Queue[str | BaseException | None] = queue.Queue(2 * _TOGETHER)

    def put() -> None:
        try:
            for text in texts:
                read.put(text)
            read.put(None)
        except BaseException as error:
            read.put(error)

    threading.Thread(target=put, daemon=True).start()
    end: BaseException | str | None = ""
    while isinstance(end, str):
        some, end = [], read.get()
        while isinstance(end, str):
            some.append(end)
            if len(some) == _TOGETHER:
                break
            try:
                end = read.get_nowait()
            except queue.Empty:
                break
        if some:
            yield some
    if end is not None:
        raise end
