"""Writer of PyTorch's files without PyTorch: its zip files, and its format before version 1.6."""

from __future__ import annotations

import collections
import io
import pickle
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

KINDS = {
    "float64": "DoubleStorage",
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "int64": "LongStorage",
}


class _Storage:
    def __init__(self, key: str, tensor: np.ndarray) -> None:
        self.key, self.tensor = key, tensor


class _Tensor:
    def __init__(self, storage: _Storage, wrong: dict[str, Any]) -> None:
        self.storage, self.wrong = storage, wrong

    def __reduce__(self) -> Any:
        tensor = self.storage.tensor
        strides = tuple(stride // tensor.itemsize for stride in tensor.strides)
        rebuild = sys.modules["torch._utils"]._rebuild_tensor_v2
        right = {"storage": self.storage, "offset": 0, "shape": tensor.shape, "strides": strides}
        values = [self.wrong.get(name, value) for name, value in right.items()]
        arguments = (*values, False, collections.OrderedDict())
        return rebuild, arguments, self.wrong.get("attributes")


def write_torch(
    path: Path,
    tensors: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    older: bool = False,
    within: str | None = None,
    **wrong: Any,
) -> None:
    """Write a dict as `torch.save` does; values that are not arrays are pickled as they are.

    Args:
      path: File to write.
      tensors: The dict.
      monkeypatch: Pytest's fixture.
      older: Whether to use the format without a zip.
      within: Keys, joined by dots, of dicts that also contain other values; None for no other.
      **wrong: Values that replace the right ones in every tensor: `storage`, `offset`, `shape`,
        `strides`, `attributes`, and of its storage the `key`, `elements` and `view`.
    """
    torch, utilities = types.ModuleType("torch"), types.ModuleType("torch._utils")

    def _rebuild_tensor_v2() -> None:
        """Stand in for PyTorch's function, which the pickle names."""

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = (
        "torch._utils",
        "_rebuild_tensor_v2",
    )
    utilities._rebuild_tensor_v2 = _rebuild_tensor_v2
    for name in KINDS.values():
        setattr(torch, name, type(name, (), {"__module__": "torch"}))
    arrays = {name: t for name, t in tensors.items() if isinstance(t, np.ndarray)}
    storages = {name: _Storage(str(n), t) for n, (name, t) in enumerate(arrays.items())}
    state = collections.OrderedDict(tensors)
    state |= {name: _Tensor(storage, wrong) for name, storage in storages.items()}

    class Pickler(pickle.Pickler):
        def persistent_id(self, what: object) -> Any:
            if not isinstance(what, _Storage):
                return None
            kind = getattr(torch, KINDS[what.tensor.dtype.name])
            view = (wrong.get("view"),) if older or "view" in wrong else ()
            key, size = wrong.get("key", what.key), wrong.get("elements", what.tensor.size)
            return ("storage", kind, key, "cpu", size, *view)

    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", torch)
        patch.setitem(sys.modules, "torch._utils", utilities)
        pickled = io.BytesIO()
        other = {"epoch": 3, "optimizer": {"state": {0: {"step": 2.5}}, "param_groups": [True]}}
        for key in reversed(within.split(".") if within else []):
            state = other | {key: state}
        Pickler(pickled, protocol=2).dump(state)
    if older:
        head = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})
        parts = [pickle.dumps(part, protocol=2) for part in head]
        parts += [pickled.getvalue(), pickle.dumps([s.key for s in storages.values()], protocol=2)]
        for tensor in arrays.values():
            parts += [tensor.size.to_bytes(8, "little"), tensor.tobytes("A")]
        path.write_bytes(b"".join(parts))
        return
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.writestr("archive/data.pkl", pickled.getvalue())
        bundle.writestr("archive/byteorder", "little")
        for storage in storages.values():
            bundle.writestr(f"archive/data/{storage.key}", storage.tensor.tobytes("A"))
