"""The quickstart notebook runs from the first cell to the last, and has no outputs in git."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "docs/notebooks/quickstart.ipynb"
# A model without a download, which trains in seconds on a CPU.
SMALL = """
OPTIONS |= {"model": "bert-tiny", "init_checkpoint": "none", "vocab": "data/sample/vocab.txt"}
OPTIONS |= {"max_seq_length": 32}
EPOCHS = 0.1
"""


def read() -> Any:
    import nbformat

    return nbformat.read(NOTEBOOK, as_version=4)


def tagged(notebook: Any, tag: str) -> Any:
    """Return the only cell with a tag."""
    (cell,) = (cell for cell in notebook.cells if tag in cell.metadata.get("tags", ()))
    return cell


def test_notebook_has_no_outputs_and_installs_known_extras() -> None:
    notebook = read()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and not any(cell.outputs or cell.execution_count for cell in code)
    (extras,) = re.findall(r"bertaccum\[(.*?)\]", tagged(notebook, "install").source)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f"\n{extra} = [" in project for extra in extras.split(","))


@pytest.mark.slow
def test_notebook_runs_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = read()
    notebook.cells.remove(tagged(notebook, "install"))
    tagged(notebook, "parameters").source += SMALL
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    shown = {
        cell.source: [output.data for output in cell.outputs if "data" in output]
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
    plan = last_of(shown, "bertaccum.plan(")
    assert "candidates" in plan["text/html"]
    (outputs,) = (outputs for source, outputs in shown.items() if "bertaccum.train(" in source)
    progress, result = outputs
    assert "training" in progress["text/plain"] and "update 9: dev" in progress["text/plain"]
    assert result["text/html"].count("<svg") == 3
    assert last_of(shown, "plot()")["image/png"]
    assert "accuracy" in last_of(shown, "bertaccum.evaluate(")["text/html"]
    assert "The food was great." in last_of(shown, "bertaccum.predict(")["text/html"]
    assert (tmp_path / "model.zip").stat().st_size > 10_000
    assert {path.name for path in tmp_path.iterdir()} >= {"data", "reviews.csv", "runs"}


def last_of(shown: dict[str, list[Any]], part: str) -> Any:
    """Return the last output of the cell whose source contains a text."""
    (found,) = (outputs for source, outputs in shown.items() if part in source)
    return found[-1]
