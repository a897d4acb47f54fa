"""Saving and loading: the whole training state, and the best weights with what they need."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from bertaccum.accumulation.optimizer import AccumulatingOptimizer
from bertaccum.atomic import new_folder, write_text
from bertaccum.bert.encoder import checkpoint_name
from bertaccum.bert.model_source import RUN_PREFIX
from bertaccum.distribution.exchange import sum_over_workers
from bertaccum.distribution.topology import Topology
from bertaccum.errors import InputError, RunError, reason
from bertaccum.files import json_text, read_text, sha256
from bertaccum.planning.batch_plan import BatchPlan
from bertaccum.tasks.model_files import EVALUATION, ModelFiles
from bertaccum.training.events import Evaluated
from bertaccum.training.run_folder import RunFolder

_STATE, _POSITION = "state", "position.json"
# Fields of `BatchPlan` that are saved with the position: they change when memory runs out.
_CUT = ("micro_batch", "recompute")
_PIECE_BYTES = 4 * 2**20
_NAME = re.compile(r"update-(\d+)")


@dataclass
class Position:
    """How far a run has come: with weights and optimizer, all that decides what follows.

    What is drawn at random follows from the seed and the update's number, so that there is
    no random state.

    Args:
      run: the run's own mark.
      update: updates done.
      best, last: the best and the last evaluation of those that `eval_every` asks for.
      loss: of the last update.
      examples: trained on.
      seconds, total_seconds: spent on updates; on everything since the first one began.
      peak_memory_bytes: the most so far; None where the device does not say.
      shrinkings: times that memory ran out.
      nonfinite_in_a_row: windows skipped since the last update that was applied.
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

    @staticmethod
    def of(saved: dict[str, Any]) -> Position:
        """Return the position in what `read_saved` returned.

        Raises:
          TypeError, KeyError, AttributeError: it holds none.
        """
        own = {key: value for key, value in saved.items() if key not in _CUT}
        evaluations = {key: own[key] and Evaluated(**own[key]) for key in ("best", "last")}
        return Position(**own | evaluations)

    @property
    def evaluated(self) -> int:
        """The update that was evaluated last; 0 if there is none."""
        return self.last.update if self.last is not None else 0


class Checkpoints:
    """The training states of a run, `checkpoints/update-N/`, each whole or not there.

    Saving is for between updates: the accumulators are empty then, and left out.

    Args:
      model: whose weights are saved.
      optimizer: whose state is saved; it is built already.
      folder: of the run.
      keep: how many states to keep.
    """

    def __init__(
        self,
        model: tf_keras.Model,
        optimizer: AccumulatingOptimizer,
        folder: RunFolder,
        keep: int,
    ) -> None:
        self._folder, self._keep = folder.checkpoints, keep
        # The inner optimizer's state has the loss scale in it.
        whole = tf.train.Checkpoint(
            model=model, optimizer=optimizer.inner, skipped_windows=optimizer.skipped_windows
        )
        parts = tf.train.TrackableView(whole).descendants()
        variables = [part for part in parts if isinstance(part, tf.Variable)]
        self._variables = {
            f"v{number:04d}_{re.sub('[^A-Za-z0-9]', '_', checkpoint_name(variable.name))}": variable
            for number, variable in enumerate(variables)
        }
        self._state = tf.train.Checkpoint(**self._variables)

    def save(self, position: Position, batch: BatchPlan) -> None:
        """Save the state, then remove the oldest.

        Args:
          position: of the run.
          batch: how windows are cut now.

        Raises:
          RunError: it cannot be written; what was saved before is still there.
        """
        with _saved(state_of(self._folder, position.update), self._folder) as folder:
            self._state.write(str(folder / _STATE))
            files = {file.name: sha256(file) for file in sorted(folder.iterdir())}
            cut = {key: getattr(batch, key) for key in _CUT}
            values = {"position": dataclasses.asdict(position) | cut, "files": files}
            write_text(folder / _POSITION, json_text(values | {"digest": _digest(values)}))
        self._forget()

    def _forget(self) -> None:
        """Removes the oldest, but not those of the best models that resuming may go back to."""
        states = saved_states(self._folder)
        bests = {_best_of(path) for path in states[-self._keep :]}
        for old in states[: -self._keep]:
            if old.name not in bests:
                shutil.rmtree(old, ignore_errors=True)

    def share(self, topology: Topology) -> None:
        """Gives all workers the chief's state; all have to call it."""
        for variable in self._variables.values():
            for part in _components(variable):
                value = part.numpy()
                given = value if topology.chief else np.zeros_like(value)
                value = sum_over_workers(topology, given)
                if not topology.chief:
                    part.assign(value)

    def restore(self, path: Path) -> None:
        """Gives weights and optimizer the state in `path`, which `read_saved` has checked.

        Raises:
          InputError: it is that of another model.
        """
        try:
            for name, variable in self._variables.items():
                for part in _components(variable):
                    _restore_variable(part, path / _STATE, f"{name}/.ATTRIBUTES/VARIABLE_VALUE")
        except tf.errors.ResourceExhaustedError:
            raise RunError(
                "does not fit into memory",
                "raise `memory_limit`, or lower `micro_batch`",
                path=path,
            ) from None
        except (tf.errors.OpError, AssertionError, ValueError, IndexError) as error:
            raise _unusable(path, f"does not fit this run's model ({reason(error)})") from None


def _components(variable: tf.Variable) -> tuple[tf.Variable, ...]:
    """What a variable consists of on this worker's replicas."""
    return tuple(getattr(variable, "values", (variable,)))


def _restore_variable(variable: tf.Variable, state: Path, name: str) -> None:
    """Gives a variable what a state has under this name, piece by piece, and where it is.

    Assigning takes the variable's memory a second time, and leaves a hole where it was. numpy
    is avoided: made from its arrays, a tensor that does not fit is a segmentation fault.
    """
    with tf.device("CPU"):
        (value,) = tf.raw_ops.RestoreV2(
            prefix=str(state), tensor_names=[name], shape_and_slices=[""], dtypes=[variable.dtype]
        )
    value.shape.assert_is_compatible_with(variable.shape)
    if not value.shape.rank:
        variable.assign(value)
        return
    rows = max(_PIECE_BYTES // (variable.dtype.size * math.prod(value.shape[1:])), 1)
    for first in range(0, value.shape[0], rows):
        with tf.device("CPU"):
            piece = value[first : first + rows]
        tf.raw_ops.ResourceScatterUpdate(
            resource=variable.handle, indices=first + tf.range(len(piece)), updates=piece
        )
    # Scattering has every read make a copy from then on.
    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)


@contextmanager
def _saved(path: Path, states: Path) -> Iterator[Path]:
    """Yield a folder to write to, which then appears as `path`, whole, or not at all.

    Args:
      path: the folder to appear.
      states: the run's folder of checkpoints; an error says whether any is there to resume from.

    Raises:
      RunError: it cannot be written.
    """
    try:
        with new_folder(path) as folder:
            yield folder
    except (OSError, InputError, tf.errors.OpError) as error:
        raise RunError(
            f"cannot be saved ({reason(error)})",
            "free disk space or fix the permissions, then run again with `resume`; "
            + ("earlier checkpoints are intact" if saved_states(states) else "it starts over"),
            path=path,
        ) from None


def saved_states(folder: Path) -> list[Path]:
    """The states in a folder of checkpoints, oldest first."""
    found = [(int(m[1]), p) for p in folder.glob("update-*") if (m := _NAME.fullmatch(p.name))]
    return [path for _, path in sorted(found)]


def state_of(folder: Path, update: int) -> Path:
    """Where the state after an update is, if it is there."""
    return folder / f"update-{update}"


def _best_of(path: Path) -> str | None:
    """The name of the state that the best model of a state is in."""
    try:
        best = json.loads(read_text(path / _POSITION))["position"]["best"]
        return best and state_of(path.parent, best["update"]).name
    except (InputError, ValueError, TypeError, KeyError, RecursionError):
        return None


def read_saved(path: Path, run: str) -> dict[str, Any]:
    """Read a checkpoint's position and cut, after checking every byte of the checkpoint.

    Args:
      path: the state.
      run: the mark of the run that it should be of.

    Returns:
      The fields of its `Position`, and `micro_batch` and `recompute`.

    Raises:
      InputError: the state is damaged, or another run's.
    """
    try:
        values = json.loads(read_text(path / _POSITION))
        digest = values.pop("digest")
        if digest != _digest(values):
            raise ValueError(f"the digest of {_POSITION} differs")
        for name, expected in values["files"].items():
            if sha256(path / name) != expected:
                raise ValueError(f"the digest of {name} differs")
        saved = dict(values["position"])
        position = Position.of(saved)
    except (InputError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _unusable(path, f"is damaged ({error})") from None
    if position.run != run:
        raise _unusable(path, "is the state of another run")
    return saved


def _unusable(path: Path, why: str) -> InputError:
    states = saved_states(path.parent)
    earlier = states[: states.index(path)] if path in states else []
    hint = "remove it, and resuming begins anew"
    if earlier:
        hint = f"remove it, and resuming goes on from {earlier[-1].name}"
    return InputError(why, hint, path=path)


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def save_best(
    model: tf_keras.Model, files: ModelFiles, evaluated: Evaluated, folder: RunFolder
) -> None:
    """Puts the model's weights, what they need to be used, and how good they are in `best/`.

    Raises:
      RunError: it cannot be written; what was there still is.
    """
    with _saved(folder.best, folder.checkpoints) as written:
        files.write(written)
        write_text(written / EVALUATION, json_text(dataclasses.asdict(evaluated)))
        tf.train.Checkpoint(model=model).write(str(written / RUN_PREFIX))


def best_evaluation(folder: RunFolder) -> Evaluated | None:
    """How good the model in `best/` is; None if there is none, or it is damaged."""
    try:
        return Evaluated(**json.loads(read_text(folder.best / EVALUATION)))
    except (InputError, ValueError, TypeError, RecursionError):
        return None
