"""The files that `benchmarks/gpu.py` writes for a machine with a GPU, and reads from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.config import TrainConfig
from bertaccum.training.initial_model import build_model
from bertaccum.training.recipe import make_optimizer


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parents[2]
    monkeypatch.syspath_prepend(root / "benchmarks/peers")
    monkeypatch.syspath_prepend(root / "benchmarks")


def test_exported_steps_run_on_other_devices() -> None:
    import gpu_export

    config = TrainConfig(precision="float32", recompute="none")
    source = ModelSource("bert-tiny", PRESET_CONFIGS["bert-tiny"], None, None)
    model = build_model(config, source, outputs=2)
    optimizer = make_optimizer(config, 1000, 4)
    optimizer.build(model.trainable_variables)
    micro_step = gpu_export.micro_step(model, optimizer, 2, 8)
    for run, arguments in (micro_step, gpu_export.optimizer_step(optimizer)):
        text = run.experimental_get_compiler_ir(*arguments)(stage="stablehlo")
        assert "func.func @main" in text
        assert "custom_call" not in text  # these are the calls of one kind of device
    run, arguments = micro_step
    run(*arguments)
    words = optimizer.accumulators[0].numpy()
    # Two rows of eight different tokens: a program that times the step passes equal ones.
    assert (np.abs(words).sum(1) > 0).sum() == 16


def test_peers_read_the_tokens_of_the_store(tmp_path: Path) -> None:
    import turns
    from tools import random_store, write_tokens

    store = random_store(5, 16)
    path = write_tokens(store, 3, tmp_path / "tokens.npz")
    ids, labels = turns.tokens({"tokens": str(path)})
    assert labels.tolist() == store.labels[:3].tolist()
    assert np.concatenate(ids).tolist() == store.token_ids[: store.offsets[3]].tolist()
    assert [len(row) for row in ids] == store.lengths(np.arange(3)).tolist()
    padded = turns.padded(ids, 16)
    assert padded.shape == (3, 16)
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
