"""Initial and trained weights that `tasks.py` exchanges with Hugging Face Trainer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from bertaccum.bert.huggingface_folder import write_description
from bertaccum.bert.model_finder import find_model
from bertaccum.bert.pretrained_weights import save_huggingface
from bertaccum.bert.tokenization import Tokenization
from bertaccum.inference.trained_model import load_trained
from bertaccum.options.commands import TrainConfig
from bertaccum.system.progress import silent
from bertaccum.tasks.forward import Tagger
from bertaccum.training.recipe import build_model

Weights = dict[str, np.ndarray]
WEIGHTS = "model.safetensors"


def write_initial(
    folder: Path, checkpoint: Path, seed: int, outputs: int, length: int, task: str
) -> None:
    """Write the weights with which `bertaccum train` begins, in the format of transformers."""
    config = TrainConfig(init_checkpoint=str(checkpoint), seed=seed, task=task)
    write_weights(folder, config, outputs, length)


def write_weights(folder: Path, config: TrainConfig, outputs: int, length: int) -> None:
    """Do so for a run with these options."""
    folder.mkdir(exist_ok=True)
    source = find_model(config, silent)
    names = [str(number) for number in range(outputs)]
    tokenization = Tokenization(source.vocabulary, length)
    write_description(folder, source.encoder, tokenization, names, 0.0, config.task)
    save_huggingface(build_model(config, source, outputs), folder, pooler=not config.tags_words)


def trained_weights(run: Path) -> Weights:
    """Return the weights in a folder of transformers, or the best of a run folder."""
    if not (run / WEIGHTS).exists():
        model = load_trained(run).model
        (run / "config.json").touch()  # `save_huggingface` copies the mode of this file.
        save_huggingface(model, run, pooler=not isinstance(model, Tagger))
    return load_file(run / WEIGHTS)


def difference(own: Weights, reference: Weights, initial: Weights) -> dict[str, float]:
    """Return how far weights are from a reference.

    Returns:
      `largest`, the largest difference between two weights, and `relative`, the norm of all
      differences divided by the norm of the reference's change from the initial weights.
    """
    apart, change = flat(own) - flat(reference), flat(reference) - flat(initial)
    norm = np.linalg.norm
    return {"largest": float(abs(apart).max()), "relative": float(norm(apart) / norm(change))}


def flat(weights: Weights) -> np.ndarray:
    return np.concatenate([weights[name].ravel().astype(np.float64) for name in sorted(weights)])
