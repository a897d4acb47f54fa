"""The README.md of an exported model: what it is, how good it is, and how to use it."""

from __future__ import annotations

from pathlib import Path

from bertaccum.config import TrainConfig
from bertaccum.training.events import Evaluated
from bertaccum.training.run_folder import ModelFiles

_CARD = """\
---
library_name: transformers
pipeline_tag: text-classification
---

# {title}

A BERT that classifies text as {classes}, fine-tuned with bertaccum.

- base model: {base}
- data: `train.tsv` of `{data}`
- batch: {target_batch} examples an update, learning rate {learning_rate:g}
- texts: lower-cased, cut to {max_seq_length} tokens
{scores}
```python
from transformers import pipeline

classifier = pipeline("text-classification", "FOLDER")
classifier(["a text"], truncation=True)
```

What it was not trained on, it may get wrong.
"""


def model_card(config: TrainConfig, files: ModelFiles, evaluated: Evaluated | None) -> str:
    """A model card in Markdown.

    Args:
      config: of the run.
      files: of its best model.
      evaluated: how good that is; None if it is not known.
    """
    base, scores = config.init_checkpoint or config.model or "", ""
    if evaluated is not None:
        scores = (
            f"- on `dev.tsv`: accuracy {evaluated.accuracy:.4f}, loss {evaluated.loss:.4f}, after"
            f" {evaluated.update:,} updates\n"
        )
    return _CARD.format(
        title=f"{Path(config.data).name}, classified",
        classes=", ".join(files.labels.names),
        base="none, random weights" if base == "none" else Path(base).name,
        data=Path(config.data).name,
        target_batch=config.target_batch,
        learning_rate=config.learning_rate,
        max_seq_length=config.max_seq_length,
        scores=scores,
    )
