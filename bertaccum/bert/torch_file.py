"""Reader of PyTorch's files of weights, such as `pytorch_model.bin`, without PyTorch.

Such a file contains a pickle, which could run any code. Here it can only call the functions that
rebuild tensors, and every number in it is checked before it is used. Source: PyTorch's
`torch/serialization.py`, for its zip files and for the format that was used before version 1.6.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from bertaccum.bert.model_source import LazyTensor
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
# Bytes in the largest pickle. That of BERT-Large has 100 KiB.
_LARGEST_PICKLE = 1 << 20
_MAX_AXES = 8
# Values in the longest name of a storage.
_LONGEST_ID = 6
_INSTRUCTIONS = (
    "PROTO FRAME STOP MARK MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET GLOBAL STACK_GLOBAL"
    " BINPERSID REDUCE BUILD NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINSTRING"
    " SHORT_BINSTRING BINUNICODE SHORT_BINUNICODE EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM"
    " SETITEMS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3"
)


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
        kinds = type(self.storage), type(self.shape), type(self.strides)
        if kinds != (_Storage, tuple, tuple):
            raise ValueError("a tensor is invalid")
        if not len(self.shape) == len(self.strides) <= _MAX_AXES:
            raise ValueError("a tensor has an invalid shape")
        _check_counts("a tensor", self.offset, *self.shape, *self.strides)
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        # Elements that overlap could make the tensor larger than the file.
        elements = math.prod(self.shape)
        if max(elements, elements and self.offset + last + 1) > self.storage.elements:
            raise ValueError("a tensor is larger than its storage")


def _check_counts(what: str, *numbers: Any) -> None:
    """Check that numbers of a pickle, which can have any type, are whole and not negative."""
    if not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
        raise ValueError(f"{what} has an invalid shape")


class _ForbiddenError(Exception):
    """A pickle names something that weights do not need."""


def open_torch_file(path: Path) -> dict[str, LazyTensor]:
    """Return the tensors of the `state_dict` in a file that `torch.save` wrote."""
    with _reading_errors(path):
        with path.open("rb") as file:
            read = _read_zip if zipfile.is_zipfile(file) else _read_older
            file.seek(0)
            state, load = read(path, file)
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            raise ValueError("it contains no state_dict")
        return {
            name: LazyTensor(
                list(view.shape), _KINDS[view.storage.kind][0], partial(_read, view, load, path)
            )
            for name, view in _views(state)
        }


def _views(state: dict[str, Any]) -> Iterator[tuple[str, _View]]:
    """Yield the tensors of a `state_dict`, or of those that it contains beside other values."""
    for name, value in state.items():
        if isinstance(value, _View):
            yield name, value
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", view) for key, view in _views(value))


@contextmanager
def _reading_errors(path: Path) -> Iterator[None]:
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
    with _reading_errors(path):
        flat = np.frombuffer(load(storage), np.dtype(code))[storage.start :]
        if len(flat) < storage.elements:
            raise ValueError("a storage is incomplete")
        strides = [stride * flat.itemsize for stride in view.strides]
        tensor = np.lib.stride_tricks.as_strided(flat[view.offset :], view.shape, strides)
    if name == "BF16":
        return (tensor.astype(np.uint32) << 16).view(np.float32)
    return tensor.astype(np.float32)


def _refuse(_: Any) -> None:
    raise ValueError("its pickle contains an instruction that weights do not need")


def _check_keys(keys: Iterable[Any]) -> None:
    """Check the keys of a dict: the hash of nested tuples can take longer than anyone waits."""
    if not all(type(key) in (str, int) for key in keys):
        raise ValueError("its pickle has a key that is not a name")


def _dict(items: Any = ()) -> dict[Any, Any]:
    """Return the dict of key and value pairs, which Python 2 pickles as a list."""
    if items and type(items) is not list:
        raise ValueError("a dict is invalid")
    result = {}
    for key, value in items:
        _check_keys([key])
        result[key] = value
    if items:
        items.clear()  # A pickle could name one long list many times.
    return result


# The arguments of these functions are named, because a pickle could pass a long tuple many times.
def _view(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any = 0, hook: Any = 0, meta: Any = 0
) -> _View:
    return _View(storage, offset, shape, strides)


def _parameter(tensor: Any, grad: Any = 0, hooks: Any = 0) -> Any:
    return tensor


# The unpickler in C would allocate memory for any memo index, and ignore signals while it hashes.
_PlainUnpickler: Any = pickle._Unpickler


class _Unpickler(_PlainUnpickler):
    """An unpickler that can rebuild tensors, and do nothing else.

    `kinds` contains the kind of each storage, by its key.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.kinds: dict[str, str] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return _dict
        if module in ("torch", "torch.storage") and name in _KINDS:
            return name
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _view
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _parameter
        raise _ForbiddenError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage:
        if type(pid) is not tuple or len(pid) > _LONGEST_ID:
            raise ValueError("a storage is invalid")
        tag, kind, key, _, elements, *view = pid
        if not all(type(text) is str for text in (tag, kind, key)):
            raise ValueError("a storage is invalid")
        start = 0
        if view and view[0] is not None:
            _, start, elements = view[0]
        _check_counts("a storage", start, elements)
        if tag != "storage" or kind not in _KINDS:
            raise ValueError("a storage is invalid")
        self.kinds[key] = kind
        return _Storage(kind, key, elements, start)

    def _set_item(self) -> None:
        _check_keys(self.stack[-2:-1])
        super().load_setitem()

    def _set_items(self) -> None:
        _check_keys(self.stack[::2])
        super().load_setitems()

    def _build(self) -> None:
        self.stack.pop()  # Weights need no attributes.

    dispatch = dict.fromkeys(range(256), _refuse) | {
        code[0]: _PlainUnpickler.dispatch[code[0]]
        for code in (getattr(pickle, name) for name in _INSTRUCTIONS.split())
    }
    dispatch |= {pickle.SETITEM[0]: _set_item, pickle.SETITEMS[0]: _set_items}
    dispatch[pickle.BUILD[0]] = _build


def _read_zip(path: Path, file: IO[bytes]) -> tuple[Any, Callable[[_Storage], bytes]]:
    with zipfile.ZipFile(file) as bundle:
        names = {entry.filename.partition("/")[2]: entry for entry in bundle.infolist()}
        if names["data.pkl"].file_size > _LARGEST_PICKLE:
            raise ValueError("its pickle is too large")
        if "byteorder" in names and _member(bundle, names["byteorder"]) != b"little":
            raise ValueError("its byte order is not little-endian")
        state = _Unpickler(io.BytesIO(_member(bundle, names["data.pkl"]))).load()
    return state, partial(_load_member, path, names)


def _member(bundle: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return a member, which PyTorch does not compress, so it is not larger than the file."""
    if entry.compress_type != zipfile.ZIP_STORED:
        raise ValueError("it is compressed, which PyTorch does not do")
    return bundle.read(entry)


def _load_member(path: Path, names: Mapping[str, zipfile.ZipInfo], storage: _Storage) -> bytes:
    entry = names[f"data/{storage.key}"]
    if entry.file_size != storage.elements * np.dtype(_KINDS[storage.kind][1]).itemsize:
        raise ValueError("a storage has another size than expected")
    with zipfile.ZipFile(path) as bundle:
        return _member(bundle, entry)


def _read_older(path: Path, file: IO[bytes]) -> tuple[Any, Callable[[_Storage], bytes]]:
    """Read the format without a zip: four pickles, the keys of the storages, and the storages."""
    head = io.BytesIO(file.read(_LARGEST_PICKLE))
    if _Unpickler(head).load() != _MAGIC_NUMBER:
        raise ValueError("it does not begin like one")
    _Unpickler(head).load()  # The version of the format, which never changed.
    if not _Unpickler(head).load()["little_endian"]:
        raise ValueError("its byte order is not little-endian")
    unpickler = _Unpickler(head)
    state, kinds = unpickler.load(), unpickler.kinds
    places, end = {}, os.fstat(file.fileno()).st_size
    keys = _Unpickler(head).load()
    _check_keys(keys)
    file.seek(head.tell())
    for key in keys:
        elements = int.from_bytes(file.read(8), "little")
        size = elements * np.dtype(_KINDS[kinds[key]][1]).itemsize
        places[key] = file.tell(), size
        if file.tell() + size > end:
            raise ValueError("a storage is incomplete")
        file.seek(size, io.SEEK_CUR)
    return state, partial(_load_place, path, places)


def _load_place(path: Path, places: Mapping[str, tuple[int, int]], storage: _Storage) -> bytes:
    offset, size = places[storage.key]
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)
