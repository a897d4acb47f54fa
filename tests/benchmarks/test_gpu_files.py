"""The files that `benchmarks/gpu.py` writes for a machine with a GPU, and reads from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bertaccum.data.windows import window_rows


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parents[2]
    monkeypatch.syspath_prepend(root / "benchmarks/peers")
    monkeypatch.syspath_prepend(root / "benchmarks")


def test_exported_programs_run_on_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu_export

    monkeypatch.setattr(gpu_export, "PRECISIONS", {"float32": "float32"})
    programs = dict(gpu_export.programs("bert-tiny", ((2, 8),)))
    names = ("float32-gradients-2x8", "accumulation-2x8", "masks", "norm", "adamw", "zeroing")
    assert list(programs) == [f"bert-tiny-{name}" for name in names]
    for text in programs.values():
        assert "func.func @main" in text
        assert "custom_call" not in text  # these are the calls of one kind of device
    # These write into the memory of variables.
    in_place = [name for name, text in programs.items() if "may_alias" in text]
    assert in_place == [f"bert-tiny-{name}" for name in ("accumulation-2x8", "adamw", "zeroing")]


def test_gradients_do_not_depend_on_how_the_step_is_exported() -> None:
    """A program that times the step passes 1 for each integer; the step's own integers count."""
    import gpu_export

    trainee = gpu_export.make_trainee("bert-tiny", "float32")
    run, (one, *rest) = gpu_export.gradients(trainee, 2, 8)
    loss, found = run(one, *rest)
    batch = trainee.open_share(gpu_export.full_window(8, 2, 2).tensors).micro_batch(0)
    expected, gradients = trainee.micro_step(batch)
    assert loss.numpy() == expected.numpy()
    words, same = found[0], gradients[0]
    assert np.array_equal(words.values, same.values)
    assert len(set(words.indices.numpy())) == 16

    accumulate, (one, values, share) = gpu_export.accumulation(trainee, run, (one, *rest))
    accumulate(one, [tf.ones_like(value) for value in values], share)
    sums = trainee.optimizer.accumulators
    assert (sums[0].numpy().sum(1) > 0).sum() == 16
    assert all((total.numpy() == 1).all() for total in sums[1:])


def test_peers_read_the_windows_of_a_run(tmp_path: Path) -> None:
    import turns
    from tools import random_store, write_tokens

    store = random_store(70, 16)
    path = write_tokens(store, 40, tmp_path / "tokens.npz")
    ids, labels = turns.tokens({"tokens": str(path)})
    rows = [*window_rows(0, 70, 32, 0)[1], *window_rows(1, 70, 32, 0)[1][:8]]
    assert labels.tolist() == store.labels[rows].tolist()
    expected = store.of_rows(np.array(rows), labels)
    assert np.concatenate(ids).tolist() == expected.token_ids.tolist()
    assert [len(row) for row in ids] == store.lengths(np.array(rows)).tolist()
    padded = turns.padded(ids, 16)
    assert padded.shape == (40, 16)
    assert padded[1][padded[1] > 0].tolist() == ids[1].tolist()


def test_a_card_has_one_table_of_all_programs(tmp_path: Path) -> None:
    import gpu_programs

    def file(name: str, card: str, *training: dict[str, Any]) -> None:
        results = {"card": card, "training": training, "compiled_steps": []}
        (tmp_path / name).write_text(json.dumps(results))

    speed = {"examples_per_second": 50.4, "seconds_to_first_update": 3.0, "peak_bytes": None}
    assert gpu_programs.shown(tmp_path) == "No program was timed on a GPU yet."
    file("ours.json", "T4", {"case": "small", "program": "bertaccum"} | speed)
    failed = {"program": "Trainer, grouped", "failed": "no module named transformers"}
    loop = {"case": "small", "program": "PyTorch loop"} | speed | {"examples_per_second": 40.0}
    file("peers.json", "T4", loop, {"case": "small"} | failed, {"case": "base"} | failed)
    file("other.json", "L4", loop)
    (tmp_path / "gpu.json").write_text(json.dumps({"device": "T4"}))
    of_cards = gpu_programs.shown(tmp_path).split("L4:")[::-1]
    assert "| small | 40 |" in of_cards[0].split("T4:")[0]
    text = gpu_programs.shown(tmp_path).split("T4:")[1].split("L4:")[0]
    assert "|  | bertaccum | PyTorch loop | Trainer, grouped |" in text
    assert "| small | 50 | 40 | - |" in text
    assert "base" not in text  # nothing was measured
    assert "- Trainer, grouped: no module named transformers" in text
