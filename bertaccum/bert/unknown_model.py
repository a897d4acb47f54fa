"""Advice on names and addresses of models that no option accepts."""

from __future__ import annotations

import re
from pathlib import Path

from bertaccum.bert.checkpoint_files import OTHER_FORMAT
from bertaccum.bert.huggingface_folder import other_model
from bertaccum.bert.model_source import NO_CHECKPOINT
from bertaccum.bert.presets import closest_preset
from bertaccum.options.fields import is_address

# Names and addresses of models on the Hugging Face Hub; names may be paths as well.
_ON_HUB = re.compile(
    r"(?:(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://)?([\w-]+)/([\w.-]+)"
    r"(?:/(?:tree|blob|resolve)/.*)?/?"
)
_SAVED_MODELS = re.compile(r"https?://(?:www\.)?(?:tfhub\.dev|kaggle\.com/models)/")


def unsupported(model: str, instead: str) -> str:
    """Return what to do about the name of a model that is not a BERT."""
    return (
        f"{model} models are not supported, because their layers differ from BERT's: use {instead}"
    )


def advice(named: str) -> str:
    """Return what to do about an unknown name or address of a model."""
    if _SAVED_MODELS.match(named):
        return f"most models there are SavedModels, which cannot be read: {OTHER_FORMAT}"
    on_hub, elsewhere = _ON_HUB.fullmatch(named), is_address(named)
    name = on_hub[2] if on_hub else Path(named).name.removesuffix(".zip") if elsewhere else named
    if other := other_model(name):
        return unsupported(*other)
    is_path = named.endswith(".zip") or Path(named).parent.is_dir()
    if on_hub and (elsewhere or not is_path):
        condition = "" if elsewhere else "if this is a model on the Hugging Face Hub, "
        return f"{condition}set `init_checkpoint` to {on_hub[1]}/{name}"
    if close := closest_preset(name):
        return f"did you mean {close}? `bertaccum models` lists the names"
    if on_hub and not named.endswith(".zip"):
        return f"check the path; for a model on the Hugging Face Hub, write hf://{on_hub[1]}/{name}"
    if elsewhere:
        return "download the model, and set `init_checkpoint` to its folder or zip file"
    return (
        f"set `init_checkpoint` to a folder, a zip file, a run folder, {NO_CHECKPOINT}, a name that"
        " `bertaccum models` lists, or OWNER/NAME on the Hugging Face Hub"
    )
