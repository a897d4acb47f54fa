"""A run's model card, written in Markdown: the run's data, recipe and results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from bertaccum.options.metrics import LABELS, METRICS, modes, scores, warning
from bertaccum.options.task_names import MASKED_LM, TOKEN_CLASSIFICATION
from bertaccum.reporting import run_facts
from bertaccum.reporting.curves import default_span, read_series
from bertaccum.reporting.rendering import render
from bertaccum.runs.record import FINISHED, Record, read_record, undamaged
from bertaccum.system.atomic import write_text
from bertaccum.system.hub_names import parse_pinned

# Names of the metrics on the Hugging Face hub.
_HUB_METRICS = {
    **{name: name for name in METRICS},
    **dict.fromkeys(("entity_f1", "macro_entity_f1", "micro_f1", "macro_f1"), "f1"),
    **{"pearson": "pearsonr", "spearman": "spearmanr", "perplexity": "perplexity"},
}


def write_card(run: Path) -> None:
    """Write `model-card.md` into the folder of a run if the run has finished."""
    record = read_record(run)
    if record.status == FINISHED:
        write_text(record.paths.card, model_card(record))


def model_card(record: Record, library: str = "tf-keras", usage: str | None = None) -> str:
    """Return a model card with front matter for the Hugging Face hub.

    Args:
      usage: Markdown text on how to use the files; by default, on how to use the run folder.
    """
    with undamaged(record.paths.path):
        series, evaluated = read_series(record), run_facts.evaluations(record)
        evaluations, warnings = _evaluations(evaluated)
        folder = f"runs/{record.name}"
        return render(
            "model-card.md.j2",
            **run_facts.facts(record, series, default_span([series])),
            task=record.config.task,
            front_matter=_front_matter(record, evaluated, library),
            classes=", ".join(run_facts.class_names(record)) or "not recorded",
            evaluations=evaluations,
            warnings=warnings,
            recipe=run_facts.options(record.config, deciding=True),
            dropout_follows_cut=record.config.dropout_stream == "micro-batch",
            usage=usage,
            run=folder if re.fullmatch(r"[\w./-]+", folder) else "RUN",
        )


def _front_matter(record: Record, evaluated: dict[str, dict[str, Any]], library: str) -> str:
    best = record.best or {}
    kinds = [kind for metric, kind in _HUB_METRICS.items() if metric in best and metric != "loss"]
    kinds_of_tasks = {TOKEN_CLASSIFICATION: "token-classification", MASKED_LM: "fill-mask"}
    kind = kinds_of_tasks.get(record.config.task or "", "text-classification")
    known: dict[str, Any] = {
        "library_name": library,
        "pipeline_tag": kind,
        "tags": ["bert", kind, "bertaccum"],
        "metrics": list(dict.fromkeys(kinds)),
    }
    if base := parse_pinned(record.config.init_checkpoint):
        known["base_model"] = base.name
    if evaluated:
        results = [_hub_result(record, kind, name, of) for name, of in evaluated.items()]
        known["model-index"] = [{"name": record.name, "results": results}]
    return yaml.safe_dump(known, sort_keys=False, allow_unicode=True)


def _hub_result(record: Record, task: str, name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return one evaluation in the format of the hub's model-index."""
    data = run_facts.data_name(record)
    found = [
        {"type": kind, "name": LABELS[metric], "value": round(values[metric], 4)}
        for metric, kind in _HUB_METRICS.items()
        if values.get(metric) is not None
    ]
    return {
        "task": {"type": task},
        "dataset": {"name": f"{data} ({name})", "type": data, "split": name},
        "metrics": found,
    }


def _evaluations(evaluated: dict[str, dict[str, Any]]) -> tuple[list[dict[str, str]], list[str]]:
    """Return a table row for each evaluation, and a warning for each that needs one."""
    rows, warnings = [], []
    paths = {name: Path(str(values.get("data", name))) for name, values in evaluated.items()}
    names = [path.name for path in {*paths.values()}]
    for name, values in evaluated.items():
        file = paths[name].name
        # The path may name the user, so the name of the evaluation tells equal names apart.
        details = [*modes(values), *([name] if names.count(file) > 1 else [])]
        file += f" ({', '.join(details)})" if details else ""
        rows.append({"evaluated on": file, "examples": f"{values['examples']:,}", **scores(values)})
        if doubt := warning(values):
            warnings.append(f"On {file}, {doubt}.")
    # A row may lack a metric that another one has.
    heads = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name, "") for name in heads} for row in rows], warnings
