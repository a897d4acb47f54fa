"""TensorBoard event files, in the run folder's `tensorboard/`.

They contain values from the logs. When a run is resumed, they are rewritten from the logs, so that
a repeated update appears only once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tensorflow as tf

from bertaccum.errors import RunError, reason
from bertaccum.options.metrics import LABELS
from bertaccum.runs.record import EVALUATED, UPDATED, Record

# For each kind of line in the logs, the fields to plot with their tags, which trackers use as well.
_TAGS = {
    UPDATED: {
        "loss": "train/loss",
        "learning_rate": "train/learning_rate",
        "grad_norm": "train/gradient_norm",
        "noise_scale": "train/noise_scale",
        "examples_per_second": "speed/examples_per_second",
        "peak_memory_bytes": "memory/peak_bytes",
    },
    EVALUATED: {name: f"dev/{name}" for name in LABELS},
}
# Maximum delay before an event appears in TensorBoard.
_FLUSH_MILLISECONDS = 10_000


def tagged_values(line: dict[str, Any]) -> dict[str, float]:
    """Return the values of a line in the logs that are plotted, by tag."""
    tags = _TAGS.get(line["kind"], {})
    return {tag: line[key] for key, tag in tags.items() if line.get(key) is not None}


class TensorBoardLog:
    """A writer of a run's TensorBoard events, which begins with those already in the logs.

    Event files in `folder` are replaced.

    Raises:
      RunError: The folder cannot be written.
    """

    def __init__(self, folder: Path, record: Record) -> None:
        for file in folder.glob("events.out.tfevents.*"):
            with suppress(OSError):
                file.unlink()
        self._folder = folder
        with self._writing():
            self._writer = tf.summary.create_file_writer(
                str(folder), flush_millis=_FLUSH_MILLISECONDS
            )
            # TensorBoard renders the text as Markdown, which leaves indented lines unchanged.
            config = record.paths.config.read_text(encoding="utf-8").splitlines()
            with self._writer.as_default(step=0):
                tf.summary.text("config", "".join(f"    {row}\n" for row in config))
        for line in (*record.updates, *record.evaluations):
            self.add(line)

    def add(self, line: dict[str, Any]) -> None:
        """Write a line of `metrics.jsonl` or `eval.jsonl`, if it contains values to plot.

        Raises:
          RunError: The event cannot be written.
        """
        with self._writing(), self._writer.as_default(step=line["update"]):
            for name, value in tagged_values(line).items():
                tf.summary.scalar(name, value)

    def close(self) -> None:
        """Flush all events to disk if possible."""
        with suppress(tf.errors.OpError):
            self._writer.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with tf.device("CPU"):
                yield
        except tf.errors.OpError as error:
            raise RunError(
                f"cannot be written ({reason(error)})",
                "free disk space or fix the permissions, then run again with `resume`",
                path=self._folder,
            ) from None
