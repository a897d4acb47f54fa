"""A SavedModel of token IDs loads where the operations of tensorflow-text are not registered."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from runs_of_tasks import KINDS, VOCABULARY, RunOf
from small import run_isolated

from bertaccum import api
from bertaccum.bert.tokenization import Tokenization
from bertaccum.reporting.rendering import render
from bertaccum.tasks.kinds import make_task

# Without tensorflow-text, as in a build of TensorFlow Serving without it.
WITHOUT_TEXT_OPS = """
import json, sys
sys.modules["tensorflow_text"] = None
import tensorflow as tf

try:
    tf.saved_model.load(sys.argv[1])
except Exception as error:
    refused = str(error)
signatures = tf.saved_model.load(sys.argv[2]).signatures
inputs = {name: tf.constant(value) for name, value in json.loads(sys.argv[3]).items()}
found = [signatures[name](**inputs)["probabilities"].numpy().tolist() for name in signatures]
print(json.dumps({"refused": refused, "names": list(signatures), "found": found}))
"""


def test_model_of_tokens_needs_only_tensorflow(run_of: RunOf, tmp_path: Path) -> None:
    run = run_of("calibrated").copied(tmp_path)
    folders = []
    for inputs in ("text", "tokens"):
        result = api.export(run=str(run.folder.path), inputs=inputs)
        folders.append(result.folder)
    assert [folder.name for folder in folders] == ["export-savedmodel", "export-savedmodel-tokens"]
    tokens = json.dumps({name: value.tolist() for name, value in run.tokens.items()})
    answer = run_isolated(WITHOUT_TEXT_OPS, *folders, tokens)
    # TensorFlow checks all operations of a graph when it loads the graph.
    assert "Op type not registered" in answer["refused"]
    assert sorted(answer["names"]) == ["serving_default", "tokens"]
    expected = [list((one.probabilities or {}).values()) for one in run.predictions]
    for found in answer["found"]:
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    beside = folders[1] / "assets.extra"
    card = (beside / "README.md").read_text()
    assert "import tensorflow_text" not in card
    assert "`token_ids`: the IDs of `[CLS] text [SEP]`" in card
    description = json.loads((beside / "model.json").read_text())
    assert description["outputs"]["label"] == {"dtype": "string", "shape": ["batch"]}


@pytest.mark.parametrize(
    ("fraction", "words"),
    [
        (1.0, "A text that is too long loses its end."),
        (0.25, "keeps 25% of its tokens from its beginning, the others from its end."),
        (0.0, "keeps 0% of its tokens from its beginning, the others from its end."),
    ],
)
def test_model_card_says_what_truncation_keeps(fraction: float, words: str) -> None:
    notes = render(
        "usage-of-tokens.md.j2",
        task=make_task(KINDS["pairs"].labels),
        tokenization=Tokenization(VOCABULARY, 9, fraction),
    )
    assert words in " ".join(notes.split())
    assert "The length is at most 9." in notes
    assert "`[CLS] text [SEP] second text [SEP]`" in notes
