"""Metrics of an evaluation: their names, comparison and wording.

An evaluation is a mapping with the same keys as a line of `eval.jsonl`, or as `eval-SPLIT.json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bertaccum.system.phrases import counted, percent
from bertaccum.system.sizes import format_size

# Names of all scores that are displayed, in the order in which they are displayed.
LABELS = {
    "entity_f1": "entity F1",
    "entity_precision": "entity precision",
    "entity_recall": "entity recall",
    "macro_entity_f1": "macro entity F1",
    "accuracy": "accuracy",
    "micro_f1": "micro-F1",
    "macro_f1": "macro-F1",
    "matthews_correlation": "Matthews correlation",
    "average_precision": "average precision",
    "exact_match": "exact match",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "mse": "mean squared error",
    "perplexity": "perplexity",
    "loss": "loss",
    "expected_calibration_error": "expected calibration error",
}
# The metrics that can select the best checkpoint of some task.
_NEVER_BEST = (
    "entity_precision",
    "entity_recall",
    "exact_match",
    "perplexity",
    "expected_calibration_error",
)
METRICS = tuple(name for name in LABELS if name not in _NEVER_BEST)
LOWER_IS_BETTER = frozenset({"loss", "mse", "perplexity"})
# Shown for every evaluation that contains them, after the metric that selects the best checkpoint.
_ALWAYS_SHOWN = (
    "entity_f1",
    "accuracy",
    "micro_f1",
    "macro_f1",
    "pearson",
    "spearman",
    "mse",
    "perplexity",
    "loss",
)
# A table with one column for each class has at most this many classes.
MAX_CLASSES = 50
# Below this, four decimals are fewer than three digits.
_SMALL = 0.01
# Correlations below this are weak, however many examples there are.
_WEAK = 0.2

Evaluation = Mapping[str, Any]


def is_worse(value: float, other: float, metric: str) -> bool:
    """Return whether one value of a metric is worse than another; NaN is worse than any number."""
    if math.isnan(value) or math.isnan(other):
        return math.isnan(value) and not math.isnan(other)
    return value > other if metric in LOWER_IS_BETTER else value < other


def metric_of(evaluation: Evaluation | None, metric: str) -> dict[str, Any] | None:
    """Return a metric as a dict of `name`, `value` and `update`; None if there is no evaluation."""
    if evaluation is None:
        return None
    return {"name": metric, "value": evaluation.get(metric), "update": evaluation.get("update")}


def ordered(metric: str) -> list[str]:
    """Return the names of the metrics to show: `metric`, then those that are always shown."""
    return [metric, *(name for name in _ALWAYS_SHOWN if name != metric)]


def written(value: float, metric: str) -> str:
    """Return a score with four decimals, but a small squared error with four digits.

    A squared error has the square of the labels' unit, which may be small.
    """
    is_small = metric.endswith("mse") and 0 < abs(value) < _SMALL
    return format(value, ".4g" if is_small else ".4f")


def in_unit(value: float) -> str:
    """Return a label, a prediction or a statistic of a regression, in the unit of the labels."""
    # An error of one matters, however large the numbers are.
    is_large = 1000 <= abs(value) < 1e15
    return f"{value:.1f}".removesuffix(".0") if is_large else f"{value:.4g}"


def shown(evaluation: Evaluation, name: str, form: str = "", metric: str = "") -> str:
    """Return a value in a format, by default as a score is `written`; empty if it is missing."""
    value = evaluation.get(name)
    if value is None:
        return ""
    return format(value, form) if form else written(value, metric or name)


def scores(evaluation: Evaluation) -> dict[str, str]:
    """Return all scores of an evaluation, keyed by label, each baseline after its metric."""
    found = _with_baselines(evaluation, LABELS)
    if evaluation.get("temperature", 1.0) != 1.0:
        found["temperature"] = shown(evaluation, "temperature")
    if "milliseconds_per_text" in evaluation:
        found["weights"] = format_size(evaluation["model_bytes"])
        found["time for one text"] = f"{evaluation['milliseconds_per_text']:.1f} ms"
    found["deciding window"] = _deciding(evaluation.get("deciding_windows") or [])
    return {name: value for name, value in found.items() if value}


def modes(evaluation: Evaluation) -> list[str]:
    """Return what differs from the usual way to evaluate: int8 weights, strict entities."""
    quantized = [evaluation["quantize"]] if "quantize" in evaluation else []
    return quantized + (["strict"] if evaluation.get("strict") else [])


def _with_baselines(
    evaluation: Evaluation, labels: Mapping[str, str], split: str = ""
) -> dict[str, str]:
    """Return some scores of an evaluation, keyed by label, each baseline after its metric."""
    texts = {}
    for name, label in labels.items():
        texts[label] = shown(evaluation, name)
        if name == "accuracy" and (score := shown(evaluation, "majority_accuracy")):
            always = f"always predicting {evaluation['majority_class']!r}"
            texts[f"{split}majority baseline"] = f"{score} ({always})"
        if name == "micro_f1" and (score := shown(evaluation, "constant_micro_f1")):
            texts[f"{split}constant baseline"] = f"{score} (always predicting the same labels)"
        if name == "mse" and (score := shown(evaluation, "mean_baseline_mse")):
            texts[f"{split}mean baseline"] = f"{score} (always predicting the mean of train.tsv)"
    return texts


def _deciding(counts: list[int]) -> str:
    """Return the fraction of the examples that each window decided, as one line."""
    shares = (f"{number}: {percent(count / sum(counts))}" for number, count in enumerate(counts, 1))
    return ", ".join(shares)


def score_on(split: str, evaluation: Evaluation, metric: str) -> dict[str, str]:
    """Return a score on a split and the baseline of the same split, keyed by name."""
    return _with_baselines(evaluation, {metric: f"{split} {LABELS[metric]}"}, f"{split} ")


def outcome(best: Evaluation, metric: str) -> dict[str, str]:
    """Return the dev scores of the best checkpoint of a run, keyed by name."""
    labels = {name: f"dev {LABELS[name]} of the best checkpoint" for name in ordered(metric)}
    labels[metric] = f"best dev {LABELS[metric]}"
    found = _with_baselines(best, labels, "dev ")
    found[labels[metric]] += f" (update {best['update']:,})"
    found["note"] = warning(best)
    return {name: value for name, value in found.items() if value}


def sentence(evaluation: Evaluation, metric: str, with_baseline: bool) -> str:
    """Return the scores of an evaluation on dev.tsv as one line, starting with `metric`."""
    said = {
        name: f"{LABELS[name]} {score}"
        for name in ordered(metric)
        if (score := shown(evaluation, name))
    }
    if with_baseline and evaluation.get("majority_accuracy") is not None:
        said["accuracy"] += f" (majority baseline {evaluation['majority_accuracy']:.4f})"
    return f"dev {', '.join(said.values())}"


def mean_loss(loss: float | None, examples: int, more: str = "") -> str:
    """Return a text with a mean training loss, the number of examples and `more`, or ""."""
    span = counted(examples, "example")
    return "" if loss is None else f"{loss:.4f} (mean over the last {span}{more})"


def noise_scale(facts: dict[str, Any] | None) -> str:
    """Return `batch_advice.noise_facts` as a text; empty for None."""
    if facts is None:
        return ""
    scale, error = facts["noise_scale"], facts["standard_error"]
    value = f"above {facts['lowest']:,.0f}" if scale is None else f"{scale:,.0f}"
    if scale is not None and error is not None:
        value += f" ± {error:,.0f}"
    return f"{value} (updates {facts['first_update']:,} to {facts['last_update']:,})"


def one_class(evaluation: Evaluation) -> str:
    """Return a warning if a model predicts one class for all examples of several, else ""."""
    only = evaluation.get("only_prediction")
    if only is None or evaluation.get("majority_accuracy") == 1:
        return ""
    return f"the model predicts class {only!r} for all {evaluation['examples']:,} examples"


def near_baseline(evaluation: Evaluation) -> str:
    """Return a warning if the scores are hardly better than those of a constant prediction.

    They are if the difference to the baseline is below two standard errors and, because a model
    may tell rare classes apart without a higher accuracy, the correlation of predictions and labels
    is weak. A mean squared error above its baseline is always reported. Otherwise, the result is
    an empty string.
    """
    examples, share = evaluation.get("examples"), evaluation.get("majority_accuracy")
    squared = evaluation.get("mean_baseline_mse")
    constant = evaluation.get("constant_micro_f1")
    if not examples or share == 1 or squared == 0:
        return ""
    if constant is not None:
        name, kind, baseline, correlation = "micro_f1", "constant", constant, None
    elif share is not None:
        name, kind, baseline = "accuracy", "majority", share
        correlation = evaluation.get("matthews_correlation")
    elif squared is not None:
        name, kind, baseline = "mse", "mean", squared
        correlation = evaluation.get("pearson")
    else:
        return ""
    score = evaluation[name]
    if name == "mse":
        # The variance of a squared error is twice its squared mean, if the error is Gaussian.
        gain, error = baseline - score, baseline * math.sqrt(2 / examples)
    else:
        gain, error = score - baseline, math.sqrt(baseline * (1 - baseline) / examples)
    # Without correlation, its standard error is 1 / sqrt(examples).
    weak = correlation is None or correlation < max(2 / math.sqrt(examples), _WEAK)
    if not (gain < 2 * error and weak) and not (squared is not None and gain <= 0):
        return ""
    how = "barely better" if gain > 0 else "not better"
    values = f"{written(score, name)} is {how} than the {kind} baseline {written(baseline, name)}"
    return f"{LABELS[name]} {values}"


def no_entity(evaluation: Evaluation) -> str:
    """Return a warning if no entity that a model found is correct, else ""."""
    if evaluation.get("entity_f1") != 0:
        return ""
    tags = f"although {evaluation['accuracy']:.1%} of the tags are"
    return f"no entity is correct, {tags}, because most words are outside of entities"


def warning(evaluation: Evaluation) -> str:
    """Return why a model may have learned nothing; empty without such evidence."""
    return one_class(evaluation) or no_entity(evaluation) or near_baseline(evaluation)


def confusions(names: Sequence[str], counts: Sequence[Sequence[int]]) -> list[tuple[int, str, str]]:
    """Return the mistakes in a confusion matrix [labels, predictions], the most frequent first.

    A mistake is its number, the name of the label and that of the prediction.
    """
    mistakes = [
        (count, label, predicted)
        for label, row in zip(names, counts, strict=True)
        for predicted, count in zip(names, row, strict=True)
        if count and label != predicted
    ]
    return sorted(mistakes, key=lambda mistake: -mistake[0])
