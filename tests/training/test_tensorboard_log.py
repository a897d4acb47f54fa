"""TensorBoard event files contain each event of the logs once."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bertaccum.errors import RunError
from bertaccum.runs.record import read_record
from bertaccum.system.files import json_text
from bertaccum.training.tensorboard_log import TensorBoardLog

EVALUATION = {"kind": "evaluated", "update": 2, "accuracy": 0.5, "loss": 0.7, "best": True}


def update(number: int) -> dict[str, object]:
    values = {"loss": 1 / number, "grad_norm": None, "learning_rate": 0.1}
    return {"kind": "updated", "update": number} | values


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Create a run saved after its second update."""
    (tmp_path / "config.yaml").write_text("target_batch: 8\nmicro_batch: 4\n")
    lines = [json_text(update(number), indent=None) for number in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    (tmp_path / "eval.jsonl").write_text(json_text(EVALUATION, indent=None))
    return tmp_path


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and values that TensorBoard reads, by tag."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    return {
        tag: [(e.step, float(tf.make_ndarray(e.tensor_proto))) for e in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
        if tag != "config"
    }


def test_resumed_run_has_each_update_once(run: Path) -> None:
    (run / "tensorboard").mkdir()
    (run / "tensorboard/notes.txt").write_text("mine")
    for more in ([3, 4], [3, 4, 5]):
        files = TensorBoardLog(run / "tensorboard", read_record(run))
        for number in more:
            files.add(update(number))
        files.close()
    found = scalars(run / "tensorboard")
    assert [step for step, _ in found["train/loss"]] == [1, 2, 3, 4, 5]
    assert [value for _, value in found["train/loss"]] == pytest.approx(
        [1, 1 / 2, 1 / 3, 1 / 4, 0.2]
    )
    assert found["dev/accuracy"] == [(2, 0.5)]
    # Values that are missing or not finite are not plotted.
    assert "train/gradient_norm" not in found and "memory/peak_bytes" not in found
    assert (run / "tensorboard/notes.txt").read_text() == "mine"


def test_unwritable_folder_is_an_error(run: Path) -> None:
    (run / "taken").write_text("a file")
    with pytest.raises(RunError, match=r"taken/tensorboard: cannot be written .*`resume`"):
        files = TensorBoardLog(run / "taken/tensorboard", read_record(run))
        files.add(update(3))
