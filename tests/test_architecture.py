"""Imports run one way, and the command line starts light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOWEST = {
    "bertaccum",
    "bertaccum.config",
    "bertaccum.errors",
    "bertaccum.files",
    "bertaccum.metrics",
    "bertaccum.progress",
    "bertaccum.settings",
    "bertaccum.sizes",
    "bertaccum.stopping",
}
# Each part and the parts it may import, itself and the lowest ones aside.
MAY_IMPORT = {
    "bertaccum.accumulation": set(),
    "bertaccum.memory": set(),
    "bertaccum.bert": set(),
    "bertaccum.distribution": set(),
    "bertaccum.records": set(),
    "bertaccum.training": {
        "bertaccum.accumulation",
        "bertaccum.distribution",
        "bertaccum.memory",
        "bertaccum.records",
        "bertaccum.bert",
        "data_prep",
    },
    "bertaccum.api": {"bertaccum.bert", "bertaccum.records", "bertaccum.training", "data_prep"},
    "bertaccum.display": {"bertaccum.training"},
    "bertaccum.commands": {
        "bertaccum.api",
        "bertaccum.display",
        "bertaccum.distribution",
        "bertaccum.records",
        "bertaccum.training",
    },
    "data_prep": set(),
}
PYTHON = ("bertaccum", "data_prep", "examples")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def part_of(module: str) -> str:
    parts = [part for part in MAY_IMPORT if module == part or module.startswith(part + ".")]
    return parts[0] if parts else module


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_imports_run_one_way(part: str) -> None:
    path = ROOT / part.replace(".", "/")
    files = [*path.glob("**/*.py"), *path.parent.glob(f"{path.name}.py")]
    assert files
    for file in files:
        ours = {m for m in imports(file) if m.split(".")[0] in ("bertaccum", "data_prep")}
        allowed = LOWEST | MAY_IMPORT[part] | {part}
        assert {part_of(m) for m in ours} <= allowed, file


def test_the_lowest_modules_need_only_the_standard_library() -> None:
    for module in LOWEST - {"bertaccum"}:
        for name in imports(ROOT / (module.replace(".", "/") + ".py")):
            assert name in LOWEST or name.split(".")[0] in sys.stdlib_module_names, (module, name)


def test_examples_stand_on_the_accumulation_alone() -> None:
    used = {name for file in ROOT.glob("examples/*.py") for name in imports(file)}
    ours = {name for name in used if name.split(".")[0] in ("bertaccum", "data_prep")}
    assert ours == {"bertaccum.accumulation"}


def test_nothing_imports_keras_3() -> None:
    for file in (file for part in PYTHON for file in ROOT.glob(f"{part}/**/*.py")):
        assert not any(m.split(".")[0] == "keras" for m in imports(file)), file
        assert "tf.keras" not in file.read_text(encoding="utf-8").replace("`tf.keras`", ""), file


def test_only_the_command_line_prints() -> None:
    for file in (*ROOT.glob("bertaccum/**/*.py"), *ROOT.glob("data_prep/**/*.py")):
        if file.parent.name not in ("commands", "display"):
            nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
            called = {node.func for node in nodes if isinstance(node, ast.Call)}
            assert not {"print", "echo", "secho"} & {ast.unparse(f).split(".")[-1] for f in called}


def test_nothing_loads_pickles() -> None:
    for file in [*ROOT.glob("bertaccum/**/*.py"), *ROOT.glob("data_prep/**/*.py")]:
        assert not imports(file) & {"pickle", "dill", "joblib", "cloudpickle", "shelve"}, file
        assert "allow_pickle" not in file.read_text(encoding="utf-8"), file


def test_the_command_line_starts_without_tensorflow_and_pandas() -> None:
    code = (
        "import sys, bertaccum, bertaccum.cli.program\n"
        "print([m for m in ('tensorflow', 'tf_keras', 'pandas', 'numpy', 'rich', 'yaml')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
