"""Names of files of weights: those that can be read, and what to do about the others."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from bertaccum.errors import InputError

# Names of the weights file in Hugging Face's format, and of the older one in PyTorch's.
WEIGHTS, TORCH_WEIGHTS = "model.safetensors", "pytorch_model.bin"
# The index of weights in several files has the name of a single file with this suffix.
INDEX_SUFFIX = ".index.json"
# Names of the weights in Hugging Face's folders, in order of precedence.
WEIGHT_FILES = tuple(
    name + suffix for name in (WEIGHTS, TORCH_WEIGHTS) for suffix in ("", INDEX_SUFFIX)
)
_SHARDS = ("model-*-of-*.safetensors", "pytorch_model-*-of-*.bin")
# Suffixes of files that can be read under the names above.
_READABLE = (".safetensors", ".bin", ".pt", ".pth")
_CONVERT = "load it with {} in transformers 4, and save it with save_pretrained"
OTHER_FORMAT = (
    "use the same model in Hugging Face's format, or in Google's, such as a name that"
    " `bertaccum models` lists"
)
MERGE = (
    "merge it into its base model with merge_and_unload() in peft, save the result and the"
    " tokenizer with save_pretrained, and pass that folder"
)
_UNPACK = "unpack it and pass the folder"
# Patterns of the names of other files, what they are, and what to do. Users choose the names that
# patterns beginning with * match, so a folder may have several of these files.
_UNREADABLE = {
    "tf_model*.h5": (
        "a model of transformers for TensorFlow",
        _CONVERT.format("from_pretrained(FOLDER, from_tf=True)"),
    ),
    "flax_model*.msgpack": (
        "a model of transformers for Flax",
        _CONVERT.format("from_pretrained(FOLDER, from_flax=True)"),
    ),
    "adapter_model.*": ("a PEFT adapter without its base model", MERGE),
    "adapter_config.json": ("the configuration of a PEFT adapter without its base model", MERGE),
    "saved_model.pb": ("a SavedModel", OTHER_FORMAT),
    "*.weights.h5": ("weights of Keras or KerasHub", OTHER_FORMAT),
    "*.h5": ("a Keras model", OTHER_FORMAT),
    "*.keras": ("a Keras model", OTHER_FORMAT),
    "*.msgpack": ("a Flax model", OTHER_FORMAT),
    "*.onnx": ("an ONNX model", OTHER_FORMAT),
    "*.tar": ("a tar archive", _UNPACK),
    "*.tar.*": ("a tar archive", _UNPACK),
    "*.tgz": ("a tar archive", _UNPACK),
    "*.npz": ("an archive of NumPy arrays", OTHER_FORMAT),
}


def means_folder(name: str) -> bool:
    """Return whether a folder has only one model with a file of this name."""
    known = (*WEIGHT_FILES, *_SHARDS, *_UNREADABLE)
    return any(fnmatchcase(name, pattern) for pattern in known if pattern[0] != "*")


def refuse_file(path: Path) -> None:
    """Raise InputError if a file contains weights instead of a zip of Google's files."""
    for pattern, (what, remedy) in _UNREADABLE.items():
        if fnmatchcase(path.name, pattern):
            raise InputError(f"is {what}, which cannot be read", remedy, path=path)
    if path.suffix in _READABLE:
        raise InputError(
            "is a file of weights, not a checkpoint",
            "pass its folder, in which config.json and vocab.txt are, and name the file"
            f" {WEIGHTS} or {TORCH_WEIGHTS} as its format requires",
            path=path,
        )


def refuse_folder(folder: Path) -> None:
    """Raise InputError if a folder has weights in a format that cannot be read."""
    for pattern, (what, remedy) in _UNREADABLE.items():
        if path := next(folder.glob(pattern), None):
            raise InputError(f"has {path.name}, {what}, which cannot be read", remedy, path=folder)
