"""The run folder: where a run writes what it was, what it did and what it made."""

from __future__ import annotations

import dataclasses
import datetime
import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from bertaccum.bert.presets import EncoderConfig, read_bert_config, write_bert_config
from bertaccum.bert.vocabulary import read_vocabulary
from bertaccum.config import TrainConfig
from bertaccum.errors import ConfigError, InputError, RunError
from bertaccum.files import read_text, write_text
from bertaccum.training.dataset import Labels

RUNS = Path("runs")
LATEST = "latest"


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """What a folder of weights needs beside them to be used: dimensions, words, classes."""

    encoder: EncoderConfig
    vocabulary: list[str]
    labels: Labels

    def write(self, folder: Path) -> None:
        write_bert_config(folder / "bert_config.json", self.encoder)
        write_text(folder / "vocab.txt", "\n".join(self.vocabulary) + "\n")
        write_text(folder / "labels.json", _json(dataclasses.asdict(self.labels)))

    @staticmethod
    def read(folder: Path) -> ModelFiles:
        """Reads what `write` wrote.

        Raises:
          InputError: a file is missing or damaged.
        """
        path = folder / "labels.json"
        try:
            labels = Labels(**json.loads(read_text(path)))
        except (ValueError, TypeError) as error:
            raise InputError(f"cannot be read ({error})", path=path) from None
        return ModelFiles(
            read_bert_config(folder / "bert_config.json"),
            read_vocabulary(folder / "vocab.txt"),
            labels,
        )


class RunFolder:
    """Paths and writers of one run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.plan = path / "plan.json"
        self.metrics = path / "metrics.jsonl"
        self.eval = path / "eval.jsonl"
        self.summary = path / "summary.json"
        self.checkpoints = path / "checkpoints"
        self.best = path / "best"

    @staticmethod
    def new_path(out: str | None) -> Path:
        """Where a new run goes.

        Raises:
          ConfigError: something is there already.
        """
        path = Path(out) if out else RUNS / datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        if path.exists() or path.is_symlink():
            raise ConfigError(f"--out {path} exists", "name another folder, or remove it first")
        return path

    @staticmethod
    def create(path: Path, config: TrainConfig) -> RunFolder:
        """Makes the folder with its configuration, and points `runs/latest` to it.

        Raises:
          RunError: the folder cannot be written.
        """
        folder = RunFolder(path)
        try:
            folder.checkpoints.mkdir(parents=True)
            write_text(folder.config, _yaml(config))
            _point_latest_to(path)
        except OSError as error:
            raise RunError(
                f"cannot be written ({error.strerror})", "choose another --out", path=path
            ) from None
        return folder

    def write_json(self, path: Path, values: dict[str, Any]) -> None:
        write_text(path, _json(values))

    def append(self, path: Path, record: dict[str, Any]) -> None:
        """Adds one line to `metrics.jsonl` or `eval.jsonl`."""
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def replace_best(self, written: Path) -> None:
        """Puts a finished folder in the place of `best`."""
        old = self.path / ".best-old"
        if self.best.exists():
            self.best.rename(old)
        written.rename(self.best)
        shutil.rmtree(old, ignore_errors=True)


def read_run_config(run: Path) -> TrainConfig:
    """The configuration of an existing run.

    Raises:
      InputError: there is no run, or its configuration is damaged.
    """
    path = run / "config.yaml"
    if not path.is_file():
        raise InputError(
            "there is no run here", "train first, or name a run folder with --run", path=run
        )
    try:
        return TrainConfig(**yaml.safe_load(read_text(path)))
    except (yaml.YAMLError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"is not a run's configuration ({reason})", path=path) from None


def _point_latest_to(path: Path) -> None:
    """`runs/latest`, for runs that are in `runs`; a relative link survives moving the folder."""
    if path.resolve().parent != RUNS.resolve():
        return
    temporary = path.parent / f".{LATEST}-{path.name}"
    temporary.symlink_to(path.name, target_is_directory=True)
    temporary.replace(path.parent / LATEST)


def _yaml(config: TrainConfig) -> str:
    values = {k: v for k, v in dataclasses.asdict(config).items() if v is not None and k != "out"}
    header = "# What decided this run; `bertaccum train --config` with this file repeats it.\n"
    return header + yaml.safe_dump(values, sort_keys=False)


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"
