"""Markdown tables of the cells: the summary, the controls and all cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

Cell = dict[str, Any]
NOT_APPLICABLE = "not applicable"

TITLE = """\
# How exact accumulation is

Written by `python benchmarks/exactness.py`; `--peers` adds the other packages, and
`--only "Hugging Face"` measures only those on PyTorch."""
NOTES = """\
Each cell is the largest relative difference between a weight after accumulation and the same weight
after training with large batches in the same framework, after at least eight updates. The first six
rows show the largest difference among the eleven optimizers of tf_keras; the other rows use Adam.
The other packages are measured in float32. **Bold** marks a crash, or a difference above 1e-12 in
float64 or 1e-6 in float32. There is no bound for accumulators in bfloat16 and float16.

- bertaccum optimizer: `AccumulatingOptimizer` in `fit`. If micro-batches or windows differ in size
  (ragged, partial, 60 of 64, masked), a training loop calls its `accumulate` and `apply`.
- bertaccum model: `accumulate_gradients`.
- mixed_float16: gradients are rounded to float16, once per micro-batch with accumulation and once
  per window with the large batch. The second table compares both with a large batch in float32. A
  difference of 1e-2 or more means that only one of the two skipped a window."""
PEER_NOTES = """\
- Keras 3: `gradient_accumulation_steps`. With embeddings and Adam, the error is in its large batch:
  sparse Adam squares the gradients of a repeated token before it sums them.
- gradient-accumulator optimizer: wraps legacy optimizers, as it requires. It crashes with new ones,
  and AdamW, Adafactor and Lion exist only as new ones. Between updates it calls the optimizer with
  zero gradients, which changes every optimizer that keeps moments, such as Adam in most rows.
- gradient-accumulator model: wraps a model with a new optimizer. Its documentation limits it to one
  device.
- Hugging Face: a small `BertForSequenceClassification`. Trainer or, for Accelerate, a plain PyTorch
  loop trains with the large batch. PyTorch has no Ftrl and no Lion ("not available"). Overflows and
  several replicas need a GPU, and a Trainer run can be stopped only between updates.
- Hugging Face Trainer: `gradient_accumulation_steps`. Trainer expects the model to divide the loss
  by the number of examples in the window, but this model divides by the number in the micro-batch.
  The gradient is then the sum of the means. This affects clipping and every optimizer that is
  sensitive to the scale of gradients. With label smoothing, Trainer itself divides correctly.
- Hugging Face Accelerate: the loop of its guide, `with accelerator.accumulate(model)`. It takes the
  mean of the micro-batches' means, and divides a shorter last window by the full number of steps.
  The 1e-06 of global clipping with RMSprop is a rounding error.
- Hugging Face Accelerate, unequal sizes: the second loop of the guide, for samples of variable
  size. It divides the sum of the losses by the number of examples in the window. Only cases whose
  micro-batches or windows differ in size need it."""

KERAS_3_NOTES = """\
Each cell is the largest relative difference between a weight after accumulation and the same weight
after training with large batches in Keras 3 on the same backend, after at least eight updates. The
first six rows show the largest difference among thirteen optimizers; the other rows use Adam.
**Bold** marks a crash, or a difference above 1e-12 in float64 or 1e-6 in float32.

- bertaccum: `accumulate_gradients` of `bertaccum.keras3`. For embeddings, the large batch has dense
  gradients, because Keras' optimizers combine sparse gradients of a repeated token wrongly.
- Keras 3: `gradient_accumulation_steps`, in float32.
- float64: on PyTorch, and on JAX for batches whose size is not a power of two, Keras 3 computes
  parts of the loss in float32. Its large batch then differs from NumPy's as much as from ours.
- float32 on JAX and PyTorch: Keras' own accumulation differs from the large batch as much, because
  sums over batches of different sizes are computed in different orders.
- mixed_float16: gradients are rounded to float16, once per micro-batch with accumulation and once
  per window with the large batch.
- 2 and 4 replicas: `MirroredStrategy` on TensorFlow, `keras.distribution.DataParallel` on JAX. In
  Keras 3, `fit` fails with several workers."""


def summary(cells: list[Cell]) -> str:
    """Return a table with a row for each kind of case and a column for each method."""
    columns = unique(c["column"] for c in cells)
    lines = header(["case", *columns])
    for row in unique(c["row"] for c in cells):
        chosen = [[c for c in cells if (c["row"], c["column"]) == (row, n)] for n in columns]
        lines.append(line([row, *map(worst, chosen)]))
    return "\n".join(lines)


def grid(cells: list[Cell]) -> str:
    """Return a table with a row for each case."""
    columns = unique(c["column"] for c in cells)
    lines = header(["case", "detail", *columns])
    for row, detail in unique((c["row"], c["detail"]) for c in cells):
        chosen = [c for c in cells if (c["row"], c["detail"]) == (row, detail)]
        lines.append(line([row, detail, *map(text, chosen)]))
    return "\n".join(lines)


def controls(cells: list[Cell]) -> str:
    """Return a table of mixed precision: differences from large batches in both precisions."""
    compared = [
        "accumulated and large batch, both in mixed_float16",
        "accumulated in mixed_float16, large batch in float32",
        "large batch in mixed_float16 and in float32",
    ]
    lines = header(["case", "detail", "method", *compared])
    for c in cells:
        if "to_float32" in c:
            values = map(short, [c["difference"], *c["to_float32"].values()])
            lines.append(line([c["row"], c["detail"], c["column"], *values]))
    return "\n".join(lines)


def worst(cells: list[Cell]) -> str:
    """Return the largest difference, and counts of the cells without one by reason."""
    if len(cells) == 1:
        return text(cells[0])
    trained = [c for c in cells if "difference" in c]
    others = Counter(c["outcome"] for c in cells if "difference" not in c)
    counts = ", ".join(f"{count} x {outcome}" for outcome, count in others.items())
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
    """Return the values in order, without repetitions."""
    return list(dict.fromkeys(values))


def header(titles: list[str]) -> list[str]:
    return [line(titles), "|" + "---|" * len(titles)]


def line(texts: list[str]) -> str:
    return f"| {' | '.join(texts)} |"
