"""The memory that this process may use, with the control groups of Linux in a temporary folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from bertaccum.system import machine

GIB = 2**30
VERSION_1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
VERSION_2 = "memory.max", "memory.current", "inactive_file"
UNLIMITED = {VERSION_1: "9223372036854771712", VERSION_2: "max"}


@pytest.fixture(autouse=True)
def own_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = SimpleNamespace(total=64 * GIB, available=32 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: values)
    monkeypatch.setattr(machine, "_MOUNT", tmp_path / "mount")
    monkeypatch.setattr(machine, "_OWN", tmp_path / "cgroup")


def write_group(folder: Path, names: tuple[str, str, str], limit: int | None, used: int) -> None:
    """Write the files of a control group, a GiB of whose memory can be freed."""
    folder.mkdir(parents=True, exist_ok=True)
    text = UNLIMITED[names] if limit is None else str(limit)
    (folder / names[0]).write_text(f"{text}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon {2 * GIB}\n{names[2]} {GIB}\n")


@pytest.mark.parametrize(
    ("own", "names", "root"),
    [
        ("0::/job/step\n", VERSION_2, "mount"),
        ("5:cpu,memory:/job/step\n4:cpuset:/\n0::/\n", VERSION_1, "mount/memory"),
    ],
)
def test_lowest_limit_of_all_groups_around_the_process_counts(
    tmp_path: Path, own: str, names: tuple[str, str, str], root: str
) -> None:
    (tmp_path / "cgroup").write_text(own)
    write_group(tmp_path / root / "job/step", names, None, 3 * GIB)
    write_group(tmp_path / root / "other", names, GIB, 0)
    assert (machine.machine_bytes(), machine.available_bytes()) == (64 * GIB, 32 * GIB)
    write_group(tmp_path / root / "job", names, 8 * GIB, 4 * GIB)
    assert (machine.machine_bytes(), machine.available_bytes()) == (8 * GIB, 5 * GIB)
    write_group(tmp_path / root / "job/step", names, 16 * GIB, 14 * GIB)
    assert (machine.machine_bytes(), machine.available_bytes()) == (8 * GIB, 3 * GIB)


@pytest.mark.parametrize(
    ("own", "names", "root"),
    [("0::/\n", VERSION_2, "mount"), ("4:memory:/docker/0123\n", VERSION_1, "mount/memory")],
)
def test_limit_of_a_container_is_at_the_mount(
    tmp_path: Path, own: str, names: tuple[str, str, str], root: str
) -> None:
    """The path of a process in a container may be that outside of the container."""
    assert (machine.machine_bytes(), machine.available_bytes()) == (64 * GIB, 32 * GIB)
    (tmp_path / "cgroup").write_text(own)
    write_group(tmp_path / root, names, 4 * GIB, 3 * GIB)
    assert (machine.machine_bytes(), machine.available_bytes()) == (4 * GIB, 2 * GIB)
