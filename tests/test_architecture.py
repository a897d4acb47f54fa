"""Rules for imports: no cycles, and no heavy module when the command line starts."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Modules that any other module may import. They import only the standard library and each other.
LOWEST = {
    *("bertaccum.atomic", "bertaccum.config", "bertaccum.errors", "bertaccum.files"),
    *(
        "bertaccum.metrics",
        "bertaccum.progress",
        "bertaccum.settings",
        "bertaccum.sizes",
        "bertaccum.stopping",
    ),
    "bertaccum.machine_cores",
    "bertaccum.other_names",
    "bertaccum.prepare_config",
    "bertaccum.printable",
    "bertaccum.offload_names",
    "bertaccum.task_names",
    "bertaccum.temporary_paths",
    "bertaccum.version",
    "bertaccum.window_arguments",
}
# Modules that need only TensorFlow, psutil or PyYAML, which any other module may import.
LEAF = {
    *("bertaccum._tf_compat", "bertaccum.backward_gates", "bertaccum.machine_memory"),
    *("bertaccum.compiled", "bertaccum.yaml_loader"),
}
# The packages that each package may import, besides itself, LOWEST and LEAF.
MAY_IMPORT = {
    "bertaccum.accumulation": set(),
    "bertaccum.cache": set(),
    "bertaccum.keras3": set(),
    "bertaccum.distribution": set(),
    "data_prep": set(),
    "bertaccum.bert": {"bertaccum.cache"},
    "bertaccum.data": {"bertaccum.bert", "bertaccum.cache", "bertaccum.tasks", "data_prep"},
    "bertaccum.planning": {
        *("bertaccum.bert", "bertaccum.cache", "bertaccum.data", "bertaccum.tasks")
    },
    "bertaccum.reporting": {"bertaccum.data"},
    "bertaccum.tasks": {"bertaccum.bert", "data_prep"},
    "bertaccum.inference": {
        *("bertaccum.bert", "bertaccum.data", "bertaccum.distribution", "bertaccum.planning"),
        *("bertaccum.reporting", "bertaccum.tasks", "data_prep"),
    },
    "bertaccum.training": {
        *("bertaccum.accumulation", "bertaccum.bert", "bertaccum.data", "bertaccum.distribution"),
        *("bertaccum.inference", "bertaccum.planning", "bertaccum.reporting", "bertaccum.tasks"),
        "data_prep",
    },
    "bertaccum.serving": {
        *("bertaccum.inference", "bertaccum.reporting", "bertaccum.tasks", "data_prep")
    },
    "bertaccum.inspection": {
        *("bertaccum.bert", "bertaccum.cache", "bertaccum.data", "bertaccum.tasks"),
        "bertaccum.training",
    },
    "bertaccum.api": {
        *("bertaccum.bert", "bertaccum.inference", "bertaccum.inspection", "bertaccum.planning"),
        *("bertaccum.reporting", "bertaccum.serving", "bertaccum.training", "data_prep"),
    },
    "bertaccum.cli": {
        *("bertaccum.api", "bertaccum.cache", "bertaccum.distribution", "bertaccum.inference"),
        *("bertaccum.inspection", "bertaccum.planning", "bertaccum.reporting"),
        *("bertaccum.training", "data_prep"),
    },
}
PYTHON = ("bertaccum", "data_prep", "examples")
LONGEST_CHAIN = 12


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


def part_of(module: str) -> str:
    parts = [part for part in MAY_IMPORT if module == part or module.startswith(part + ".")]
    return parts[0] if parts else module


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_package_imports_only_allowed_packages(part: str) -> None:
    own = {name: used for name, used in import_graph().items() if part_of(name) == part}
    assert own
    for name, used in own.items():
        assert {part_of(m) for m in used} - LOWEST - LEAF <= MAY_IMPORT[part] | {part}, name


def test_allowed_imports_have_no_cycle() -> None:
    graphlib.TopologicalSorter(MAY_IMPORT).prepare()  # Raises CycleError.


def test_modules_have_no_import_cycle_and_chains_are_short() -> None:
    graph = import_graph()
    length: dict[str, int] = {}
    for module in graphlib.TopologicalSorter(graph).static_order():  # Raises CycleError.
        length[module] = 1 + max((length[used] for used in graph[module]), default=0)
    longest = max(length, key=lambda module: length[module])
    assert length[longest] <= LONGEST_CHAIN, longest


def test_module_file_names_are_unique() -> None:
    # The file of a command is named after the command, so it may share a name with another module.
    names = [name for name in modules() if not name.startswith("bertaccum.cli.commands.")]
    counted = Counter(name.split(".")[-1] for name in names)
    assert not {name for name, times in counted.items() if times > 1}


def test_lowest_modules_need_only_the_standard_library() -> None:
    for module in LOWEST:
        for name in imports(modules()[module]):
            ours = any(name == other or name.startswith(f"{other}.") for other in LOWEST)
            assert ours or name.split(".")[0] in sys.stdlib_module_names, (module, name)


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
        " 'fastapi', 'uvicorn', 'prometheus_client')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
