"""Checkpoints of a run: saving and restoring its full training state, and saving the best model."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation.gradient_products import GradientProducts
from bertaccum.accumulation.offload.host_memory import HostArray, HostTensor
from bertaccum.accumulation.window import WindowOptimizer
from bertaccum.bert.in_place import assign_in_place, read_tensor
from bertaccum.bert.model_source import RUN_PREFIX
from bertaccum.distribution.collectives import sum_over_workers
from bertaccum.distribution.topology import Topology
from bertaccum.errors import InputError, RunError, reason
from bertaccum.planning.plan import BatchPlan
from bertaccum.runs.paths import NOT_SAVED_YET, RunPaths
from bertaccum.system.atomic import new_folder, write_text
from bertaccum.system.files import finite, json_digest, json_text, read_json, refuse_special, sha256
from bertaccum.system.temporary_paths import remove
from bertaccum.tasks.adapter_files import AdapterFiles
from bertaccum.tasks.model_files import EVALUATION, ModelFiles
from bertaccum.training.events import Evaluated, check_count

_STATE, _POSITION = "state", "position.json"
# Running out of memory changes these fields of `BatchPlan`, so they are saved with the position.
CUT = ("micro_batch", "recompute", "offload")
# Names of the variables of `GradientProducts`.
_PRODUCTS = ("earlier_gradients", "earlier_weight")
_NAME = re.compile(r"update-(\d+)")


@dataclass
class Position:
    """The progress of a run.

    The position, the weights and the optimizer's state determine all later updates. There is no
    random state: every random number is derived from the seed and the number of the update.

    Args:
      run: Mark that identifies the run.
      update: Number of completed updates.
      best, last: Best and last of the evaluations scheduled by `eval_every`.
      loss: Loss of the last update.
      examples: Number of examples trained on.
      seconds: Time spent on updates.
      total_seconds: Time since the first update began, excluding interruptions.
      peak_memory_bytes: Peak memory of the device so far; None if unknown.
      shrinkings: Number of times the run ran out of memory.
      nonfinite_in_a_row: Number of windows skipped since the last applied update.
      noise: The sums of the run's `NoiseMeter`.
    """

    run: str
    update: int = 0
    best: Evaluated | None = None
    last: Evaluated | None = None
    loss: float = 0.0
    examples: int = 0
    seconds: float = 0.0
    total_seconds: float = 0.0
    peak_memory_bytes: int | None = None
    shrinkings: int = 0
    nonfinite_in_a_row: int = 0
    noise: dict[str, list[float]] = field(default_factory=dict)

    @staticmethod
    def of(saved: dict[str, Any]) -> Position:
        """Return the position contained in the values that `read_saved` returns.

        Raises:
          ValueError, TypeError, KeyError, AttributeError: The values do not describe a position.
        """
        own = {key: value for key, value in saved.items() if key not in CUT}
        for name in ("update", "examples", "shrinkings", "nonfinite_in_a_row"):
            check_count(name, own.get(name, 0))
        evaluations = {key: own[key] and Evaluated.of(own[key]) for key in ("best", "last")}
        return Position(**own | evaluations)

    def record(self) -> dict[str, Any]:
        """Return the fields as `of` reads them."""
        evaluations = {"best": self.best, "last": self.last}
        records = {name: found and found.record() for name, found in evaluations.items()}
        return dataclasses.asdict(self) | records

    @property
    def evaluated(self) -> int:
        """The number of the update evaluated last; 0 before the first evaluation."""
        return self.last.update if self.last is not None else 0


class Checkpoints:
    """The checkpoints of a run, in `checkpoints/update-N/`; the latest `keep` are kept.

    Each checkpoint is written atomically. It is saved between updates, when the accumulators are
    empty, so it does not contain them.

    Args:
      trained_only: Whether checkpoints contain only the weights that are trained.
    """

    def __init__(
        self,
        model: tf_keras.Model,
        optimizer: WindowOptimizer,
        folder: RunPaths,
        keep: int,
        trained_only: bool = False,
    ) -> None:
        self._trained_only = trained_only
        self._folder, self._keep = folder.checkpoints, keep
        self._model, self._optimizer = model, optimizer

    def save(self, position: Position, batch: BatchPlan) -> None:
        """Save a checkpoint, then remove old checkpoints.

        Raises:
          RunError: The checkpoint cannot be written; earlier checkpoints are intact.
        """
        with _saved(state_of(self._folder, position.update), self._folder) as folder:
            write_state(self._model, self._optimizer, folder / _STATE, self._trained_only)
            files = {file.name: sha256(file) for file in sorted(folder.iterdir())}
            cut = {key: getattr(batch, key) for key in CUT}
            # JSON has no NaN, so the digest is computed for the values as they are written.
            values = finite({"position": position.record() | cut, "files": files})
            write_text(folder / _POSITION, json_text(values | {"digest": json_digest(values)}))
        (self._folder / NOT_SAVED_YET).unlink(missing_ok=True)
        self._forget()

    def _forget(self) -> None:
        """Remove all but the latest checkpoints and the best ones that these refer to."""
        states = saved_states(self._folder)
        bests = {_best_of(path) for path in states[-self._keep :]}
        for old in states[: -self._keep]:
            if old.name not in bests:
                remove(old)

    def share(self, topology: Topology) -> None:
        """Copy the chief's variables to all workers; every worker must call this method."""
        if topology.workers == 1:
            return
        for kept in _state(self._model, self._optimizer, self._trained_only).values():
            for part in _parts(kept):
                value = part.numpy()
                given = value if topology.chief else np.zeros_like(value)
                value = sum_over_workers(topology, given)
                if not topology.chief:
                    part.assign(value)

    def restore(self, path: Path) -> None:
        """Restore weights and optimizer state from a checkpoint that `read_saved` has verified.

        Raises:
          InputError: The checkpoint belongs to a different model.
          RunError: The checkpoint does not fit in memory.
        """
        try:
            state = _state(self._model, self._optimizer, self._trained_only)
            for name, kept in state.items():
                for part in _parts(kept):
                    _restore(part, path / _STATE, name)
        except tf.errors.ResourceExhaustedError:
            raise RunError(
                "does not fit in memory", "raise `memory_limit` or lower `micro_batch`", path=path
            ) from None
        except (tf.errors.OpError, AssertionError, ValueError, IndexError) as error:
            raise _unusable(path, f"does not match this run's model ({reason(error)})") from None


def write_state(
    model: tf_keras.Model, optimizer: WindowOptimizer, path: Path, trained_only: bool = False
) -> None:
    """Write the variables of a model and of its optimizer, without copying them on a CPU.

    `path` has no suffix. Accumulators are not written.
    """
    state = _state(model, optimizer, trained_only)
    tf.raw_ops.SaveV2(
        prefix=str(path),
        tensor_names=list(state),
        shape_and_slices=[""] * len(state),
        tensors=[_parts(kept)[0].read_value() for kept in state.values()],
    )


def _state(
    model: tf_keras.Model, optimizer: WindowOptimizer, trained_only: bool
) -> dict[str, tf.Variable | HostTensor]:
    """Return what a checkpoint contains, keyed by name; offloading does not change the names."""
    # The loss scale is part of the inner optimizer's state.
    whole = tf.train.Checkpoint(
        model=model, optimizer=optimizer.inner, skipped_windows=optimizer.skipped_windows
    )
    parts = tf.train.TrackableView(whole).descendants()
    frozen = {v.name for v in model.non_trainable_variables} if trained_only else set()
    kept = [part for part in parts if isinstance(part, tf.Variable | HostTensor)]
    kept = [part for part in kept if part.name not in frozen]
    names = [re.sub("[^A-Za-z0-9]", "_", part.name) for part in kept]
    products = optimizer.observer
    kept += products.kept if isinstance(products, GradientProducts) else []
    names += _PRODUCTS[: len(kept) - len(names)]
    return {
        f"v{number:04d}_{name}/.ATTRIBUTES/VARIABLE_VALUE": part
        for number, (name, part) in enumerate(zip(names, kept, strict=True))
    }


def _parts(kept: tf.Variable | HostTensor) -> Sequence[tf.Variable | HostArray]:
    """Return the copies of the replicas of this process."""
    return kept.copies if isinstance(kept, HostTensor) else _tf_compat.components(kept)


def _restore(part: tf.Variable | HostArray, state: Path, name: str) -> None:
    """Assign a saved value."""
    value = read_tensor(str(state), name, part.dtype)
    value.shape.assert_is_compatible_with(part.shape)
    if isinstance(part, HostArray):
        part.assign(value)
    else:
        assign_in_place(part, value)


@contextmanager
def _saved(path: Path, states: Path) -> Iterator[Path]:
    """Yield a folder to write to, and rename it to `path` when it is complete."""
    try:
        with new_folder(path) as folder:
            yield folder
    except (OSError, InputError, tf.errors.OpError) as error:
        raise RunError(
            f"cannot be saved ({reason(error)})",
            "free disk space or fix the permissions, then run again with `resume`"
            + ("; earlier checkpoints are intact" if saved_states(states) else " to start over"),
            path=path,
        ) from None


def saved_states(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first."""
    found = [(int(m[1]), p) for p in folder.glob("update-*") if (m := _NAME.fullmatch(p.name))]
    return [path for _, path in sorted(found)]


def state_of(folder: Path, update: int) -> Path:
    """Return the path of an update's checkpoint, which may not exist."""
    return folder / f"update-{update}"


def _best_of(path: Path) -> str | None:
    """Return the name of the best checkpoint at the time `path` was saved; None if unknown."""
    try:
        best = read_json(path / _POSITION)["position"]["best"]
        return best and state_of(path.parent, best["update"]).name
    except (InputError, TypeError, KeyError):
        return None


def read_saved(path: Path, run: str) -> dict[str, Any]:
    """Verify the digests of a checkpoint's files, and return its position and batch plan.

    Args:
      path: Folder of the checkpoint.
      run: Mark of the run to which the checkpoint must belong.

    Returns:
      The fields of its `Position`, and those of `BatchPlan` named in `CUT`.

    Raises:
      InputError: The checkpoint is damaged, or belongs to another run.
    """
    try:
        for part in path.glob("*"):
            refuse_special(part)
        values = read_json(path / _POSITION)
        digest = values.pop("digest")
        if digest != json_digest(values):
            raise ValueError(f"{_POSITION} does not match its digest")
        for name, expected in values["files"].items():
            if Path(name).name != name:
                raise ValueError(f"{name} is not the name of a file in it")
            if sha256(path / name) != expected:
                raise ValueError(f"{name} does not match its digest")
        saved = dict(values["position"])
        position = Position.of(saved)
    except (InputError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unusable(path, f"is damaged ({error})") from None
    if position.run != run:
        raise _unusable(path, "is a checkpoint of another run")
    return saved


def _unusable(path: Path, why: str) -> InputError:
    states = saved_states(path.parent)
    earlier = states[: states.index(path)] if path in states else []
    return InputError(
        why,
        f"remove it to resume from {earlier[-1].name}"
        if earlier
        else "restore it, or start a new run with another `out`",
        path=path,
    )


def save_best(
    model: tf_keras.Model,
    files: ModelFiles,
    evaluated: Evaluated,
    folder: RunPaths,
    adapted: AdapterFiles | None = None,
) -> None:
    """Write the model's weights, the files needed to use them and their evaluation to `best/`.

    Args:
      adapted: The description of an adapted model; None for other models.

    Raises:
      RunError: The folder cannot be written; the earlier best model is intact.
    """
    # If the same update was evaluated again, this is the model that `set_aside_best` renamed.
    aside = folder.best_aside(evaluated.update)
    with contextlib.suppress(InputError):  # Nothing can be kept of a damaged one.
        if aside.is_dir():  # `eval` may have changed its decoding.
            files = dataclasses.replace(files, decoding=ModelFiles.read(aside).decoding)
    with _saved(folder.best, folder.checkpoints) as written:
        files.write(written)
        write_text(written / EVALUATION, json_text(evaluated.record()))
        if adapted is not None:
            adapted.write(model, written)
        else:
            tf.train.Checkpoint(model=model).write(str(written / RUN_PREFIX))
    remove(aside)


def best_evaluation(folder: RunPaths) -> Evaluated | None:
    """Return the evaluation of the model in `best/`; None if the folder is missing or damaged."""
    try:
        return Evaluated.of(read_json(folder.best / EVALUATION))
    except (InputError, ValueError, TypeError, KeyError, AttributeError):
        return None
