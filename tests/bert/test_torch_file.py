"""PyTorch's files of weights are read without PyTorch, and cannot run code."""

from __future__ import annotations

import collections
import os
import subprocess
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-3, 20) | st.floats() | st.text(),
    lambda values: st.lists(values, max_size=3) | st.lists(values, max_size=3).map(tuple),
    max_leaves=4,
)
WRONG = st.fixed_dictionaries(
    {},
    optional={
        "storage": VALUES,
        "offset": VALUES,
        "shape": VALUES | st.tuples(VALUES, VALUES),
        "strides": VALUES | st.tuples(VALUES, VALUES),
        "key": VALUES,
        "elements": VALUES,
        "view": VALUES | st.tuples(VALUES, VALUES, VALUES),
    },
)
# Each kind of value where a number belongs, alone and in a shape of two axes.
KINDS = [None, True, -1, 2**63, 2**80, 1.0, float("nan"), float("inf"), "1", b"1", (), [1], {}]
EXAMPLES = [{name: value} for name in ("storage", "offset", "elements") for value in KINDS]
EXAMPLES += [{name: (value, 4)} for name in ("shape", "strides") for value in KINDS]
EXAMPLES += [{"view": ("v", value, 12)} for value in KINDS]
EXAMPLES += [{"view": ("v", 0, value), "shape": (2, 2**20)} for value in KINDS]
EXAMPLES += [{"key": value} for value in KINDS if value != "1"]
# A tensor with overlapping elements that would have 8 GiB.
EXAMPLES += [{"shape": (2**31, 1), "strides": (0, 1)}, {"shape": (1,) * 99, "strides": (0,) * 99}]


def read_torch(path: Path) -> np.ndarray | None:
    """Return the tensor in a file, or None if the file is refused."""
    try:
        return open_torch_file(path)["matrix"].read()
    except InputError:
        return None


@pytest.mark.parametrize("older", [False, True])
def test_numbers_of_every_type_read_only_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    for wrong in EXAMPLES:
        write_torch(tmp_path / "w.bin", {"matrix": MATRIX}, monkeypatch, older, **wrong)
        assert read_torch(tmp_path / "w.bin") is None, wrong

    @settings(max_examples=60, database=None, derandomize=True)
    @given(WRONG)
    def test(wrong: dict[str, Any]) -> None:
        write_torch(tmp_path / "w.bin", {"matrix": MATRIX}, monkeypatch, older, **wrong)
        found = read_torch(tmp_path / "w.bin")
        assert found is None or set(found.ravel().tolist()) <= set(MATRIX.ravel().tolist())

    test()


@pytest.mark.parametrize("older", [False, True])
def test_pickle_cannot_change_a_checked_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    moved = {"offset": 3, "shape": (3, 3)}
    write_torch(tmp_path / "w.bin", {"matrix": MATRIX}, monkeypatch, older, attributes=moved)
    np.testing.assert_array_equal(read_torch(tmp_path / "w.bin"), MATRIX)

    class Storage(collections.OrderedDict):
        def __reduce__(self) -> object:
            values = {"kind": "FloatStorage", "key": "0", "elements": 10**9, "start": 0}
            return collections.OrderedDict, (), values

    write_torch(tmp_path / "w.bin", {"matrix": MATRIX}, monkeypatch, older, storage=Storage())
    with pytest.raises(InputError, match="a tensor is invalid"):
        open_torch_file(tmp_path / "w.bin")


def write_pickle(path: Path, pickled: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as bundle:
        bundle.writestr("archive/data.pkl", pickled)


def test_small_pickle_takes_little_time_and_memory(tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    # Each of 64 tuples contains the one before twice, so that a hash takes 2**64 steps.
    doubled = b"\x80\x02})" + b"q\x00h\x00\x86" * 64
    write_pickle(path, doubled + b"Ns.")
    with pytest.raises(InputError, match="its pickle has a key that is not a name"):
        open_torch_file(path)
    write_pickle(path, doubled.replace(b"})", b"}()", 1) + b"Nu.")
    with pytest.raises(InputError, match="its pickle has a key that is not a name"):
        open_torch_file(path)
    for other in (b"\x80\x02(K\x01\x91.", b"\x80\x02N2.", b"\x80\x02\x82\x01."):
        write_pickle(path, other)
        with pytest.raises(InputError, match="contains an instruction that weights do not need"):
            open_torch_file(path)
    # One long tuple that is passed to a function many times.
    many, tuples = 2000, b"(" + b"K\x01" * 2000 + b"tq\x00"
    pairs = b"X\x01\0\0\0aK\x01\x86q\x01(" + b"h\x01" * many + b"tq\x00"
    ordered = b"ccollections\nOrderedDict\nq\x02" + b"h\x02h\x00\x85R" * many
    write_pickle(path, b"\x80\x02](" + pairs + ordered + b"e.")
    with pytest.raises(InputError, match="a dict is invalid"):
        open_torch_file(path)
    ids = b"U\x07storageU\x0cFloatStorageU\x010NK\x01"
    write_pickle(
        path, b"\x80\x02](" + tuples.replace(b"(", b"(" + ids, 1) + b"h\x00Q" * many + b"e."
    )
    with pytest.raises(InputError, match="a storage is invalid"):
        open_torch_file(path)
    for name in (b"_rebuild_parameter", b"_rebuild_tensor_v2"):
        call = b"ctorch._utils\n%s\nq\x02" % name + b"h\x02h\x00R" * many
        write_pickle(path, b"\x80\x02](" + tuples + call + b"e.")
        with pytest.raises(InputError, match="positional arguments but 2000 were given"):
            open_torch_file(path)
    # An index of the memo for which pickle's own unpickler allocates 64 MiB.
    write_pickle(path, b"\x80\x02}r" + (2**22).to_bytes(4, "little") + b".")
    tracemalloc.start()
    assert open_torch_file(path) == {}
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


def test_compressed_member_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.bin"
    write_pickle(path, b"\x80\x02}.", zipfile.ZIP_DEFLATED)
    with pytest.raises(InputError, match="it is compressed, which PyTorch does not do"):
        open_torch_file(path)
    write_torch(path, {"matrix": MATRIX}, monkeypatch)
    with zipfile.ZipFile(path) as bundle:
        members = {entry.filename: bundle.read(entry) for entry in bundle.infolist()}
    for packed in ("archive/byteorder", "archive/data/0"):
        with zipfile.ZipFile(path, "w") as bundle:
            for name, content in members.items():
                kind = zipfile.ZIP_DEFLATED if name == packed else zipfile.ZIP_STORED
                bundle.writestr(name, content, kind)
        with pytest.raises(InputError, match="it is compressed, which PyTorch does not do"):
            open_torch_file(path)["matrix"].read()


def test_dict_that_python_2_pickled_is_read(tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    write_pickle(path, b"\x80\x02ccollections\nOrderedDict\n](](U\x01aK\x07ee\x85R.")
    assert open_torch_file(path) == {}


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
