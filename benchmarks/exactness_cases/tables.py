"""Markdown of the cells: a summary, the controls, and all of the grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

Cell = dict[str, Any]
NOT_APPLICABLE = "not applicable"

TITLE = """\
# How exact accumulation is

Written by `python benchmarks/exactness.py`, with `--peers` for the other packages, and with
`--only "Hugging Face"` for those of PyTorch alone."""
NOTES = """\
Largest relative difference of a weight to the big batch in the same framework, after at least
eight updates: the first six rows are the worst of the eleven optimizers of tf_keras, the others
Adam. The peers are measured in float32. **Bold**: a crash, or beyond 1e-12 in float64 or 1e-6 in
float32; narrow accumulators have no bound.

- bertaccum, optimizer: `AccumulatingOptimizer` in `fit`; where micro-batches or windows differ in
  size (ragged, partial, 60 of 64), its explicit face in a loop. Model: `accumulate_gradients`.
- mixed_float16: gradients are rounded to float16, once a micro-batch here and once a window by the
  big batch. How far that takes each from a big batch in float32 stands below. 1e-2 and more: a
  window was dropped that the big batch kept, or the other way around."""
PEER_NOTES = """\
- Keras 3: `gradient_accumulation_steps`. With embeddings and Adam it is its big batch that is off:
  its sparse Adam squares the rows of a repeated token before adding them up.
- gradient-accumulator, optimizer: with legacy optimizers, as it asks for (with new ones it crashes;
  AdamW, Adafactor and Lion are only there as new ones). Between updates it calls them with zero
  gradients, so that whatever remembers gradients, as Adam in most rows, is off. Model: with new
  ones; it says that it is for one device.
- Hugging Face: a small `BertForSequenceClassification`, whose big batch is that of Trainer, and for
  Accelerate that of a plain PyTorch loop. PyTorch has no Ftrl and no Lion ("not there"); overflows
  and several replicas need a GPU; with Trainer a run can only be stopped between updates.
  Trainer: `gradient_accumulation_steps`. It leaves dividing by the window to the model, which
  divides by the micro-batch: the gradient is the sum of the means. Optimizers that look at the size
  of a gradient, and clipping, see that; with label smoothing Trainer divides by itself.
  Accelerate: the loop of its guide, `with accelerator.accumulate(model)`. It takes the mean of the
  micro-batches' means, and divides a shorter last window by the full number of steps; the
  1e-06 of its global clip, of RMSprop, is rounding."""


def summary(cells: list[Cell]) -> str:
    """A row for each kind of case, a column for each way to accumulate."""
    columns = unique(c["column"] for c in cells)
    lines = header(["", *columns])
    for row in unique(c["row"] for c in cells):
        chosen = [[c for c in cells if (c["row"], c["column"]) == (row, n)] for n in columns]
        lines.append(line([row, *map(worst, chosen)]))
    return "\n".join(lines)


def grid(cells: list[Cell]) -> str:
    """A row for each case."""
    columns = unique(c["column"] for c in cells)
    lines = header(["", "", *columns])
    for row, detail in unique((c["row"], c["detail"]) for c in cells):
        chosen = [c for c in cells if (c["row"], c["detail"]) == (row, detail)]
        lines.append(line([row, detail, *map(text, chosen)]))
    return "\n".join(lines)


def controls(cells: list[Cell]) -> str:
    """What float16 does to the big batch itself, and to what is accumulated."""
    titles = ["", "", "", "accumulated to big batch", "each to a big batch in float32: accumulated"]
    lines = header([*titles, "big batch"])
    for c in cells:
        if "to_float32" in c:
            values = map(short, [c["difference"], *c["to_float32"].values()])
            lines.append(line([c["row"], c["detail"], c["column"], *values]))
    return "\n".join(lines)


def worst(cells: list[Cell]) -> str:
    """The largest difference, and how many cells have none for which reason."""
    if len(cells) == 1:
        return text(cells[0])
    trained = [c for c in cells if "difference" in c]
    others = Counter(c["outcome"] for c in cells if "difference" not in c)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in others.items())
    if not trained:
        failed = any(c["within"] is False for c in cells)
        return "—" if set(others) == {NOT_APPLICABLE} else f"**{counts}**" if failed else counts
    largest = text(max(trained, key=lambda c: c["difference"]))
    return f"{largest} ({counts})" if counts else largest


def text(cell: Cell) -> str:
    if cell["outcome"] == NOT_APPLICABLE:
        return "—"
    shown = short(cell["difference"]) if "difference" in cell else cell["outcome"]
    return f"**{shown}**" if cell["within"] is False else shown


def short(value: float) -> str:
    return f"{value:.0e}" if value else "0"


def unique(values: Iterable[Any]) -> list[Any]:
    """Without repetitions, in order."""
    return list(dict.fromkeys(values))


def header(titles: list[str]) -> list[str]:
    return [line(titles), "|" + "---|" * len(titles)]


def line(texts: list[str]) -> str:
    return f"| {' | '.join(texts)} |"
