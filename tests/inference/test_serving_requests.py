"""The requests in docs/how-to/serve-elsewhere.md get the responses that the page shows."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from runs_of_tasks import ENCODER, Kind, make_run

from bertaccum import api
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.options.task_names import REGRESSION
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.task import Decoding

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/serve-elsewhere.md"
# Some words, with the IDs that they have in Google's vocabulary.
IDS = dict(zip(SPECIAL_TOKENS, (0, 100, 101, 102, 103), strict=True)) | {
    **{".": 1012, "the": 1996, "and": 1998, "was": 2001, "great": 2307, "service": 2326},
    **{"food": 2833, "bad": 2919, "cold": 3147},
}
CELLS = [*"010101"]
CLASSES = Kind(Labels(["0", "1"], ["positive", "negative"]), Decoding(), CELLS, CELLS)
SCORES = Kind(
    Labels([], [], pairs=True, task=REGRESSION, mean=3.2, std=0.7), Decoding(), CELLS, CELLS
)


def exported(folder: Path, kind: Kind) -> Any:
    """Return the loaded SavedModel of a model with random weights."""
    entries = [f"[unused{number}]" for number in range(max(IDS.values()) + 1)]
    for entry, number in IDS.items():
        entries[number] = entry
    encoder = dataclasses.replace(
        ENCODER, hidden_size=28, intermediate_size=48, vocab_size=len(entries)
    )
    run = make_run(folder, kind, encoder, Vocabulary(entries))
    return tf.saved_model.load(str(api.export(run=str(run.folder.path)).folder))


def served(model: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Return the response of TensorFlow Serving, as its page on the RESTful API describes it."""
    signature = model.signatures[request.get("signature_name", "serving_default")]
    specs = signature.structured_input_signature[1]
    given = request["instances"] if "instances" in request else request["inputs"]
    if isinstance(given, list) and isinstance(given[0], dict):
        given = {name: [row[name] for row in given] for name in specs}
    elif isinstance(given, list):
        (name,) = specs
        given = {name: given}
    inputs = {name: tf.constant(given[name], spec.dtype) for name, spec in specs.items()}
    outputs = {name: as_json(tensor) for name, tensor in signature(**inputs).items()}
    if "inputs" in request:
        return {"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))}
    if len(outputs) == 1:
        return {"predictions": next(iter(outputs.values()))}
    rows = zip(*outputs.values(), strict=True)
    return {"predictions": [dict(zip(outputs, row, strict=True)) for row in rows]}


def as_json(tensor: tf.Tensor) -> Any:
    found = tensor.numpy().tolist()
    return [one.decode() for one in found] if tensor.dtype == tf.string else found


def assert_equal(found: Any, shown: Any) -> None:
    tf.nest.assert_same_structure(found, shown)
    assert tf.nest.flatten(found) == [
        pytest.approx(one, abs=1e-3) if isinstance(one, float) else one
        for one in tf.nest.flatten(shown)
    ]


def test_requests_on_the_page_get_the_responses_shown(tmp_path: Path) -> None:
    blocks = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    rows, of_rows, columns, of_columns, pairs, of_pairs, tokens = map(json.loads, blocks)
    model = exported(tmp_path / "classes", CLASSES)
    assert_equal(served(model, rows), of_rows)
    assert_equal(served(model, columns), of_columns)
    assert_equal(served(model, tokens), of_rows)
    assert_equal(served(exported(tmp_path / "scores", SCORES), pairs), of_pairs)
