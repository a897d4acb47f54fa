"""The model card of a run: what it was trained on, how, and how good it is, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from bertaccum.files import write_text
from bertaccum.metrics import LABELS, METRICS, baseline, one_class, shown
from bertaccum.reporting import run_facts
from bertaccum.reporting.curves import default_span, read_series
from bertaccum.reporting.run_record import FINISHED, Record, read_record, undamaged

# Metrics by the names that the Hugging Face hub has for them.
_HUB_METRICS = {
    "accuracy": "accuracy",
    "macro_f1": "f1",
    "matthews_correlation": "matthews_correlation",
    "loss": "loss",
}


def write_card(run: Path) -> None:
    """Writes `model-card.md` into the folder of a run that is over; else it does nothing.

    Raises:
      InputError: the folder's files are damaged.
      OSError: it cannot be written.
    """
    record = read_record(run)
    if record.status == FINISHED:
        write_text(record.paths.card, model_card(record))


def model_card(
    record: Record, library: str = "tf-keras", language: str | None = None, usage: str | None = None
) -> str:
    """A card with the front matter that the Hugging Face hub reads.

    Args:
      record: of the run.
      library: that loads the files beside the card, by its name on the hub.
      language: of the texts, as an ISO code, if that is known.
      usage: Markdown that shows how to use these files; by default the run folder's.

    Raises:
      InputError: the run's files are damaged.
    """
    with undamaged(record.paths.path):
        return "\n\n".join(part for part in _parts(record, library, language, usage) if part) + "\n"


def _parts(record: Record, library: str, language: str | None, usage: str | None) -> list[str]:
    return [
        _front_matter(record, library, language),
        f"# {_text(record.name)}",
        f"A text classifier: {_text(run_facts.model_name(record))}, fine-tuned on"
        f" {_text(run_facts.data_name(record))} with bertaccum. It tells apart"
        f" {_text(', '.join(run_facts.class_names(record)) or 'the classes of its data')}.",
        "## Results",
        _pairs(run_facts.results(record)),
        *_evaluations(record),
        "## Data",
        f"Folder `{_code(run_facts.data_name(record))}`.",
        _pairs(run_facts.digests(record) | run_facts.truncation(record)),
        "## Recipe",
        "What decides the updates; the same values on the same data give the same model.",
        _pairs(run_facts.options(record.config, deciding=True)),
        "## Plan",
        _about_plan(record),
        _pairs(run_facts.plan(record)),
        "## Curve",
        *_curve(record),
        "## Versions",
        _pairs(run_facts.versions(record)),
        "## Use",
        usage or _usage(record),
    ]


def _front_matter(record: Record, library: str, language: str | None) -> str:
    known: dict[str, Any] = {"language": language} if language else {}
    known |= {
        "library_name": library,
        "pipeline_tag": "text-classification",
        "tags": ["bert", "text-classification", "bertaccum"],
        "metrics": ["accuracy", "f1", "matthews_correlation"],
    }
    if found := run_facts.evaluations(record):
        results = [_hub_result(record, name, values) for name, values in found.items()]
        known["model-index"] = [{"name": record.name, "results": results}]
    return f"---\n{yaml.safe_dump(known, sort_keys=False, allow_unicode=True)}---"


def _hub_result(record: Record, name: str, values: dict[str, Any]) -> dict[str, Any]:
    """One evaluation as the hub's model-index has it."""
    data = run_facts.data_name(record)
    found = [
        {"type": kind, "name": LABELS[metric], "value": round(values[metric], 4)}
        for metric, kind in _HUB_METRICS.items()
        if values.get(metric) is not None
    ]
    return {
        "task": {"type": "text-classification"},
        "dataset": {"name": f"{data} ({name})", "type": data, "split": name},
        "metrics": found,
    }


def _about_plan(record: Record) -> str:
    if record.config.dropout_stream == "micro-batch":
        return "How each window was cut to fit in memory; dropout's masks follow from it."
    return "How each window was cut to fit in memory, which does not change the updates."


def _evaluations(record: Record) -> list[str]:
    rows = [
        {
            "evaluated on": Path(str(values.get("data", name))).name,
            "examples": f"{values['examples']:,}",
            **{LABELS[name]: shown(values, name) for name in METRICS},
            "majority baseline": baseline(values),
        }
        for name, values in run_facts.evaluations(record).items()
    ]
    warnings = [
        f"On {_text(Path(str(values.get('data', name))).name)}, {_text(warning)}."
        for name, values in run_facts.evaluations(record).items()
        if (warning := one_class(values))
    ]
    return ["By `bertaccum eval`, of the best model:", _table(rows), *warnings] if rows else []


def _curve(record: Record) -> list[str]:
    series = read_series(record)
    span = default_span([series])
    rows = [run_facts.shown_point(point, series.metric) for point in run_facts.points(series, span)]
    if not rows:
        return ["There is no update yet."]
    return [f"Training loss: mean over the last {span:,} examples.", _table(rows)]


def _usage(record: Record) -> str:
    folder = f"runs/{record.name}"
    safe = folder if re.fullmatch(r"[\w./-]+", folder) else "RUN"
    return (
        f"```sh\nbertaccum predict --run {safe}    # classes of new texts\n"
        f"bertaccum eval --run {safe}       # how good it is on test.tsv\n```\n\n"
        "The folder `best` holds the weights as a TensorFlow checkpoint, with the vocabulary"
        " (`vocab.txt`), the dimensions (`bert_config.json`) and the classes (`labels.json`)."
    )


def _pairs(values: Mapping[str, str]) -> str:
    """A table of two columns, without what is not known."""
    return _table([{"": name, " ": value} for name, value in values.items() if value])


def _table(rows: Iterable[Mapping[str, str]]) -> str:
    rows = list(rows)
    if not rows:
        return ""
    lines = [map(str.strip, rows[0]), *(map(_text, row.values()) for row in rows)]
    head, *body = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def _text(value: str) -> str:
    """As text in Markdown: on one line, and with no meaning but its own."""
    return re.sub(r"([\\`*_\[\]<>|#&])", r"\\\1", " ".join(value.split()))


def _code(value: str) -> str:
    """As code in Markdown."""
    return " ".join(value.replace("`", "'").split())
