"""The model card and the page of a real run."""

from __future__ import annotations

import json
from pathlib import Path

from small import copied


def test_card_and_page_of_a_real_run(run, trained: Path, tmp_path: Path) -> None:
    folder = copied(trained, tmp_path) / "runs/one"
    Path("runs/latest").symlink_to("one")
    card = (folder / "model-card.md").read_text()
    assert "| train.tsv | 40 rows, SHA-256 " in card
    assert "evaluated by `bertaccum eval`" not in card
    assert str(trained) not in card

    assert run("eval").code == 0
    found = json.loads((folder / "eval-test.json").read_text())
    card = (folder / "model-card.md").read_text()
    assert f"| test.tsv | 21 | {found['accuracy']:.4f} |" in card
    assert str(Path.cwd()) not in card

    made = run("report", "--split", "test", "--out", "page.html")
    assert (made.code, made.out) == (0, "page.html: written\n")
    text = Path("page.html").read_text()
    assert f"<td>{found['loss']:.4f}</td>" in text
    assert ("with the lowest probability" in text) == (found["accuracy"] < 1)
    # A report needs only a saved best model, so the run need not have finished.
    (folder / "summary.json").unlink()
    made = run("report")
    assert (made.code, "evaluating on test.tsv\n" in made.err) == (0, True)
    assert "the best model on test.tsv" in (folder / "report.html").read_text()
    assert run("report", "--split", "train").code == 0
    for name in ("dev", "test"):
        Path(f"reviews/{name}.tsv").unlink()
    gone = run("report")
    assert gone.code == 2
    assert "reviews/dev.tsv: there is no such file" in gone.err
