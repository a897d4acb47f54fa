"""Files of checkpoints: the paths by which users name them, and weights that cannot be read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import filter as matching
from fnmatch import fnmatchcase
from pathlib import Path

from bertaccum.bert.model_source import NO_CHECKPOINT, RUN_PREFIX
from bertaccum.bert.presets import PRESETS, preset_name
from bertaccum.errors import InputError
from bertaccum.system.phrases import listed

# Names of the weights file in Hugging Face's format, and of the older one in PyTorch's.
WEIGHTS, TORCH_WEIGHTS = "model.safetensors", "pytorch_model.bin"
# The index of weights in several files has the name of a single file with this suffix.
INDEX_SUFFIX = ".index.json"
# Names of the weights in Hugging Face's folders, in order of precedence.
WEIGHT_FILES = tuple(
    name + suffix for name in (WEIGHTS, TORCH_WEIGHTS) for suffix in ("", INDEX_SUFFIX)
)
SHARDS = ("model-*-of-*.safetensors", "pytorch_model-*-of-*.bin")
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
    "*.gguf": ("a GGUF model", OTHER_FORMAT),
    "*.tar": ("a tar archive", _UNPACK),
    "*.tar.*": ("a tar archive", _UNPACK),
    "*.tgz": ("a tar archive", _UNPACK),
    "*.npz": ("an archive of NumPy arrays", OTHER_FORMAT),
}


def weights_in(folder: Path) -> str | None:
    """Return the name of a folder's weights in Hugging Face's format, or of their index."""
    return next((name for name in WEIGHT_FILES if (folder / name).is_file()), None)


def means_folder(name: str) -> bool:
    """Return whether a folder has only one model with a file of this name."""
    known = (*WEIGHT_FILES, *SHARDS, *_UNREADABLE)
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
    refuse_names([path.name for path in folder.iterdir()], folder)


def refuse_names(names: Iterable[str], where: str | Path) -> None:
    """Raise InputError if one of the names of files is that of weights that cannot be read."""
    for pattern, (what, remedy) in _UNREADABLE.items():
        if found := matching(names, pattern):
            raise InputError(f"has {found[0]}, {what}, which cannot be read", remedy, path=where)


def models_inside(folder: Path) -> list[Path]:
    """Return the folders in a folder and in its folders that have weights, shorter names first."""
    # Trainer of transformers names them checkpoint-500 and checkpoint-1000.
    names = (*WEIGHT_FILES, "*.index")
    paths = (path for name in names for at in ("*", "*/*") for path in folder.glob(f"{at}/{name}"))
    return sorted({path.parent for path in paths}, key=lambda path: (len(path.name), path.name))


# Prefix of the weight files in Google's releases.
RELEASED_PREFIX = "bert_model.ckpt"
# TensorFlow adds these suffixes to the prefix of a checkpoint's files.
_SUFFIX = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})")
# A folder has only one of each of these files, so the path of such a file means the folder.
_IN_FOLDER = re.compile(
    r"(bert_)?config\.json|vocab\.txt|tokenizer(_config)?\.json|checkpoint|config\.yaml"
)
_LATEST = re.compile(r'^\s*model_checkpoint_path:\s*"(?:.*[/\\])?([^"/\\]+)"', re.MULTILINE)


def _refuse_unread(path: Path) -> None:
    """Raise InputError if a file contains weights, but other weights of its folder are read."""
    wanted, read = path.name, weights_in(path.parent)
    for name, parts in zip((WEIGHTS, TORCH_WEIGHTS), SHARDS, strict=True):
        if fnmatchcase(path.name, parts):  # The index lists the parts.
            wanted = name + INDEX_SUFFIX
    if wanted in WEIGHT_FILES and read not in (wanted, None):
        raise InputError(
            f"is not read, because {read} is in the same folder",
            f"pass a folder with the same files, but without {read}",
            path=path,
        )


def plain_path(named: str) -> str:
    """Return the folder, the prefix of files or the run that a path means, else the path.

    Raises:
      InputError: The path is that of weights that are not read, because the folder has others.
    """
    path = Path(named)
    if path.is_file() or not path.exists():
        prefix = path.with_name(_SUFFIX.sub("", path.name)) if path.name else path
        if prefix != path and Path(f"{prefix}.index").is_file():
            path = prefix
        elif path.is_file() and (_IN_FOLDER.fullmatch(path.name) or means_folder(path.name)):
            _refuse_unread(path)
            path = path.parent
    folder = path if path.is_dir() else path.parent
    # Other programs have folders `best` and files `config.yaml` as well.
    is_of_run = (folder / f"{RUN_PREFIX}.index").is_file() and is_run(folder.parent)
    if re.fullmatch(r"best|\.best-old", folder.name) and is_of_run:
        return str(folder.parent)
    return named if path == Path(named) else str(path)


def checkpoint_home(named: str) -> str:
    """Return a checkpoint's folder, given the folder or the prefix of the checkpoint's files."""
    return str(Path(named).parent) if is_prefix(named) else named


def absolute_path(named: str) -> str:
    """Return the absolute path of a file; names of presets or of missing files are unchanged."""
    home = checkpoint_home(named)
    if named in PRESETS or not Path(home).exists():
        return preset_name(named)
    resolved = Path(home).resolve()
    return str(resolved if home == named else resolved / Path(named).name)


def lasting_name(named: str) -> str:
    """Return a name that means the same checkpoint in any folder, and after a link has moved."""
    # A file or folder may have the name that means random weights.
    return named if named == NO_CHECKPOINT else absolute_path(plain_path(named))


def is_prefix(named: str) -> bool:
    """Return whether a name is the prefix of a checkpoint's files, as in TensorFlow."""
    return not Path(named).exists() and (
        Path(named).name == RELEASED_PREFIX or Path(f"{named}.index").is_file()
    )


def is_run(folder: Path) -> bool:
    """Return whether `bertaccum train` created a folder."""
    # Other programs may leave a config.yaml beside a model that they saved.
    others = ("config.json", "bert_config.json", "adapter_config.json")
    is_model = any((folder / name).is_file() for name in others)
    return (folder / "config.yaml").is_file() and not is_model


def prefix_in(folder: Path) -> str:
    """Return the prefix of the checkpoint in a folder: TensorFlow's latest one, else the only one.

    Raises:
      InputError: The folder has several checkpoints.
    """
    state = folder / "checkpoint"
    text = state.read_bytes().decode("utf-8", "replace") if state.is_file() else ""
    prefixes = sorted(path.name.removesuffix(".index") for path in folder.glob("*.index"))
    latest = _LATEST.search(text)
    if RELEASED_PREFIX in prefixes or not prefixes:
        return RELEASED_PREFIX
    if latest and latest[1] in prefixes:
        return latest[1]
    if len(prefixes) > 1:
        raise InputError(
            f"has the checkpoints {listed(prefixes)}",
            f"pass the prefix of one of them, such as {folder / prefixes[-1]}",
            path=folder,
        )
    return prefixes[0]
