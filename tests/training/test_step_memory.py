"""What an update takes of the memory, measured: each in a process with a limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from test_planner import job
from test_update import CONFIG, TINY

from bertaccum.accumulation import AccumulatingOptimizer
from bertaccum.bert.source import ModelSource
from bertaccum.memory.trial import Trial
from bertaccum.progress import silent
from bertaccum.training.dataset import TokenStore
from bertaccum.training.model import build_model
from bertaccum.training.recipe import make_optimizer
from bertaccum.training.update import make_update
from bertaccum.training.windows import make_window
from bertaccum.training.worker import Worker

# Many layers and few words: no variable is a large part of the model.
WIDE = {
    "hidden_size": 192,
    "num_hidden_layers": 8,
    "num_attention_heads": 3,
    "intermediate_size": 768,
    "vocab_size": 500,
}
KINDS: dict[str, dict[str, Any]] = {
    "float32": {},
    "loss scale": {"precision": "mixed_float16"},
    "bfloat16 accumulators": {"accumulator_dtype": "bfloat16"},
}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[] if k == "float32" else pytest.mark.slow) for k in KINDS]
)
def test_an_update_makes_no_second_copy_of_the_gradients(kind: str) -> None:
    with Worker(silent, {}) as worker:
        built = worker.build(job(encoder=WIDE, config=KINDS[kind]))
        parameters = built["static_bytes"]["parameters"]
        accumulators = built["static_bytes"]["accumulators"]
        worker.run(Trial([[8]], "none"))
        transient = worker.run(Trial([[8]], "none")).peak_bytes - built["resting_bytes"]
        # In mixed precision weights are there a second time, in half their size.
        assert transient < (0.75 if kind == "loss scale" else 0.5) * parameters
        if kind == "float32":
            # A loop over 12 micro-steps takes no more than 12 windows of one. How two threads
            # interleave moves each peak by up to 3 %: the largest of as many is compared.
            one, many = Trial([[64] * 4], "none"), Trial([[64] * 4] * 12, "none")
            ones = [worker.run(one).peak_bytes for _ in range(12)]
            looped = min(worker.run(many).peak_bytes for _ in range(3))
            assert looped < 1.02 * max(ones)
            assert accumulators == parameters
        if kind == "bfloat16 accumulators":
            assert accumulators == parameters / 2


def test_one_micro_step_needs_no_accumulators() -> None:
    with Worker(silent, {}) as worker:
        built = worker.build(job(encoder=WIDE, accumulation_steps=1))
        assert built["static_bytes"]["accumulators"] == 0
        assert built["resting_bytes"] < 3.5 * built["static_bytes"]["parameters"]
        assert worker.run(Trial([[64] * 4], "none", accumulate=False)) is not None


def test_gradients_of_embeddings_stay_sparse_until_they_are_summed(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}
    accumulate = AccumulatingOptimizer.accumulate

    def spy(self: AccumulatingOptimizer, pairs: Any, weight: Any) -> None:
        seen.update({v.name: g for g, v in pairs})
        accumulate(self, pairs, weight)

    monkeypatch.setattr(AccumulatingOptimizer, "accumulate", spy)
    model = build_model(CONFIG, ModelSource("tiny", TINY, [], None), classes=2)
    make_update(model, make_optimizer(CONFIG, 8, 4), 0, True)(make_window(store, np.arange(8), 2))
    (words,) = [g for name, g in seen.items() if "word_embeddings" in name]
    assert isinstance(words, tf.IndexedSlices)
