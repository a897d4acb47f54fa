"""`bertaccum doctor` and `bertaccum models`: what is installed, and what can be downloaded."""

from __future__ import annotations

from typing import Any

import click

from bertaccum import api
from bertaccum.cli.display import sentences, tables
from bertaccum.cli.options import command
from bertaccum.cli.shared import print_result
from bertaccum.errors import RunError
from bertaccum.system.phrases import counted


@command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON record, for a bug report.")
def doctor(as_json: bool) -> None:
    """Check the installation, and print what a bug report needs.

    The checks cover the versions of all packages, the devices, memory, the cache folder, and
    training: a tiny model is trained with one micro-batch per update and with two, and must get
    the same weights. Nothing is downloaded, and no file is kept. The exit code is 1 if a check
    failed.

    \b
    Examples:
      bertaccum doctor
      bertaccum doctor --json > doctor.json
    """
    sentences.note("checking the installation: importing TensorFlow and training a tiny model")
    record = api.doctor()
    print_result(as_json, record, _show)
    failed = sum(check["status"] == "failed" for check in record["checks"])
    if failed:
        which = counted(failed, "check")
        raise RunError(f"{which} failed", "follow the advice below each failed check")


def _show(record: dict[str, Any]) -> None:
    """Print the record in plain text: rich may not be installed."""
    build = record["tensorflow"].get("build") or {}
    facts = {
        "bertaccum": record["bertaccum"],
        "system": record["system"],
        "TensorFlow's CUDA": build.get("cuda_version") or "none",
        "TensorFlow's cuDNN": build.get("cudnn_version") or "none",
        "TensorFlow uses": " ".join(record["processor"]["used"] or []) or "unknown",
        **record["environment"],
    }
    rows = [("", name, value) for name, value in facts.items()]
    for check in record["checks"]:
        rows.append((check["status"], check["subject"], check["detail"]))
        rows += [("", "", check["remedy"])] if check["remedy"] else []
    width = max(len(name) for _, name, _ in rows)
    for status, name, text in rows:
        sentences.result(f"{status:9}{name:{width}}  {text}", 9 + width + 2)


@command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON record for each model.")
def models(as_json: bool) -> None:
    """List the released models that train can start from.

    `--model` and `--init-checkpoint` select Google's models by their names. `train` checks
    a download with the MD5 digest that the server reports, and its files with their SHA-256 if it
    is known. `--init-checkpoint OWNER/NAME` selects any BERT, DistilBERT or ELECTRA on the Hugging
    Face Hub; some of them are in the list.

    \b
    Examples:
      bertaccum models
      bertaccum models --json
      bertaccum train --model bert-base-multilingual-cased
      bertaccum train --init-checkpoint distilbert/distilbert-base-uncased
    """
    records = api.models()
    if as_json:
        for record in records:
            sentences.result_json(record, indent=None)
    else:
        tables.print_models(records)
