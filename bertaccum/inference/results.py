"""Results of prediction, evaluation and export."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A text and its second text, which is None for a single text.
TextAndPair = tuple[str, str | None]


@dataclass(frozen=True)
class Prediction:
    """A model's prediction for a text or a pair of texts, both unchanged.

    Args:
      label: Name of the most probable class, for a classification.
      probabilities: Probability of each class or label, keyed by name, in the order of the class
        numbers; None for a regression.
      labels: Names of the predicted labels, for a multi-label task.
      score: Predicted number, for a regression.
      entities: For tags with a scheme, the entities in the text: `text`, `type`, `start` and `end`
        (in characters of the text) and `probability`, the mean of those of its words.
      words: For tags without a scheme, the words likewise, with a `tag` instead of a type.
      tags: The tag of each word.
      unread_words: The number of words at the end that were not read, because the text is too long.
      window: If the model reads several windows of a text, the number of the window that supports
        the prediction most strongly, counted from 1.
      windows: The number of windows in which the text was read.
      masks: For each [MASK] in the text, the most probable words: `word` and `probability`.
    """

    text: str
    label: str | None = None
    probabilities: dict[str, float] | None = None
    text_pair: str | None = None
    labels: list[str] | None = None
    score: float | None = None
    entities: list[dict[str, Any]] | None = None
    words: list[dict[str, Any]] | None = None
    tags: list[str] | None = None
    unread_words: int | None = None
    window: int | None = None
    windows: int | None = None
    masks: list[list[dict[str, Any]]] | None = None

    @property
    def filled(self) -> str:
        """The words for each mask as one line; empty without masks."""
        listed = (
            ", ".join(f"{word['word']} {word['probability']:.2f}" for word in own)
            for own in self.masks or []
        )
        return "; ".join(listed)

    def record(self) -> dict[str, Any]:
        """Return the fields that are not None, as `bertaccum predict --json` prints them."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class EvalResult:
    """The scores of a run's best model on a table.

    Each score is also an attribute: `result.accuracy` is `result.scores["accuracy"]`.

    Args:
      update: Update at which the best checkpoint was saved, or None if unknown.
      scores: What the task's `report` returned: `examples`, `loss` and the metrics of the task;
        `expected_calibration_error` and `classes` (one `ClassScores` per class), except for a
        regression; `confusion_matrix`, for classes and tags; `deciding_windows`, the number of
        examples that the first, second, … window decided, if the run has the option `windows`;
        `model_bytes` and `milliseconds_per_text`, with the option `latency`; `quantize`, if the
        model was quantized; `strict`, with this option.
    """

    run: str
    update: int | None
    data: str
    task: str
    scores: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        # Copying looks up special methods, and `scores`, before the fields are set.
        if name == "scores" or name.startswith("__") or name not in self.scores:
            raise AttributeError(f"an evaluation has no {name!r}")
        return self.scores[name]

    def record(self) -> dict[str, Any]:
        """Return the fields and the scores in one dict, as in `eval-<split>.json`."""
        values = dataclasses.asdict(self)
        return values | values.pop("scores")

    def _repr_html_(self) -> str:
        from bertaccum.reporting.notebook import evaluation_html

        return evaluation_html(self.record())


@dataclass(frozen=True)
class ExportResult:
    """An exported model.

    Args:
      format: "savedmodel", "huggingface", "google" or "tflite".
      bytes: Total size of the files.
      address: Address of the model on the Hugging Face Hub; None if it was not uploaded.
    """

    run: str
    format: str
    folder: Path
    bytes: int
    address: str | None = None
