"""`benchmarks/exactness.py` uses each loop of Accelerate's guide where the guide recommends it."""

from __future__ import annotations

from pathlib import Path

import pytest

CASES = ("plain", "ragged micro-batches (6, 6, 4)", "partial window (2 of 4)", "60 of 64 examples")


@pytest.mark.slow
def test_the_second_loop_of_accelerates_guide_is_exact_for_unequal_sizes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, transformers_python: Path
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
    from exactness import train
    from exactness_cases.cases import all_cases
    from exactness_cases.columns import PEERS
    from exactness_cases.compare import cell

    cases = all_cases()
    # The names of optimizers distinguish the cases of the first row.
    chosen = {case.row: number for number, case in enumerate(cases) if case.optimizer == "Adam"}
    numbers = [chosen[row] for row in CASES]
    columns = [column for column in PEERS if column.framework == "with_accelerate"]
    pythons = {"with_accelerate": str(transformers_python)}
    trained = train(columns, cases, numbers, pythons, tmp_path)
    first, second = ([cell(trained, c, cases, n) for n in numbers] for c in columns)
    assert [found["within"] for found in first] == [True, False, False, False]
    assert [found["within"] for found in second] == [None, True, True, True]
    assert second[0]["outcome"] == "not applicable"
