"""Writing of low-rank adapters in peft's format, which `peft_folder` reads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tf_keras

from bertaccum.bert.adapters import Adaptation, adapters
from bertaccum.bert.encoder import POOLER
from bertaccum.bert.huggingface_folder import tensor_name
from bertaccum.bert.model_source import HEAD_LAYER
from bertaccum.bert.peft_folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS, PREFIX
from bertaccum.bert.pretrained_weights import named_arrays, weight_name
from bertaccum.bert.tensor_files import safetensors
from bertaccum.errors import reason
from bertaccum.system.atomic import write_text
from bertaccum.system.files import json_text


def save_adapter(
    model: tf_keras.Model,
    folder: Path,
    how: Adaptation,
    base: dict[str, str | None],
    head: tuple[float, float],
    pooler: bool = True,
) -> None:
    """Write the adapters of a classifier, its pooler and its head.

    Args:
      how: How the encoder is adapted.
      base: Name or path of the base model in transformers, and its revision.
      head: Factor and offset of the logits.
      pooler: Whether the model has a pooler; a model of tags has none.
    """
    encoder, tensors, modules = model.checkpoint_items["encoder"], {}, list[str]()
    model_type = encoder.config.model_type
    for layer in adapters(encoder):
        name = tensor_name(weight_name(layer.kernel), model_type, pooler).removesuffix(".weight")
        modules.append(name)
        assert layer.adapter is not None
        for one, weight in (("A", layer.adapter.lora_a), ("B", layer.adapter.lora_b)):
            tensors[f"{PREFIX}{name}.lora_{one}.weight"] = weight.numpy().T
    trained = (HEAD_LAYER, POOLER) if pooler else (HEAD_LAYER,)
    for name, flat, kernel in named_arrays(model, *head, pooler):
        if name.startswith(trained):
            theirs = tensor_name(name, model_type, pooler)
            tensors[PREFIX + theirs] = flat.T if kernel else flat
    saved = {key.removeprefix(PREFIX) for key in tensors if ".lora_" not in key}
    values: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if pooler else "TOKEN_CLS",
        **base,
        "r": how.rank,
        "lora_alpha": how.alpha,
        "lora_dropout": how.dropout,
        "target_modules": modules,
        "modules_to_save": sorted({_module(name, model_type) for name in saved}),
        "bias": "none",
        "inference_mode": True,
    }
    write_text(folder / ADAPTER_CONFIG, json_text(values))
    path = folder / ADAPTER_WEIGHTS
    whole = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    try:
        safetensors().numpy.save_file(whole, path, metadata={"format": "pt"})
    except safetensors().SafetensorError as error:
        raise OSError(reason(error)) from None
    # safetensors makes the file readable by its owner only, unlike the other files.
    shutil.copymode(folder / ADAPTER_CONFIG, path)


def _module(name: str, model_type: str) -> str:
    """Return the module of the pooler or of the head to which a weight belongs."""
    return name.removeprefix(f"{model_type}.").partition(".")[0]
