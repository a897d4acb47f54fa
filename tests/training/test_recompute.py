"""Recomputation and seeded dropout: less memory, the same updates."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import tf_keras
from test_update import CONFIG, TINY

from bertaccum.bert.source import ModelSource
from bertaccum.training.dataset import TokenStore
from bertaccum.training.model import build_model
from bertaccum.training.recipe import make_optimizer
from bertaccum.training.update import make_update
from bertaccum.training.windows import make_window

DROPOUT = dataclasses.replace(CONFIG, dropout=0.3, learning_rate=1e-2, warmup_fraction=0.0)


def train(
    store: TokenStore, recompute: str, precision: str = "float32", seed: int = 0
) -> tuple[list[np.ndarray], list[float]]:
    """Weights after four updates with dropout, and their losses."""
    config = dataclasses.replace(DROPOUT, recompute=recompute, precision=precision)
    model = build_model(config, ModelSource("tiny", TINY, [], None), classes=2)
    update = make_update(model, make_optimizer(config, 8, 4), seed, True)
    windows = [make_window(store, np.arange(32 * i, 32 * i + 32), 8) for i in (0, 1, 2, 0)]
    losses = [update(window)["loss"] for window in windows]
    return model.get_weights(), losses


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_recomputation_changes_no_update(store: TokenStore, precision: str) -> None:
    kept, losses = train(store, "none", precision)
    recomputed, same = train(store, "layer", precision)
    np.testing.assert_allclose(same, losses, rtol=0, atol=1e-6)
    for one, other in zip(recomputed, kept, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_masks_follow_from_the_seed_and_the_update(store: TokenStore) -> None:
    tf_keras.utils.set_random_seed(5)
    _, losses = train(store, "none")
    tf_keras.utils.set_random_seed(6)
    assert train(store, "none")[1] == losses
    assert train(store, "none", seed=1)[1] != losses
    # The first window again, in the fourth update, with other masks and little training since.
    assert losses[3] != losses[0]


def test_training_without_a_seed_is_refused() -> None:
    model = build_model(DROPOUT, ModelSource("tiny", TINY, [], None), classes=2)
    words = np.ones((1, 4), np.int32)
    inputs = {"input_word_ids": words, "input_mask": words, "input_type_ids": words}
    model(inputs, training=False)
    with pytest.raises(RuntimeError, match="needs a dropout_seed"):
        model(inputs, training=True)


MEMORY = """
import dataclasses, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
from bertaccum.memory.device import limit_memory, peak_memory_bytes, reset_peak_memory
limit_memory(2000 * 2**20)
from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.bert.source import ModelSource
from bertaccum.config import TrainConfig
from bertaccum.training.model import build_model
from bertaccum.training.recipe import make_optimizer
from bertaccum.training.update import make_update
from bertaccum.training.windows import Window
config = TrainConfig(recompute=sys.argv[1])
encoder = dataclasses.replace(PRESET_CONFIGS["bert-small"], vocab_size=1000)
model = build_model(config, ModelSource("small", encoder, [], None), classes=2)
update = make_update(model, make_optimizer(config, 8, 2), 0, True)
for size in (1, 1, 9, 9):
    n, length = 2 * size, 128
    splits = np.arange(n + 1, dtype=np.int64) * length
    cuts = np.array([0, size, n], np.int32)
    reset_peak_memory()
    update(Window(np.ones(n * length, np.int32), splits, np.zeros(n, np.int32), cuts))
    print(peak_memory_bytes() / 2**20)
"""


def test_recomputation_takes_a_quarter_of_the_memory_of_an_example() -> None:
    """BERT-Small at length 128: at most 12 MiB an example, 39 without."""
    per_example = {}
    for recompute in ("none", "layer"):
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, recompute], capture_output=True, text=True, check=True
        )
        _, one, _, nine = map(float, done.stdout.split())
        per_example[recompute] = (nine - one) / 8
    assert per_example["layer"] <= 12 < 30 < per_example["none"] < 45, per_example
