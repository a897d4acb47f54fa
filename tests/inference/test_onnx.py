"""ONNX Runtime gives the predictions of a Hugging Face export, from texts and from token IDs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from runs_of_tasks import ENCODER, LENGTH, RunOf, values

from bertaccum import api

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks/peers/hf_onnx.py"


@pytest.mark.slow
def test_onnx_runtime_gives_the_predictions(
    run_of: RunOf, tmp_path: Path, transformers_python: Path
) -> None:
    run, model = run_of("pairs"), tmp_path / "model"
    api.export(run=str(run.folder.path), format="huggingface", out=str(model))
    (tmp_path / "texts.json").write_text(json.dumps(run.given))
    lengths = run.tokens["padding_mask"].sum(1)
    present = run.tokens["padding_mask"] > 0
    np.savez(
        tmp_path / "tokens.npz",
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        **{name: run.tokens[name][present] for name in ("token_ids", "segment_ids")},
    )
    job = {"model": str(model), "onnx": str(tmp_path / "onnx"), "length": LENGTH, "batch": 4}
    job |= {"repeats": 1, "out": str(tmp_path / "out.npy")}
    texts = {"texts": str(tmp_path / "texts.json"), "tokens": None, "quantize": "none"}
    tokens = {"texts": None, "tokens": str(tmp_path / "tokens.npz"), "quantize": "none"}
    for given, close in ((texts, 1e-5), (tokens, 1e-5), (tokens | {"quantize": "int8"}, 0.1)):
        (tmp_path / "job.json").write_text(json.dumps(job | given))
        done = subprocess.run(
            [transformers_python, SCRIPT, tmp_path / "job.json"],
            capture_output=True,
            text=True,
            check=False,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
        assert done.returncode == 0, done.stderr
        measured = json.loads(done.stdout.splitlines()[-1])
        assert measured["seconds"] > 0
        attention = "QAttention" if given["quantize"] == "int8" else "Attention"
        assert measured["fused"][attention] == ENCODER.num_hidden_layers
        found = np.load(tmp_path / "out.npy")
        np.testing.assert_allclose(found, values(run.predictions), rtol=0, atol=close)
        if given["quantize"] == "int8":
            assert abs(found - values(run.predictions)).max() > 1e-5
