"""PyTorch's files of weights are read without PyTorch, and cannot run code."""

from __future__ import annotations

import collections
import os
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
from torch_writer import write_torch

from bertaccum.bert.torch_file import open_torch_file
from bertaccum.errors import InputError

MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)
TENSORS = {
    "matrix": MATRIX,
    "turned": np.asfortranarray(MATRIX + 1),
    "half": np.linspace(-1, 1, 5, dtype=np.float16),
    "number": np.array([7]),
}


@pytest.mark.parametrize("older", [False, True])
def test_tensors_are_read_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    write_torch(tmp_path / "w.bin", TENSORS, monkeypatch, older)
    held = open_torch_file(tmp_path / "w.bin")
    assert {name: tensor.dtype for name, tensor in held.items()} == {
        **{"matrix": "F32", "turned": "F32"},
        **{"half": "F16", "number": "I64"},
    }
    for name, expected in TENSORS.items():
        assert held[name].shape == list(expected.shape)
        np.testing.assert_array_equal(held[name].read(), expected)


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("older", [False, True])
def test_other_functions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    hostile = tmp_path / "hostile"
    write_torch(tmp_path / "w.bin", TENSORS | {"x": Touch(hostile)}, monkeypatch, older)
    with pytest.raises(InputError, match=r"w.bin: is not loaded, .* uses (posix|nt)\.mkdir"):
        open_torch_file(tmp_path / "w.bin")
    assert not hostile.exists()


@pytest.mark.parametrize("older", [False, True])
def test_damaged_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    path = tmp_path / "w.bin"
    write_torch(path, TENSORS, monkeypatch, older)
    whole = path.read_bytes()
    # Every byte matters, except those that describe a zip member in ways that are not used.
    spots = [n for n in range(0, len(whole), 7)]
    outcomes = collections.Counter()
    for spot in spots:
        for damaged in (
            whole[:spot],
            whole[:spot] + bytes([whole[spot] ^ 0x55]) + whole[spot + 1 :],
        ):
            path.write_bytes(damaged)
            try:
                for tensor in open_torch_file(path).values():
                    if np.prod(tensor.shape) <= 12:
                        tensor.read()
                outcomes["read"] += 1
            except InputError:
                outcomes["refused"] += 1
    assert outcomes["refused"] > len(spots)


def test_file_that_is_not_of_torch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "w.bin"
    for contents in (b"", b"version https://git-lfs.github.com/spec/v1\n", b"\x80\x02K\x01."):
        path.write_bytes(contents)
        with pytest.raises(InputError, match="is not a readable file of PyTorch weights"):
            open_torch_file(path)
    with pytest.raises(InputError, match="No such file"):
        open_torch_file(tmp_path / "absent.bin")
    write_torch(path, TENSORS, monkeypatch)
    with zipfile.ZipFile(path) as bundle:
        members = {entry.filename: bundle.read(entry) for entry in bundle.infolist()}
    with zipfile.ZipFile(path, "w") as bundle:
        for name, content in members.items():
            bundle.writestr(name, content[:-4] if name == "archive/data/0" else content)
    with pytest.raises(InputError, match="a storage has another size than expected"):
        open_torch_file(path)["matrix"].read()


TORCH = """
import sys, numpy, torch
from torch import nn
torch.manual_seed(0)
wide = torch.randn(6, 8)
state = {
    "contiguous": wide, "tied": wide, "rows": wide[2:4], "columns": wide[:, 1:7:2],
    "turned": wide.T,
    "half": wide.half(), "bfloat16": wide.bfloat16(), "double": wide.double(),
    "scalar": wide[0, 0],
    "parameter": nn.Parameter(wide + 1), "empty": torch.zeros(0, 3), "long": torch.arange(5),
}
for name, new in (("new.bin", True), ("old.bin", False)):
    torch.save(state, sys.argv[1] + "/" + name, _use_new_zipfile_serialization=new)
expected = {name: tensor.detach().float().numpy() for name, tensor in state.items()}
numpy.savez(sys.argv[1] + "/expected.npz", **expected)
"""


@pytest.mark.slow
def test_files_of_torch_are_read_bit_for_bit(tmp_path: Path, transformers_python: Path) -> None:
    subprocess.run([transformers_python, "-c", TORCH, tmp_path], check=True)
    expected = np.load(tmp_path / "expected.npz")
    for name in ("new.bin", "old.bin"):
        held = open_torch_file(tmp_path / name)
        assert held.keys() == set(expected.files)
        for key, tensor in held.items():
            assert tensor.shape == list(expected[key].shape)
            np.testing.assert_array_equal(tensor.read(), expected[key])
