"""Prediction splits batches that do not fit in memory, and fuses products with activations."""

from __future__ import annotations

import platform
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from small import TINY
from tensorflow.python.eager import context

from bertaccum.bert.encoder import build_encoder
from bertaccum.data.token_store import TokenStore
from bertaccum.data.windows import Window, make_window
from bertaccum.distribution.topology import Topology
from bertaccum.errors import InputError, RunError
from bertaccum.inference.predict import stream
from bertaccum.inference.predictor import Predictor, make_predict
from bertaccum.system.progress import silent
from bertaccum.tasks.head import build_classifier

# Seconds after which a test fails. No test waits that long if it passes.
LONG = 30.0


@pytest.fixture(scope="module")
def model() -> Any:
    tf_keras.utils.set_random_seed(1)
    return build_classifier(build_encoder(TINY), TINY, 2)


def test_batches_are_split_until_they_fit(
    store: TokenStore, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = Predictor(model, 32)
    expected, predict, sizes = predictor(store, silent), predictor._predict, []

    def limited(window: Window) -> list[np.ndarray]:
        sizes.append(window.examples)
        if window.examples > most:
            raise tf.errors.ResourceExhaustedError(None, None, "")
        return predict(window)

    monkeypatch.setattr(predictor, "_predict", limited)
    for most, failures in ((9, 3), (9, 0)):  # The second call remembers.
        sizes.clear()
        np.testing.assert_allclose(predictor(store, silent), expected, rtol=0, atol=1e-6)
        assert sum(size > most for size in sizes) == failures
    most = 0
    with pytest.raises(RunError, match="one example at a time"):
        predictor(store, silent)


@pytest.mark.slow  # The fast tests are run without oneDNN.
@pytest.mark.skipif(platform.machine() != "x86_64", reason="TensorFlow has oneDNN on x86 only")
def test_gelu_is_computed_with_its_product(store: TokenStore, model: Any) -> None:
    tf.config.optimizer.set_experimental_options({"remapping": True})
    predict = make_predict(model, Topology())
    context.enable_run_metadata()
    try:
        predict(make_window(store, np.arange(8), 8))
        graphs = context.export_run_metadata().partition_graphs
    finally:
        context.disable_run_metadata()
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [node for g in graphs for f in g.library.function for node in f.node_def]
    fused = [n for n in nodes if n.op.endswith("FusedMatMul")]
    gelus = [n for n in fused if b"GeluApproximate" in n.attr["fused_ops"].list.s]
    assert len(gelus) == TINY.num_hidden_layers


class Echo:
    """A classifier that returns the texts as it gets them."""

    def __init__(self, pairs: bool = False) -> None:
        self.labels = SimpleNamespace(pairs=pairs)
        self.tokenize: Any = list

    def of_tokens(self, texts: Any, _: object) -> Any:
        return texts


def echo(pairs: bool = False) -> Any:
    return Echo(pairs)


def test_second_text_may_be_empty_however_a_pair_is_given() -> None:
    texts: list[Any] = [("a", ""), ["a", ""], "a\t", ("a\t",), ["a\t"]]
    texts += ['{"text": "a", "text_pair": ""}', '{"text": "a", "text_pair": null}']
    assert list(stream(echo(pairs=True), texts)) == [("a", "")] * 7


def test_rows_of_a_column_are_single_texts() -> None:
    assert list(stream(echo(), ["a", ("a",), ["a"]])) == [("a", None)] * 3


@pytest.mark.parametrize("waiting", [False, True])
def test_closed_stream_keeps_no_model_and_no_thread(waiting: bool) -> None:
    others, arrived, more = {*threading.enumerate()}, threading.Event(), threading.Event()

    def texts() -> Iterator[str]:
        yield from map(str, range(2 if waiting else 1_000_000))
        arrived.set()
        assert more.wait(LONG)

    classifier, gone = echo(), threading.Event()
    weakref.finalize(classifier, gone.set)
    found = stream(classifier, texts())
    assert next(found) == ("0", None)
    threads = {*threading.enumerate()} - others
    assert len(threads) == 2
    # The model is released even while a thread waits for the next text.
    assert not waiting or arrived.wait(LONG)
    del classifier
    found.close()
    assert gone.wait(LONG)
    more.set()
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("text", "pairs", "message"),
    [
        (None, False, "None is neither a string nor a pair"),
        (float("nan"), True, "nan is neither a string nor a pair"),
        (("a", None), True, "neither a string nor a pair"),
        (("a", "b", "c"), True, "neither a string nor a pair"),
        ((), False, "neither a string nor a pair"),
        (("a", "b"), False, "'a' has a second text"),
        (["a", "b"], False, "'a' has a second text"),
        ("caf\udce9", False, r"'caf\\udce9' contains a character that UTF-8 cannot encode"),
        ('{"text": "\\ud83d", "text_pair": "b"}', True, "UTF-8 cannot encode"),
        ("a", True, "'a' is single"),
        (["a"], True, "'a' is single"),
        ("[" * 100_000, True, "is single"),
    ],
)
def test_error_names_a_text_that_does_not_suit(text: Any, pairs: bool, message: str) -> None:
    def tokenize(_: object) -> object:
        raise AssertionError("the text was tokenized")

    classifier = echo(pairs)
    classifier.tokenize = tokenize
    with pytest.raises(InputError, match=message):
        list(stream(classifier, [text]))
