"""Reader of PyTorch's files of weights, such as `pytorch_model.bin`, without PyTorch.

Such a file contains a pickle, which could run any code. Here it can only call the functions that
rebuild tensors. Source: PyTorch's `torch/serialization.py`, for its zip files and for the format
that was used before version 1.6. This module does not import TensorFlow.
"""

from __future__ import annotations

import collections
import io
import math
import pickle
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from bertaccum.bert.held_tensor import HeldTensor
from bertaccum.errors import InputError

# Each kind of storage, with its type as safetensors names it and that of its elements.
_KINDS = {
    "DoubleStorage": ("F64", "<f8"),
    "FloatStorage": ("F32", "<f4"),
    "HalfStorage": ("F16", "<f2"),
    # NumPy has no bfloat16; its bits are the upper half of a float32.
    "BFloat16Storage": ("BF16", "<u2"),
    "LongStorage": ("I64", "<i8"),
    "IntStorage": ("I32", "<i4"),
    "ShortStorage": ("I16", "<i2"),
    "CharStorage": ("I8", "i1"),
    "ByteStorage": ("U8", "u1"),
    "BoolStorage": ("BOOL", "?"),
}
_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
# The pickle of BERT-Large has 100 KiB; a hostile zip could unpack to far more than fits in memory.
_LARGEST_PICKLE = 1 << 26


@dataclass(frozen=True)
class _Storage:
    """An array of elements in the file, from `start` on."""

    kind: str
    key: str
    elements: int
    start: int


@dataclass(frozen=True)
class _View:
    """A tensor's place in a storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        numbers = (self.offset, *self.shape, *self.strides)
        if not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError("a tensor has an invalid shape")
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        if math.prod(self.shape) and self.offset + last >= self.storage.elements:
            raise ValueError("a tensor is larger than its storage")


class _ForbiddenError(Exception):
    """A pickle names something that weights do not need."""


def open_torch_file(path: Path) -> dict[str, HeldTensor]:
    """Return the tensors of the `state_dict` in a file that `torch.save` wrote.

    Raises:
      InputError: The file cannot be read, contains no `state_dict`, or uses a function that does
        not rebuild tensors.
    """
    with _readable(path):
        with path.open("rb") as file:
            read = _read_zip if zipfile.is_zipfile(file) else _read_older
            file.seek(0)
            state, load = read(path, file)
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            raise ValueError("it contains no state_dict")
        return {
            name: HeldTensor(
                list(view.shape), _KINDS[view.storage.kind][0], partial(_read, view, load, path)
            )
            for name, view in state.items()
            if isinstance(view, _View)
        }


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn the exceptions of a hostile or damaged file into InputError."""
    try:
        yield
    except _ForbiddenError as error:
        raise InputError(
            f"is not loaded, because its pickle uses {error}, which weights do not need",
            "use a model.safetensors, or another source of the model",
            path=path,
        ) from None
    except Exception as error:  # A damaged pickle or zip file raises almost any exception.
        why = str(error) or type(error).__name__
        raise InputError(
            f"is not a readable file of PyTorch weights ({why})", "download it again", path=path
        ) from None


def _read(view: _View, load: Callable[[_Storage], bytes], path: Path) -> np.ndarray:
    """Return a tensor as float32."""
    storage = view.storage
    name, code = _KINDS[storage.kind]
    with _readable(path):
        flat = np.frombuffer(load(storage), np.dtype(code))[storage.start :]
        if len(flat) < storage.elements:
            raise ValueError("a storage is incomplete")
    strides = [stride * flat.itemsize for stride in view.strides]
    tensor = np.lib.stride_tricks.as_strided(flat[view.offset :], view.shape, strides)
    if name == "BF16":
        return (tensor.astype(np.uint32) << 16).view(np.float32)
    return tensor.astype(np.float32)


class _Unpickler(pickle.Unpickler):
    """An unpickler that can rebuild tensors, and do nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module in ("torch", "torch.storage") and name in _KINDS:
            return name
        # New functions each time: a pickle can set attributes of what it is given.
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, shape, strides, *_: _View(
                storage, offset, tuple(shape), tuple(strides)
            )
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda tensor, *_: tensor
        raise _ForbiddenError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage:
        tag, kind, key, _, elements, *view = pid
        if tag != "storage" or kind not in _KINDS or type(elements) is not int:
            raise ValueError("a storage is invalid")
        start = 0
        if view and view[0] is not None:
            _, start, elements = view[0]
        if start < 0:
            raise ValueError("a storage is invalid")
        return _Storage(kind, str(key), elements, start)


def _read_zip(path: Path, file: IO[bytes]) -> tuple[Any, Callable[[_Storage], bytes]]:
    with zipfile.ZipFile(file) as bundle:
        names = {entry.filename.partition("/")[2]: entry for entry in bundle.infolist()}
        if names["data.pkl"].file_size > _LARGEST_PICKLE:
            raise ValueError("its pickle is too large")
        if "byteorder" in names and bundle.read(names["byteorder"]) != b"little":
            raise ValueError("its byte order is not little-endian")
        state = _Unpickler(io.BytesIO(bundle.read(names["data.pkl"]))).load()
    return state, partial(_load_member, path, names)


def _load_member(path: Path, names: Mapping[str, zipfile.ZipInfo], storage: _Storage) -> bytes:
    entry = names[f"data/{storage.key}"]
    if entry.file_size != storage.elements * np.dtype(_KINDS[storage.kind][1]).itemsize:
        raise ValueError("a storage has another size than expected")
    with zipfile.ZipFile(path) as bundle:
        return bundle.read(entry)


def _read_older(path: Path, file: IO[bytes]) -> tuple[Any, Callable[[_Storage], bytes]]:
    """Read the format without a zip: four pickles, the keys of the storages, and the storages."""
    if _Unpickler(file).load() != _MAGIC_NUMBER:
        raise ValueError("it does not begin like one")
    _Unpickler(file).load()  # The version of the format, which never changed.
    if not _Unpickler(file).load()["little_endian"]:
        raise ValueError("its byte order is not little-endian")
    unpickler = _Unpickler(file)
    state = unpickler.load()
    views = [view for view in state.values() if isinstance(view, _View)]
    kinds = {view.storage.key: view.storage.kind for view in views}
    places = {}
    for key in map(str, _Unpickler(file).load()):
        elements = int.from_bytes(file.read(8), "little")
        size = elements * np.dtype(_KINDS[kinds[key]][1]).itemsize
        places[key] = file.tell(), size
        file.seek(size, io.SEEK_CUR)
    return state, partial(_load_place, path, places)


def _load_place(path: Path, places: Mapping[str, tuple[int, int]], storage: _Storage) -> bytes:
    offset, size = places[storage.key]
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)
