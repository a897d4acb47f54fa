"""The programs of `benchmarks/peers.py` do the work for which they are timed."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from small import write_small_model, write_small_task

PEERS = Path(__file__).resolve().parents[2] / "benchmarks/peers"


@pytest.mark.slow
def test_a_turn_of_bertaccum_contains_all_of_its_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its updates run in another thread, which must not work while other programs are timed."""
    monkeypatch.syspath_prepend(PEERS)
    from peer_process import PeerProcess

    write_small_task(tmp_path / "data", train=400, dev=8)
    vocabulary = tmp_path / "data/vocab.txt"
    # An update takes much longer than the work between two updates.
    model = write_small_model(
        tmp_path / "data/bert_config.json", vocabulary, hidden_size=256, num_hidden_layers=4
    )
    task = {
        **{"train": str(tmp_path / "data/train.tsv"), "vocab": str(vocabulary), "length": 16},
        **{"precision": "float32", "micro_batch": 8, "accumulation_steps": 8, "dropout": 0.0},
        **{"model": "bert-tiny", "options": {"model": None, "bert_config": str(model)}},
    }
    command = [sys.executable, str(PEERS / "ours.py"), json.dumps(task)]
    process = PeerProcess(command, tmp_path / "log", os.environ | {"TMPDIR": str(tmp_path)})
    process.turn(2)
    time.sleep(1)  # Another update would end in this time.
    turn = process.turn(1)["seconds"]
    process.close()
    (log,) = tmp_path.glob("*/run/metrics.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["update"] for line in lines] == [1, 2, 3]
    assert turn > lines[-1]["seconds"]
