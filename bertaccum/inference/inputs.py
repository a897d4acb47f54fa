"""Checks for the use of a trained model that run before TensorFlow is imported."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from pathlib import Path

from bertaccum.bert.encoder_config import read_bert_config
from bertaccum.bert.tensor_files import safetensors
from bertaccum.errors import ConfigError, InputError, RunError, cannot_create
from bertaccum.inference.push import check_push
from bertaccum.options import commands
from bertaccum.runs.paths import RunPaths
from bertaccum.runs.record import read_run_config
from bertaccum.system.temporary_paths import beside, is_temporary
from data_prep.tables.tsv import default_split

# Formats of weights without code, and the programs that load them.
_OF_PROGRAMS = {commands.HUGGINGFACE: "transformers", commands.GOOGLE: "run_classifier.py"}


def evaluated_table(config: commands.EvalConfig) -> Path:
    """Return the path of the table on which a run's best checkpoint is evaluated."""
    of_run = _checked(config.run, classifier=True)
    if config.quantize == commands.INT8 and of_run.windows > 1:
        what = f"`quantize` {config.quantize} cannot evaluate a model that reads several windows"
        raise ConfigError(what, "omit it")
    data = Path(of_run.data)
    split = config.split or default_split(data)
    table = Path(config.file) if config.file else data / f"{split}.tsv"
    if not table.exists():
        raise InputError("there is no such file", "choose another `split` or `file`", path=table)
    return table


def check_predict(config: commands.PredictConfig) -> commands.TrainConfig:
    """Return the options of a run; check that it has a best checkpoint and the texts exist."""
    of_run = _checked(config.run)
    if config.file not in (None, "-") and not Path(config.file).exists():
        raise InputError("there is no such file", "check the path", path=config.file)
    return of_run


def check_serve(config: commands.ServeConfig) -> None:
    """Check that the service can run in this thread, and that a run has a best checkpoint."""
    with contextlib.suppress(RuntimeError):  # There is no event loop.
        asyncio.get_running_loop()
        what = "the service cannot run where an event loop runs, such as in a notebook"
        raise RunError(what, "run `bertaccum serve` in a terminal")
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"the service needs the package {package}", "run pip install 'bertaccum[serve]'"
            )
    _checked(config.run, classifier=True)


def _checked(run: str, classifier: bool = False) -> commands.TrainConfig:
    """Return the options of a run, or raise InputError if it has no best checkpoint.

    Args:
      classifier: Whether its model must be a classifier.
    """
    config = read_run_config(Path(run))
    if classifier and config.predicts_masked:
        remedy = f"train a classifier with `init_checkpoint` {run}, or use `bertaccum predict`"
        raise InputError("was pretrained, so it has no classes", remedy, path=run)
    RunPaths(Path(run)).best_checkpoint()
    return config


def check_export(config: commands.ExportConfig) -> None:
    """Raise ConfigError unless `out` can be created and the format can hold the model."""
    if config.quantize != commands.NOT_QUANTIZED and config.format != commands.TFLITE:
        raise ConfigError(
            f"`quantize` {config.quantize} does not apply to `format` {config.format}",
            f"omit it, or use `format` {commands.TFLITE}",
        )
    if config.inputs == commands.TOKENS and config.format in _OF_PROGRAMS:
        raise ConfigError(
            f"`inputs` {commands.TOKENS} does not apply to `format` {config.format}",
            f"omit it, or use `format` {commands.SAVEDMODEL}",
        )
    of_run = read_run_config(Path(config.run))
    if of_run.predicts_masked and config.format not in _OF_PROGRAMS:
        raise ConfigError(
            f"`format` {config.format} is for classifiers, but {config.run} was pretrained",
            f"use `format` {' or '.join(_OF_PROGRAMS)}",
        )
    if config.format == commands.GOOGLE:
        _check_google(RunPaths(Path(config.run)).best_checkpoint())
    if config.push is not None:
        check_push(config)
    elif config.private:
        raise ConfigError("`private` applies only to `push`", "omit it, or set `push`")
    run = RunPaths(Path(config.run))
    windows = of_run.windows
    _check_new_folder(Path(config.folder))
    if windows > 1:
        _check_windows(config, windows)
    if config.format == commands.HUGGINGFACE:
        safetensors()
    run.best_checkpoint()


def _check_google(best: Path) -> None:
    """Raise ConfigError if Google's code would compute something else than the model."""
    encoder = read_bert_config(best / "bert_config.json")
    unusual = encoder.unusual()
    if encoder.hidden_act == "gelu_erf":  # In Google's code, gelu is the approximation.
        unusual["hidden_act"] = encoder.hidden_act
    if encoder.type_vocab_size == 1:  # Google's code adds nothing to the second text of a pair.
        unusual["type_vocab_size"] = 1
    if unusual:
        differences = ", ".join(f"{name} {value}" for name, value in unusual.items())
        raise ConfigError(
            f"`format` {commands.GOOGLE} is for BERT as published, but the run has {differences}",
            f"use `format` {commands.HUGGINGFACE}",
        )


def _check_windows(config: commands.ExportConfig, windows: int) -> None:
    """Raise ConfigError if the export cannot hold a model that reads texts in windows."""
    if config.format == commands.SAVEDMODEL and config.inputs == commands.TEXTS:
        return
    model = f"a model that reads up to {windows} windows of a text"
    if program := _OF_PROGRAMS.get(config.format):
        raise ConfigError(
            f"`format` {config.format} cannot hold {model}, because {program} has no such"
            " classifier",
            f"use `format` {commands.SAVEDMODEL}",
        )
    raise ConfigError(
        f"a model of token IDs cannot hold {model}, because windows are cut from the text",
        f"use `format` {commands.SAVEDMODEL} with `inputs` {commands.TEXTS}",
    )


def _check_new_folder(path: Path) -> None:
    """Raise ConfigError if `out` is not a new or empty folder or cannot be created."""
    if not path.name:
        raise ConfigError(f"`out` {path} is not a valid name", "choose a new folder")
    try:
        parent = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
        taken = path.is_symlink() or path.is_file()
        if path.is_dir():  # A killed export may have left a temporary folder in it.
            taken = taken or not all(is_temporary(one, path.name) for one in path.iterdir())
    except OSError as error:
        raise ConfigError(f"`out` {path} is not a valid name ({error.strerror})") from None
    if taken:
        raise ConfigError(
            f"{path} exists", "delete an earlier export, or choose another folder with `out`"
        )
    trial = beside(parent / path.name)
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        where = "cannot be written" if path.is_dir() else f"cannot be created in {parent}"
        raise cannot_create(f"`out` {path} {where}", error) from None
