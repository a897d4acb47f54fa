"""A loaded classifier, and prediction for texts as they arrive."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.data.given_texts import given, words_between_spaces
from bertaccum.data.token_store import TokenStore
from bertaccum.data.tokenizing import store_of
from bertaccum.distribution.device_memory import limit_memory
from bertaccum.inference.mask_filler import MaskFiller
from bertaccum.inference.predictor import Predictor, deciding_windows
from bertaccum.inference.results import Prediction, TextAndPair
from bertaccum.inference.trained_model import load_trained
from bertaccum.options.commands import PredictConfig
from bertaccum.options.fields import size_in_bytes
from bertaccum.runs.record import read_run_config
from bertaccum.system.progress import silent
from bertaccum.tasks.token_classification import TokenClassification
from data_prep.tables.words import word_spans

# Maximum number of texts that are sorted by length together. Texts that have arrived do not wait
# for more.
_TOGETHER = 2048
# Interval at which a thread that waits for another one checks whether the iterator was closed.
_CHECK_SECONDS = 0.1


class TextClassifier:
    """The best model of a run, loaded to predict lists of texts; calls must not overlap.

    Args:
      run: Run folder.
      batch: Number of examples per forward pass.
      memory_limit: Maximum device memory, such as 4GiB; None for no limit.

    Attributes:
      run: Name of the run.
      update: Update at which the best checkpoint was saved, or None if unknown.
      longest_text: Maximum number of tokens that the model reads of a text or a pair.
    """

    def __init__(self, run: str, batch: int, memory_limit: str | None) -> None:
        limit_memory(size_in_bytes("memory_limit", memory_limit))
        trained = load_trained(Path(run))
        self._task, self._tokenizer = trained.task, Tokenizer(trained.tokenization)
        self._predictor = Predictor(trained.model, batch)
        self.run, self.update, self.labels = trained.run, trained.update, trained.files.labels
        self.longest_text = trained.tokenization.longest_text

    def __call__(self, texts: Sequence[TextAndPair]) -> list[Prediction]:
        """Return a prediction for each of at least one text, in the order of the texts.

        Second texts must be present for a model of pairs, else None.

        Raises:
          RunError: A single example does not fit in memory.
        """
        return self.of_tokens(texts, self.tokenize(texts))

    def tokenize(self, texts: Sequence[TextAndPair]) -> TokenStore:
        """Return the tokens of at least one text. Other threads may call this method meanwhile."""
        if self._tokenizer.tokenization.words:
            return store_of([[words_between_spaces(text) for text, _ in texts]], self._tokenizer)
        columns = [list(column) for column in zip(*texts, strict=True)][: 1 + self.labels.pairs]
        return store_of(columns, self._tokenizer)

    def of_tokens(self, texts: Sequence[TextAndPair], store: TokenStore) -> list[Prediction]:
        """Return what a call for these texts returns, given their tokens."""
        logits = self._predictor.with_passages(store, silent)
        windows = deciding_windows(self._task, store, logits)
        predicted = self._task.predictions(logits[:, 0])
        if isinstance(self._task, TokenClassification):
            of = self._task.in_text
            predicted = (of(t, word_spans(t), **p) for (t, _), p in zip(texts, predicted))  # noqa: B905
        results = zip(texts, predicted, windows, strict=True)
        return [
            Prediction(text, text_pair=pair, **found, **decided)
            for (text, pair), found, decided in results
        ]


def predict(config: PredictConfig, texts: Iterable[str | Sequence[str]]) -> Generator[Prediction]:
    """Yield the predictions of a run's best model for texts, in the order of the texts.

    Another thread iterates over `texts`; errors that they raise are raised again.
    """
    kind: type[TextClassifier | MaskFiller] = TextClassifier
    if read_run_config(Path(config.run)).predicts_masked:
        kind = MaskFiller
    yield from stream(kind(config.run, config.batch, config.memory_limit), texts)


def stream(
    classifier: TextClassifier | MaskFiller, texts: Iterable[str | Sequence[str]]
) -> Generator[Prediction]:
    """Yield a prediction for each text, in the order of the texts.

    The texts may come from a pipe: while the model processes texts that have arrived, other threads
    read and tokenize more. They end when the iterator is closed.
    """
    pairs, closed = classifier.labels.pairs, threading.Event()
    arrived = _read_ahead((given(text, pairs) for text in texts), 2 * _TOGETHER, closed)
    tokenized = _read_ahead(((some, classifier.tokenize(some)) for some in arrived), 1, closed)
    try:
        for some, store in itertools.chain.from_iterable(tokenized):
            yield from classifier.of_tokens(some, store)
    finally:
        closed.set()


@dataclass(frozen=True)
class _End:
    """The end of the items, and the error that caused it, if any."""

    error: BaseException | None = None


def _read_ahead(items: Generator[Any], size: int, closed: threading.Event) -> Generator[list[Any]]:
    """Yield lists of the items that have arrived, waiting until there is at least one."""
    # Another thread iterates over the items. The error that it raises is raised at the end.
    read: queue.Queue[Any] = queue.Queue(size)

    def put() -> None:
        try:
            # Closing releases what the items hold, such as a file or the model.
            with contextlib.closing(items):
                for item in items:
                    if not offer(item):
                        return
            offer(_End())
        except BaseException as error:
            offer(_End(error))

    def offer(item: Any) -> bool:
        """Return whether the item was still wanted."""
        while not closed.is_set():
            with contextlib.suppress(queue.Full):
                read.put(item, timeout=_CHECK_SECONDS)
                return True
        return False

    def take() -> Any:
        while not closed.is_set():
            with contextlib.suppress(queue.Empty):
                return read.get(timeout=_CHECK_SECONDS)
        return _End()

    threading.Thread(target=put, daemon=True).start()
    end = None
    while end is None:
        some = [take()]
        # No other thread removes items, so `get` does not wait unless the queue is empty.
        while not isinstance(some[-1], _End) and len(some) < _TOGETHER and not read.empty():
            some.append(read.get())
        if isinstance(some[-1], _End):
            end = some.pop()
        if some:
            yield some
    if end.error is not None:
        raise end.error
