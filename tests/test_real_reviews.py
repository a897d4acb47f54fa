"""`prepare`, `train` and `eval` on real reviews, in the order of the README."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertaccum.cli.program import main


def bertaccum(*arguments: object) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    assert not end.value.code


@pytest.mark.slow
def test_real_reviews_from_archive_to_evaluation(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    archive = shared / "data/yelp/yelp_review_polarity_csv.tgz"
    bertaccum("prepare", "--archive", archive, "--allow-unverified-archive")
    manifest = json.loads(Path("data/yelp_polarity/manifest.json").read_text())
    rows = {split: counts["rows"] for split, counts in manifest["counts"].items()}
    assert rows == {"train": 4637, "dev": 47, "test": 2248}
    assert manifest["labels"] == ["negative", "positive"]
    texts = Path("data/yelp_polarity/train.tsv").read_text(encoding="utf-8")
    assert '""' not in texts.replace('"""', "")
    assert "\\n" not in texts

    bertaccum(
        *("train", "--target-batch", 32, "--micro-batch", 8, "--epochs", 1, "--seed", 0),
        *("--init-checkpoint", shared / "pretrained/bert_tiny_reviews"),
        *("--learning-rate", 5e-4, "--max-seq-length", 64),
    )
    summary = json.loads(Path("runs/latest/summary.json").read_text())
    assert (summary["updates"], summary["examples"]) == (145, 4637)
    assert summary["pretrained"]

    bertaccum("eval", "--split", "test")
    result = json.loads(Path("runs/latest/eval-test.json").read_text())
    assert result["examples"] == 2248
    # 73.4% of the reviews are positive, and random initial weights do not score much more.
    assert result["accuracy"] > 0.82
