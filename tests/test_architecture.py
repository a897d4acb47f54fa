"""Rules for imports: no cycles, and no heavy module when the command line starts."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Rooms that any other module may import. They import only small packages and each other.
LOWEST = {"bertaccum.errors", "bertaccum.options", "bertaccum.system", "bertaccum.version"}
SMALL = ("huggingface_hub", "platformdirs", "psutil", "tqdm", "yaml")
# The rooms that each room may import, besides itself, LOWEST and `_tf_compat`. The order of the
# rooms is the direction of the imports.
MAY_IMPORT: dict[str, set[str]] = {
    "bertaccum.accumulation": set(),
    "bertaccum.keras3": {"bertaccum.accumulation"},
    "bertaccum.distribution": set(),
    "data_prep.tables": set(),
    "data_prep.labels": {"data_prep.tables"},
    "data_prep.sources": {"data_prep.tables"},
    "data_prep": {"data_prep.labels", "data_prep.sources", "data_prep.tables"},
    "bertaccum.runs": set(),
    "bertaccum.bert": {"bertaccum.accumulation"},
    "bertaccum.tasks": {"bertaccum.bert", "data_prep.labels", "data_prep.tables"},
    "bertaccum.data": {"bertaccum.bert", "bertaccum.tasks", "data_prep.tables"},
    "bertaccum.reporting": {"bertaccum.data", "bertaccum.runs"},
    "bertaccum.planning": {
        *("bertaccum.bert", "bertaccum.data", "bertaccum.distribution", "bertaccum.reporting"),
        "bertaccum.tasks",
    },
    "bertaccum.inference": {
        *("bertaccum.bert", "bertaccum.data", "bertaccum.distribution", "bertaccum.reporting"),
        *("bertaccum.runs", "bertaccum.tasks", "data_prep.tables"),
    },
    "bertaccum.training": {
        *("bertaccum.accumulation", "bertaccum.bert", "bertaccum.data", "bertaccum.distribution"),
        *("bertaccum.inference", "bertaccum.planning", "bertaccum.reporting", "bertaccum.runs"),
        *("bertaccum.tasks", "data_prep.tables"),
    },
    "bertaccum.serving": {
        *("bertaccum.inference", "bertaccum.reporting", "bertaccum.tasks", "data_prep.tables")
    },
    "bertaccum.inspection": {
        *("bertaccum.bert", "bertaccum.data", "bertaccum.tasks", "bertaccum.training")
    },
    "bertaccum.api": {
        *("bertaccum.bert", "bertaccum.inference", "bertaccum.inspection", "bertaccum.planning"),
        *("bertaccum.reporting", "bertaccum.runs", "bertaccum.serving", "bertaccum.training"),
        *("data_prep", "data_prep.tables"),
    },
    "bertaccum.cli": {
        *("bertaccum.api", "bertaccum.distribution", "bertaccum.inference"),
        *("bertaccum.inspection", "bertaccum.planning", "bertaccum.reporting", "bertaccum.runs"),
        *("bertaccum.training", "data_prep", "data_prep.tables"),
    },
}
PYTHON = ("bertaccum", "data_prep", "examples")


@functools.cache
def imports(path: Path) -> set[str]:
    """Return the modules that a file imports, including lazy and type-checking imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def modules() -> dict[str, Path]:
    """Return the files of our packages, by the dotted name of the module."""
    files = [file for part in ("bertaccum", "data_prep") for file in ROOT.glob(f"{part}/**/*.py")]
    names = (file.relative_to(ROOT).with_suffix("").parts for file in files)
    dotted = [".".join(parts).removesuffix(".__init__") for parts in names]
    return dict(zip(dotted, files, strict=True))


@functools.cache
def import_graph() -> dict[str, set[str]]:
    """Return the imports among our modules, by the name of the importing module."""
    known = modules()
    graph = {}
    for name, file in known.items():
        used = imports(file) & known.keys() - {name}
        # `from package import module` depends on the module, not on the package's __init__.py.
        graph[name] = {m for m in used if not any(other.startswith(f"{m}.") for other in used)}
    return graph


def room_of(module: str) -> str:
    """Return the innermost room that contains a module, or the module itself."""
    rooms = [room for room in (*MAY_IMPORT, *LOWEST) if f"{module}.".startswith(f"{room}.")]
    return max(rooms, key=len, default=module)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_room_imports_only_allowed_rooms(room: str) -> None:
    own = {name: used for name, used in import_graph().items() if room_of(name) == room}
    assert own
    for name, used in own.items():
        allowed = MAY_IMPORT[room] | LOWEST | {room, "bertaccum._tf_compat"}
        assert {room_of(module) for module in used} <= allowed, name


def test_rooms_and_modules_have_no_import_cycle() -> None:
    for graph in (MAY_IMPORT, import_graph()):
        graphlib.TopologicalSorter(graph).prepare()  # Raises CycleError.


def test_only_these_modules_are_in_no_room() -> None:
    loose = {name for name in modules() if room_of(name) == name} - {*MAY_IMPORT, *LOWEST}
    assert loose == {"bertaccum", "bertaccum.__main__", "bertaccum._tf_compat"}


def test_lowest_rooms_need_no_tensorflow() -> None:
    for module in (name for name in modules() if room_of(name) in LOWEST):
        for name in imports(modules()[module]):
            known = name.split(".")[0] in {*sys.stdlib_module_names, *SMALL}
            assert known or room_of(name) in LOWEST, (module, name)


def test_examples_import_only_the_accumulation_package() -> None:
    used = {name for file in ROOT.glob("examples/*.py") for name in imports(file)}
    ours = {name for name in used if name.split(".")[0] in ("bertaccum", "data_prep")}
    assert ours and all(name.startswith("bertaccum.accumulation") for name in ours)


def test_only_its_own_package_imports_keras_3() -> None:
    for file in (file for part in PYTHON for file in ROOT.glob(f"{part}/**/*.py")):
        other = "tf_keras" if file.parent.name == "keras3" else "keras"
        assert not any(m.split(".")[0] == other for m in imports(file)), file
        assert "tf.keras" not in file.read_text(encoding="utf-8").replace("`tf.keras`", ""), file


def test_only_the_command_line_package_prints() -> None:
    for file in (*ROOT.glob("bertaccum/**/*.py"), *ROOT.glob("data_prep/**/*.py")):
        if "cli" not in file.parts:
            nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
            called = {node.func for node in nodes if isinstance(node, ast.Call)}
            assert not {"print", "echo", "secho"} & {ast.unparse(f).split(".")[-1] for f in called}


def test_no_module_loads_any_pickle() -> None:
    for file in [*ROOT.glob("bertaccum/**/*.py"), *ROOT.glob("data_prep/**/*.py")]:
        if file.name == "torch_file.py":  # Its unpickler can only rebuild tensors.
            assert not re.search(r"pickle\.loads?\b", file.read_text(encoding="utf-8"))
            continue
        assert not imports(file) & {"pickle", "dill", "joblib", "cloudpickle", "shelve"}, file
        assert "allow_pickle" not in file.read_text(encoding="utf-8"), file


def test_command_line_starts_without_heavy_modules() -> None:
    code = (
        "import sys, bertaccum, bertaccum.cli.program\n"
        "print([m for m in ('tensorflow', 'tf_keras', 'pandas', 'numpy', 'rich', 'yaml',"
        " 'fastapi', 'uvicorn', 'prometheus_client', 'mlflow', 'wandb', 'IPython',"
        " 'huggingface_hub')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
