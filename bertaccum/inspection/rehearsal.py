"""A rehearsal of training: two updates of a tiny model, each with two micro-batch sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tf_keras

from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.data.token_store import TokenStore
from bertaccum.data.tokenizing import open_store
from bertaccum.data.windows import make_window, window_rows
from bertaccum.options.commands import TrainConfig
from bertaccum.system.progress import silent
from bertaccum.tasks.classification import Classification
from bertaccum.tasks.head import build_classifier
from bertaccum.tasks.labels import Labels
from bertaccum.training.recipe import make_optimizer
from bertaccum.training.step import make_update

UPDATES, TARGET_BATCH = 2, 4
# The gradient of a key's bias is only rounding noise. Without bias correction and with its larger
# epsilon, this optimizer does not amplify the noise, which differs between devices.
_CONFIG = TrainConfig(
    target_batch=TARGET_BATCH,
    optimizer="bert-adamw",
    learning_rate=5e-4,
    warmup_fraction=0.0,
    dropout=0.0,
    precision="float32",
    init_checkpoint="none",
)
_TASK = Classification(Labels.numbered(2))
_WORDS = ("the", "food", "was", "very", "good", "bad")


def rehearse(folder: Path) -> dict[str, float]:
    """Train with one micro-batch per update and with two, and compare the weights.

    Args:
      folder: Empty folder for the data; the cache must be inside it as well.

    Returns:
      `difference` is the largest absolute difference between two weights of the same variable after
      the two updates, and `change` the largest change of a weight by the updates. `norm_difference`
      is the largest relative difference between two gradient norms: AdamW's updates hardly depend
      on the scale of the gradient, so the weights do not show a wrong divisor.
    """
    store = _store(folder)
    initial, whole, norms = _train(store, TARGET_BATCH)
    _, halves, norms_of_halves = _train(store, TARGET_BATCH // 2)
    return {
        "difference": float(np.abs(whole - halves).max()),
        "change": float(np.abs(whole - initial).max()),
        "norm_difference": float(np.abs(norms_of_halves / norms - 1).max()),
    }


def _store(folder: Path) -> TokenStore:
    """Write eight short texts and tokenize them."""
    texts = [f"{'very ' * (n % 3)}{_WORDS[4 + n % 2]}" for n in range(UPDATES * TARGET_BATCH)]
    rows = [f"{number % 2}\tThe food was {text}\n" for number, text in enumerate(texts)]
    (folder / "train.tsv").write_text("label\ttext\n" + "".join(rows), encoding="utf-8")
    tokenization = Tokenization(Vocabulary([*SPECIAL_TOKENS, *_WORDS]), 16)
    return open_store(folder / "train.tsv", _TASK, tokenization, silent)


def _train(store: TokenStore, micro_batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Train, and return the weights before and after, and the gradient norms."""
    tf_keras.utils.set_random_seed(1)
    small = EncoderConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=len(SPECIAL_TOKENS) + len(_WORDS),
        max_position_embeddings=16,
        initializer_range=0.3,  # Larger than usual, so that the gradients exceed rounding errors.
    )
    model = build_classifier(build_encoder(small, 0.0), small, 2, 0.0)
    steps = TARGET_BATCH // micro_batch
    optimizer = make_optimizer(_CONFIG, UPDATES, steps)
    update = make_update(_TASK, model, optimizer, 0, accumulate=steps > 1)
    initial, norms = _weights(model), []
    for number in range(UPDATES):
        _, rows = window_rows(number, len(store), TARGET_BATCH, _CONFIG.seed)
        norms.append(float(update(make_window(store, rows, micro_batch))["grad_norm"]))
    return initial, _weights(model), np.array(norms)


def _weights(model: tf_keras.Model) -> np.ndarray:
    return np.concatenate([w.numpy().ravel() for w in model.trainable_variables])
