"""A loaded classifier, and prediction for texts as they arrive."""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.data.token_store import TokenStore
from bertaccum.data.tokenizing import store_of
from bertaccum.distribution.device_memory import limit_memory
from bertaccum.errors import InputError
from bertaccum.inference.mask_filler import MaskFiller
from bertaccum.inference.predictor import Predictor, deciding_windows
from bertaccum.inference.results import Prediction, TextAndPair
from bertaccum.inference.trained_model import load_trained
from bertaccum.options.commands import PredictConfig
from bertaccum.options.fields import size_in_bytes
from bertaccum.runs.record import read_run_config
from bertaccum.system.progress import silent
from bertaccum.tasks.token_classification import TokenClassification
from data_prep.tables.columns import PAIR, TEXT
from data_prep.tables.words import SplitText, word_spans

# Maximum number of texts that are sorted by length together. Texts that have arrived do not wait
# for more.
_TOGETHER = 2048


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
            return store_of([[_words(text) for text, _ in texts]], self._tokenizer)
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


def predict(config: PredictConfig, texts: Iterable[str | tuple[str, str]]) -> Iterator[Prediction]:
    """Yield the predictions of a run's best model for texts, in the order of the texts.

    Another thread iterates over `texts`; errors that they raise are raised again.
    """
    kind: type[TextClassifier | MaskFiller] = TextClassifier
    if read_run_config(Path(config.run)).predicts_masked:
        kind = MaskFiller
    yield from stream(kind(config.run, config.batch, config.memory_limit), texts)


def stream(
    classifier: TextClassifier | MaskFiller, texts: Iterable[str | tuple[str, str]]
) -> Iterator[Prediction]:
    """Yield a prediction for each text, in the order of the texts.

    The texts may come from a pipe: while the model processes texts that have arrived, other threads
    read and tokenize more.
    """
    pairs = classifier.labels.pairs
    arrived = _read_ahead((_given(text, pairs) for text in texts), 2 * _TOGETHER)
    tokenized = _read_ahead(((some, classifier.tokenize(some)) for some in arrived), 1)
    for some, store in itertools.chain.from_iterable(tokenized):
        yield from classifier.of_tokens(some, store)


def _words(text: str) -> str:
    """Return the words of a text between spaces."""
    return SplitText.of(text[start:end] for start, end in word_spans(text))


def _given(text: str | tuple[str, str], pairs: bool) -> TextAndPair:
    """Return a text and, for a model of pairs, its second text."""
    strings = text if isinstance(text, tuple | list) else (text,)
    if not all(isinstance(one, str) for one in strings) or len(strings) > 2:
        wrong = f"the text {str(text)[:40]} is neither a string nor a pair of strings"
        raise InputError(wrong, "omit it, or convert it to a string")
    given = _split(text, pairs)
    try:
        "".join(filter(None, given)).encode()
    except UnicodeEncodeError:
        wrong = f"the text {str(text)[:40]!r} contains a character that UTF-8 cannot encode"
        raise InputError(wrong, "write it in UTF-8") from None
    return given


def _split(text: str | tuple[str, str], pairs: bool) -> TextAndPair:
    """Return a text as `_given` does."""
    # A string contains a pair as `{"text": …, "text_pair": …}`, or separated by a tab. The second
    # text may be empty; null in JSON stands for an empty text, as in a table.
    if not pairs and isinstance(text, str):
        return text, None
    if not pairs:
        raise InputError(
            f"the text {text[0][:40]!r} has a second text, but the model takes single texts",
            "omit `text_pair_column`, or rename the column text_pair",
        )
    if not isinstance(text, str):
        return text
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        record = json.loads(text)
        one, other = ("" if cell is None else cell for cell in (record[TEXT], record[PAIR]))
        if isinstance(one, str) and isinstance(other, str):
            return one, other
    first, tab, second = text.partition("\t")
    if not tab:
        raise InputError(
            f"the text {text[:40]!r} is single, but the model takes pairs",
            "separate the two texts with a tab, or choose a column with `text_pair_column`",
        )
    return first, second


def _read_ahead(items: Iterable[tuple[Any, ...]], size: int) -> Iterator[list[Any]]:
    """Yield lists of the items that have arrived, waiting until there is at least one."""
    # Another thread iterates over the items. The error that it raises is raised at the end.
    read: queue.Queue[Any] = queue.Queue(size)

    def put() -> None:
        try:
            for item in items:
                read.put(item)
            read.put(None)
        except BaseException as error:
            read.put(error)

    threading.Thread(target=put, daemon=True).start()
    end: Any = ()
    while isinstance(end, tuple):
        some = [end := read.get()]
        # No other thread removes items, so `get` does not wait unless the queue is empty.
        while isinstance(end, tuple) and len(some) < _TOGETHER and not read.empty():
            some.append(end := read.get())
        if not isinstance(end, tuple):
            some.pop()
        if some:
            yield some
    if end is not None:
        raise end
