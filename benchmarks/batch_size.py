"""Compares target batches with each other and with what the noise scale predicts.

    python benchmarks/batch_size.py runs --shared ../shared     # 30 minutes on 2 cores
    python benchmarks/batch_size.py budget --shared ../shared   # 90 minutes on 2 cores

`runs` trains a pretrained BERT-Tiny on IMDB with target batches of 8 to 128, until the loss on
1,000 held out reviews reaches fixed values. For each batch, one seed selects the best rate of a
grid; three other seeds then measure the number of updates. The learning rate is nearly constant,
because the schedule is much longer than the runs. The figure shows the measured numbers beside
those predicted from the noise scale of the runs with batch 32, or from its lower bound.

`budget` trains the same model on 5,000 reviews with target batches of 1 to 128, and compares the
loss on 5,000 others at the end. AdamW's beta2 is 0.999, or has the half-life in examples that 0.999
has at batch 32. Gradients are clipped at norm 1 or, because the noise of a mean grows as its number
of examples falls, at sqrt(32 / batch) below 32. Here, the learning rate rises and falls as usual.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tf_keras
from matplotlib.figure import Figure
from task_data import DataSet, some_imdb
from tools import Results, run_part, say, table

import bertaccum
from bertaccum.reporting.batch_advice import noise_scale

IMDB = DataSet("IMDB", partial(some_imdb, 25_000), dev_fraction=0.04)
BATCHES = (8, 16, 32, 64, 128)
# Learning rates to try: those of batch 32, times the square root of the relative batch.
RATES = (1e-4, 2e-4, 4e-4, 8e-4)
SEEDS = (1, 2, 3)
# For `budget`: the data, how many examples each run sees, and the rates to try.
MANY_DEV = DataSet("IMDB, 5,000 dev", partial(some_imdb, 25_000), dev_fraction=0.2)
BUDGET_BATCHES, BUDGET, BUDGET_RATES = (1, 4, 16, 32, 128), 5_000, (*RATES[1:], 1.6e-3)
BETA2 = 0.999
TARGETS = (0.55, 0.5, 0.45)
MOST_EXAMPLES, EVAL_EXAMPLES, LENGTH = 40_000, 512, 128


@dataclass
class Curve:
    """The dev losses of a run.

    Args:
      examples: Number of examples seen at each evaluation.
      losses: Dev loss at each evaluation.
      updates: Estimates of noise and signal of each update, as lines of `metrics.jsonl`.
    """

    examples: list[int]
    losses: list[float]
    updates: list[dict[str, Any]]

    def examples_to(self, target: float) -> float | None:
        """Return the number of examples at which the loss reaches a target, interpolated."""
        # The lowest loss so far falls monotonically.
        lowest = np.minimum.accumulate(self.losses)
        if lowest[-1] > target:
            return None
        return float(np.interp(-target, -lowest, self.examples))


def train(data: Path, shared: Path, out: Path, batch: int, rate: float, seed: int) -> Curve:
    """Train until the lowest target, and return the curve; repeated calls read it from a file."""
    saved = out / f"curves/{batch}-{rate:.2e}-{seed}.json"
    if saved.exists():
        return Curve(**json.loads(saved.read_text()))
    curve, folder = Curve([], [], []), out / "run"
    shutil.rmtree(folder, ignore_errors=True)
    seen = 0
    for event in bertaccum.training_events(
        data=str(data),
        out=str(folder),
        init_checkpoint=str(shared / "pretrained/bert_tiny_reviews"),
        target_batch=batch,
        micro_batch=min(batch, 32),
        learning_rate=rate,
        max_seq_length=LENGTH,
        seed=seed,
        epochs=50.0,
        warmup_fraction=0.0,
        eval_every=max(EVAL_EXAMPLES // batch, 1),
        max_updates=MOST_EXAMPLES // batch,
        save_every="2h",
    ):
        if isinstance(event, bertaccum.Updated):
            seen += event.examples
            noise = {"gradient_noise": event.gradient_noise}
            curve.updates.append(
                {"update": event.update, "gradient_signal": event.gradient_signal} | noise
            )
        elif isinstance(event, bertaccum.Evaluated):
            curve.examples.append(seen)
            curve.losses.append(event.loss)
            if event.loss < TARGETS[-1]:
                break
    tf_keras.backend.clear_session()
    saved.parent.mkdir(exist_ok=True)
    saved.write_text(json.dumps(vars(curve)))
    return curve


def runs(shared: Path, out: Path) -> tuple[Results, str]:
    data = IMDB.prepared(shared, out)
    results: Results = []
    for batch in BATCHES:
        scale = (batch / 32) ** 0.5
        tried = {rate: train(data, shared, out, batch, rate * scale, 0) for rate in RATES}
        needed = {rate: c.examples_to(TARGETS[-1]) or np.inf for rate, c in tried.items()}
        best = min(RATES, key=lambda rate: needed[rate])
        curves = [train(data, shared, out, batch, best * scale, seed) for seed in SEEDS]
        result: dict[str, Any] = {"batch": batch, "rate": best * scale, "tried": str(needed)}
        for target in TARGETS:
            examples = [c.examples_to(target) for c in curves]
            result[f"updates to {target}"] = [None if n is None else n / batch for n in examples]
        found = noise_scale([line for curve in curves for line in curve.updates], part=1.0)
        assert found is not None
        result |= {"noise_scale": found.noise_scale, "lowest": found.lowest}
        say(str(result))
        results.append(result)
    return results, report(results, out)


def final(
    data: Path,
    shared: Path,
    out: Path,
    batch: int,
    beta2: float,
    clip: float,
    rate: float,
    seed: int,
) -> dict[str, float]:
    """Return the dev loss and accuracy at the end of a run; repeated calls read them."""
    saved = out / f"final/{batch}-{beta2:.6f}-{clip:.2f}-{rate:.2e}-{seed}.json"
    if not saved.exists():
        folder, last = out / "run-budget", {}
        shutil.rmtree(folder, ignore_errors=True)
        for event in bertaccum.training_events(
            data=str(data),
            out=str(folder),
            init_checkpoint=str(shared / "pretrained/bert_tiny_reviews"),
            target_batch=batch,
            micro_batch=min(batch, 32),
            learning_rate=rate,
            adam_beta2=beta2,
            clip_norm=clip,
            max_seq_length=LENGTH,
            seed=seed,
            epochs=BUDGET / 20_000,
            eval_every=10**6,
            save_every="2h",
            noise_scale="none",
        ):
            if isinstance(event, bertaccum.Evaluated):
                last = {"loss": event.loss, "accuracy": event.accuracy}
        tf_keras.backend.clear_session()
        saved.parent.mkdir(exist_ok=True)
        saved.write_text(json.dumps(last))
    known: dict[str, float] = json.loads(saved.read_text())
    return known


def budget(shared: Path, out: Path) -> tuple[Results, str]:
    data = MANY_DEV.prepared(shared, out)
    results: Results = []
    for batch in BUDGET_BATCHES:
        half_life, wide = BETA2 ** (batch / 32), max((32 / batch) ** 0.5, 1.0)
        for beta2, clip in ((BETA2, 1.0), (half_life, 1.0), (half_life, wide)):
            end = partial(final, data, shared, out, batch, beta2, clip)
            rates = [rate * (batch / 32) ** 0.5 for rate in BUDGET_RATES]
            tried = {rate: end(rate, 0)["loss"] for rate in rates}
            best = min(rates, key=lambda rate: tried[rate])
            ends = [end(best, seed) for seed in SEEDS]
            result: dict[str, Any] = {"batch": batch, "beta2": beta2, "clip": clip, "rate": best}
            result |= {key: [one[key] for one in ends] for key in ("loss", "accuracy")}
            results.append(result | {"tried": str(tried)})
            say(str(results[-1]))
    rows = [
        [r["batch"], f"{r['beta2']:.6g}", f"{r['clip']:.3g}", f"{r['rate']:.1e}"]
        + [
            f"{statistics.fmean(r[key]):.4f} ± {statistics.stdev(r[key]):.4f}"
            for key in ("loss", "accuracy")
        ]
        for r in results
    ]
    heads = ["batch", "beta2", "clip norm", "learning rate", "dev loss", "accuracy"]
    return results, table(heads, rows)


def fitted(batches: np.ndarray, updates: np.ndarray) -> float:
    """Return the S for which updates proportional to 1 + S / batch fit best, relatively."""
    scales = np.geomspace(0.1, 1e5, 2000)
    shapes = 1 + scales[:, None] / batches
    logs = np.log(updates) - np.log(shapes)
    return float(scales[np.argmin(logs.var(axis=1))])


def report(results: Results, out: Path) -> str:
    batches = np.array([r["batch"] for r in results], float)
    of_32 = next(r for r in results if r["batch"] == 32)
    known = np.isfinite(of_32["noise_scale"])
    scale = of_32["noise_scale" if known else "lowest"]
    predicted = (1 + scale / batches) / (1 + scale / 32)
    label = f"predicted, noise scale {'' if known else 'above '}{scale:,.0f}"
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    rows = []
    for axes, target in zip(figure.subplots(1, len(TARGETS)), TARGETS, strict=True):
        measured = [[n for n in r[f"updates to {target}"] if n is not None] for r in results]
        means = np.array([statistics.fmean(n) if n else np.nan for n in measured])
        at_32 = means[list(batches).index(32)]
        for batch, own in zip(batches, measured, strict=True):
            axes.plot([batch] * len(own), own, "o", color="C0", markersize=4)
        axes.plot(batches, means, color="C0", label="measured")
        axes.plot(batches, at_32 * predicted, "--", color="C1", label=label)
        axes.set(xscale="log", yscale="log", xlabel="target batch", ylabel="updates")
        axes.set_xticks(batches, [f"{int(b)}" for b in batches])
        low, high = axes.get_ylim()
        axes.set_yticks(ticks := [n for n in (10, 20, 50, 100, 200, 500) if low < n < high])
        axes.set_yticklabels(map(str, ticks))
        axes.minorticks_off()
        axes.set_title(f"dev loss {target}")
        axes.legend(fontsize=7)
        fit = fitted(batches[~np.isnan(means)], means[~np.isnan(means)])
        relative = means / at_32
        rows.append([target, *(f"{value:.2f}" for value in relative), f"{fit:,.0f}"])
    bound = "" if known else "above "
    rows.append(["predicted", *(f"{p:.2f}" for p in predicted), f"{bound}{scale:,.0f}"])
    figure.savefig(out / "batch-size.svg")
    figure.savefig(out / "batch-size.png", dpi=110)
    heads = ["dev loss", *(f"batch {int(b)}" for b in batches), "noise scale"]
    rates = ", ".join(f"{r['batch']}: {r['rate']:.1e}" for r in results)
    return f"Updates relative to batch 32.\n\n{table(heads, rows)}\n\nLearning rates: {rates}."


if __name__ == "__main__":
    run_part(__doc__.partition("\n")[0], "batch_size", {"runs": runs, "budget": budget})
