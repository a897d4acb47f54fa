"""Resuming a run: its configuration, and checks that its inputs have not changed."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import itertools
from pathlib import Path
from typing import Any

from bertaccum.bert.checkpoint_files import absolute_path, lasting_name
from bertaccum.bert.presets import PRESETS
from bertaccum.data.run_inputs import RunInputs
from bertaccum.distribution.collectives import all_gather, differences
from bertaccum.distribution.device_memory import device_name
from bertaccum.distribution.topology import Topology
from bertaccum.errors import ConfigError, InputError
from bertaccum.options.commands import TrainConfig
from bertaccum.options.fields import AUTO, ON, means_the_same, plain_options
from bertaccum.options.pretraining import hidden_options, text_paths
from bertaccum.runs.folder import RunFolder
from bertaccum.runs.paths import NOT_SAVED_YET, RunPaths
from bertaccum.runs.record import (
    OUT_OF_MEMORY,
    config_to_resume,
    read_run_config,
    undamaged,
    whole_lines,
)
from bertaccum.system.atomic import complete_folder
from bertaccum.system.files import read_json, read_mapping
from bertaccum.system.hub_names import model_named, parse_pinned
from bertaccum.system.phrases import counted
from bertaccum.training.compilation import Compilation
from bertaccum.training.inputs import gone_files
from bertaccum.training.teacher import TEACHER
from bertaccum.version import __version__
from data_prep.tables.manifest import is_prepared

_MODELS = ("init_checkpoint", "teacher")
_PATHS = (
    *_MODELS,
    *("data", "text", "bert_config", "vocab", "add_words", "offload_folder", "unlabelled"),
)
# Raising these options, which have no limit by default, makes a finished run continue.
LONGER = ("max_updates", "patience")
# These options decide when a run ends, and all workers must stop after the same update.
_ENDING = (*LONGER, "max_nonfinite")
# These options change the updates if dropout masks are seeded per micro-batch.
_CUTTING = ("micro_batch", "cut", "offload", "strategy", "replicas")


def resolved_config(config: TrainConfig, model: str) -> TrainConfig:
    """Return a copy of a configuration that is valid in any working directory.

    Args:
      config: Options of a run.
      model: Name of the model to initialize from if neither `init_checkpoint` nor `model` is set.
    """
    checkpoint = config.init_checkpoint or config.model or model
    config = dataclasses.replace(config, init_checkpoint=checkpoint)
    # The hidden `data` of pretraining is the whole list `text`, which need not be a path.
    hidden = hidden_options(type(config))
    paths = [name for name in _PATHS if hasattr(config, name) and name not in hidden]
    resolved = {name: _resolved(name, getattr(config, name)) for name in paths}
    return dataclasses.replace(config, **resolved)


def resumed_config(run: Path, asked: dict[str, Any]) -> TrainConfig:
    """Return the configuration of a run to resume, including the options that the user changes.

    Args:
      run: Run folder.
      asked: Options that the user set. Those that affect the updates must have their old values.

    Raises:
      ConfigError: An option would change the updates or has no effect, or `out` is set.
      InputError: The folder contains no run, or its config.yaml was edited in a way that would
        change the updates.
    """
    if "out" in asked:
        raise ConfigError(
            f"`resume` {run} and `out` {asked['out']} both name the run folder", "omit `out`"
        )
    began = config_to_resume(run, asked)
    asked = plain_options(began, asked)
    _check_options(run, began)
    fixed = _fixed_options(began)
    # A run keeps what `auto` chose when it began.
    kept = [name for name in ("precision", "compile") if asked.get(name) == AUTO]
    wanted = {name: asked[name] for name in asked.keys() & fixed - {*kept}}
    if other := _changes(run, began, wanted):
        raise ConfigError(
            f"`resume` {run} cannot change {other}",
            "omit these options, or start a new run with another `out`",
        )
    free = {name: value for name, value in asked.items() if name not in fixed}
    return dataclasses.replace(began, **free, out=str(run))


def changed_plan_options(folder: RunFolder, config: TrainConfig, replicas: int) -> list[str]:
    """Return the options that give a resumed run another plan than before.

    Args:
      config: Options of the resumed run.
      replicas: Number of devices on which it resumes, which depends on the machine.

    Raises:
      ConfigError: Dropout masks depend on the number of devices, which has changed.
    """
    with undamaged(folder.path):
        devices = int(_read_inputs(folder, []).get("replicas", replicas))
    if devices != replicas and "replicas" in deciding_options(config):
        was, now = counted(devices, "device"), counted(replicas, "device")
        raise ConfigError(
            f"{folder.path} began on {was}, and its dropout masks would differ on {now}",
            f"use {was}, or start a new run with another `out`",
        )
    before, after = (
        {name: getattr(one, name) for name in ("micro_batch", "cut", "memory_limit")}
        | dict(zip(("recompute", "offload"), one.saving, strict=True))
        | {"replicas": number}
        for one, number in ((read_run_config(folder.path), devices), (config, replicas))
    )
    return [name for name, value in after.items() if value != before[name]]


def rounding_note(config: TrainConfig, changed: list[str]) -> str | None:
    """Return a note if changed options of the plan round more coarsely than float32, else None."""
    types = {config.precision.removeprefix("mixed_"), config.accumulator_dtype} - {"float32"}
    rounded = [f"`{name}`" for name in changed if name != "memory_limit"]
    if not types or not rounded:
        return None
    exact = "the updates match those of the unchanged run only to the precision of"
    return f"with another {' and '.join(rounded)}, {exact} {' and '.join(sorted(types))}"


def check_same_options(run: Path, config: TrainConfig) -> None:
    """Raise ConfigError if a run began with other options than `config`.

    Options that a resumed run can change may differ, but a limit to its updates must be repeated.
    """
    began = read_run_config(run)
    fixed = _fixed_options(began) - {"out"}
    wanted = {name: getattr(config, name, None) for name in fixed}
    limits = {name: getattr(began, name) for name in LONGER if getattr(config, name) is None}
    omitted = [f"`{name}` {limit}" for name, limit in limits.items() if limit is not None]
    if other := _changes(run, began, wanted):
        problem = f"cannot change {other}"
        remedy = "repeat the options with which it began"
    elif omitted:
        problem, remedy = f"has {' and '.join(omitted)}", "repeat this limit or raise it"
    else:
        return
    what = f"`out` contains the run {run}, which {problem}"
    raise ConfigError(what, f"{remedy}, or choose another `out`")


def _fixed_options(began: TrainConfig) -> set[str]:
    """Return the options that must keep their values while a run is resumed.

    If a file is gone, another path may name it: `check_inputs` compares the contents.
    """
    fixed = {field.name for field in dataclasses.fields(began) if not field.metadata["free"]}
    return (fixed - gone_files(began)) | deciding_options(began).keys()


def _changes(run: Path, began: TrainConfig, wanted: dict[str, Any]) -> str:
    """Return the options whose values differ from those with which a run began, for a message."""
    with undamaged(run):
        named = set((read_mapping(RunPaths(run).inputs) or {}).get("named", []))
    # The program chose the values of options that were not set.
    chosen = {name for name, value in wanted.items() if value in (None, AUTO)} - named
    return ", ".join(
        f"`{name}` to {'its default' if wanted[name] is None else wanted[name]} (was {was})"
        for name, was in vars(began).items()
        if name in wanted.keys() - chosen and not _is_same(name, wanted[name], began)
    )


def deciding_options(config: TrainConfig) -> dict[str, Any]:
    """Return the options that decide a run's updates and its best checkpoint, except files."""
    cutting = _CUTTING if config.dropout_stream == "micro-batch" else ()
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name in cutting
        or not (field.metadata["free"] or field.name in (*_PATHS, "out", "noise_scale"))
    }


def _check_options(run: Path, config: TrainConfig) -> None:
    """Raise InputError if config.yaml no longer has the options with which the run began."""
    with undamaged(run):
        began = dict((read_mapping(RunPaths(run).inputs) or {}).get("options", {}))
    changed = [
        f"`{name}` is {value}, but was {began[name]} when this run began"
        for name, value in deciding_options(config).items()
        if name in began and not means_the_same(name, value, began[name])
    ]
    if changed:
        raise InputError(
            ", and ".join(changed),
            "restore the old value, or start a new run with another `out`",
            path=RunPaths(run).config,
        )


def _is_same(name: str, value: Any, began: TrainConfig) -> bool:
    """Return whether an option has the value that it had when the run began."""
    was = getattr(began, name)
    if name in _MODELS and value and (asked := model_named(value)):
        repository = parse_pinned(was or "")
        return repository is not None and asked.same_as(repository)
    return means_the_same(name, _resolved(name, value), _before(began, name))


def _before(began: TrainConfig, name: str) -> Any:
    """Return the value that an option had when the run began; for a default model, its name."""
    if name == "model" and began.model is None and began.init_checkpoint in PRESETS:
        return began.init_checkpoint
    return _resolved(name, getattr(began, name))


def _resolved(name: str, value: Any) -> Any:
    if name in _MODELS:
        return value and lasting_name(value)
    if name == "text":
        return ",".join(absolute_path(path) for path in text_paths(value))
    if name in _PATHS:
        return value and absolute_path(value)
    if name == "deterministic":
        return is_deterministic(value)
    return value


def is_deterministic(wanted: bool | None) -> bool:
    """Return whether a run is deterministic; by default, only runs on a CPU are."""
    return device_name() == "CPU" if wanted is None else wanted


def inputs_of(inputs: RunInputs) -> dict[str, Any]:
    """Return the inputs that decide a run's updates, with digests instead of files."""
    if_used: dict[str, Any] = {}
    if inputs.corpus is not None:
        if_used["texts"] = inputs.store_digests[0]
    if inputs.unlabelled is not None:
        if_used["unlabelled"] = inputs.unlabelled.digest
    if inputs.teacher is not None:
        if_used[TEACHER] = inputs.teacher.digests
    return if_used | {
        **{t.name: d for t, d in zip(inputs.tsvs, inputs.tsv_digests, strict=True)},
        "labels": inputs.labels.values,
        "class names": inputs.labels.names,
        "files in manifest.json": [tsv.name for tsv in inputs.tsvs if is_prepared(tsv)],
        "vocabulary": hashlib.sha256(inputs.vocabulary.identity().encode()).hexdigest(),
        "model": dataclasses.asdict(inputs.source.encoder),
        "pretrained weights": inputs.source.weights_digest,
    }


def read_mark(folder: RunFolder) -> str:
    """Return the mark that distinguishes a run's checkpoints from those of other runs.

    Raises:
      InputError: The run's inputs.json is damaged.
    """
    return str(_read_inputs(folder, ["mark"])["mark"])


def recorded_compilation(folder: RunFolder, config: TrainConfig) -> Compilation:
    """Return whether a run compiles its steps, and how it cuts windows, as when it began.

    Raises:
      InputError: The run's inputs.json is damaged.
    """
    values = _read_inputs(folder, ["cutting"])["cutting"]
    try:
        return Compilation(config.compile == ON).with_numbers(values)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError(f"is damaged ({error})", "start a new run", path=folder.inputs) from None


def check_inputs(folder: RunFolder, inputs: RunInputs) -> None:
    """Raise InputError if data, vocabulary, model or weights have changed since the run began."""
    now = inputs_of(inputs)
    check_unchanged(_read_inputs(folder, [*now]), now, "run", folder.path)


def check_unchanged(before: dict[str, Any], now: dict[str, Any], what: str, path: Path) -> None:
    """Raise InputError if inputs, as `inputs_of` returns them, have changed.

    Args:
      before: The inputs when the run or sweep began.
      what: `run` or `sweep`.
      path: Its folder.
    """
    if changed := [name for name, value in now.items() if value != before[name]]:
        raise InputError(
            f"{', '.join(changed)} changed since this {what} began",
            f"restore the original files, or start a new {what} with another `out`",
            path=path,
        )


def write_changes(folder: RunFolder, config: TrainConfig, asked: dict[str, Any]) -> None:
    """Write the options of a resumed run, and that the user set those that differ from before.

    Args:
      config: Options of the resumed run.
      asked: Options that the user set.
    """
    inputs = _read_inputs(folder, [])
    free = asked.keys() - _fixed_options(read_run_config(folder.path))
    named = {*inputs.get("named", [])} - free | {*named_by_user({n: asked[n] for n in free})}
    folder.write_json(folder.inputs, inputs | {"named": sorted(named)})
    folder.write_config(config)


def named_by_user(options: dict[str, Any]) -> list[str]:
    """Return the names of the options whose values the user chose, for inputs.json."""
    # With None or `auto`, the program chooses the value.
    return sorted(n for n, value in options.items() if value not in (None, AUTO) and n != "out")


def check_start(run: RunPaths) -> None:
    """Raise InputError if a run has results but no checkpoint: a new start would destroy them."""
    if (run.checkpoints / NOT_SAVED_YET).exists():
        return
    best, logs = complete_folder(run.best), (run.metrics, run.eval)
    left = [path for path in (best, run.summary) if path.exists()]
    left += [path for path in logs if path.exists() and path.stat().st_size]
    if left:
        other = f" and `init_checkpoint` {run.path} for its best weights" if best.exists() else ""
        raise InputError(
            f"has no checkpoint in {run.checkpoints.name}/ to resume from, but has"
            f" {', '.join(path.name for path in left)}, which a new start would destroy",
            f"restore {run.checkpoints.name}/, or start a new run with another `out`{other}",
            path=run.path,
        )


def check_logs(run: RunPaths, update: int, evaluated: int, interval: int) -> None:
    """Raise InputError if a log lacks a line from before a checkpoint.

    Args:
      run: The run.
      update: Update of the checkpoint.
      evaluated: Last scheduled evaluation before the checkpoint; 0 if none.
      interval: Number of updates between evaluations.
    """
    for path, last, step in ((run.metrics, update, 1), (run.eval, evaluated, interval)):
        expected = range(step, last + 1, step)
        lines = [line for line in whole_lines(path) if line["kind"] != OUT_OF_MEMORY]
        # No evaluation of update 0 is scheduled, and `rewind` removes it.
        logged = [line["update"] for line in lines if line["update"] > 0]
        for number, found in itertools.zip_longest(expected, logged[: len(expected)]):
            if found != number:
                raise InputError(
                    f"the line of update {number} is missing or damaged, but a checkpoint was saved"
                    f" after update {update}",
                    "restore the file, or start a new run with another `out`",
                    path=path,
                )


def check_agreement(topology: Topology, config: TrainConfig, inputs: RunInputs) -> None:
    """Raise ConfigError if the workers differ in data, options or versions."""
    if topology.workers == 1:
        return
    config = resolved_config(config, inputs.source.name)
    deciding = [f.name for f in dataclasses.fields(config) if not f.metadata["free"]]
    deciding += _ENDING
    deciding = [name for name in deciding if name not in (*_PATHS, "out")]
    values = {f"`{name}`": getattr(config, name) for name in deciding}
    versions = {name: importlib.metadata.version(name) for name in ("tensorflow", "tf_keras")}
    told = all_gather(topology, values | inputs_of(inputs) | versions | {"bertaccum": __version__})
    if found := differences(told):
        raise ConfigError(
            f"the workers disagree on {', '.join(found)}",
            "start every worker with the same command, data and versions",
        )


def _read_inputs(folder: RunFolder, names: list[str]) -> dict[str, Any]:
    """Return the contents of inputs.json, which must include `names`."""
    try:
        values: dict[str, Any] = read_json(folder.inputs)
        return values | {name: values[name] for name in names}
    except (InputError, TypeError, KeyError) as error:
        raise InputError(f"is damaged ({error})", "start a new run", path=folder.inputs) from None
