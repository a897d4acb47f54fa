"""AutoGraph converts no layer and no optimizer, which would take seconds."""

from __future__ import annotations

from pathlib import Path

from forked import output
from small import write_small_task

TRAINED_PREDICTED_EXPORTED = """
import sys, bertaccum
from pathlib import Path
bertaccum.train(
    data="reviews", out="run", init_checkpoint="none", bert_config="reviews/bert_config.json",
    vocab="reviews/vocab.txt", target_batch=4, micro_batch=2, max_seq_length=16, max_updates=1,
)
print(len(list(bertaccum.predict(["the food was good"], run="run"))))
bertaccum.export(run="run")
converted = [m.__file__ for name, m in sys.modules.items() if "__autograph_generated" in name]
# TensorFlow converts its own wrapper of a signature.
print([file for file in converted if "signature_wrapper" not in Path(file).read_text()])
"""


def test_no_layer_is_converted_by_autograph(tmp_path: Path) -> None:
    """AutoGraph would convert layers and optimizers for seconds before the first update."""
    write_small_task(tmp_path / "reviews", train=8, dev=4)
    assert output(TRAINED_PREDICTED_EXPORTED, cwd=tmp_path).splitlines() == ["1", "[]"]
