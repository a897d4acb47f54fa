"""Evaluations of a run's model on dev.tsv, and the files of the best model."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from bertaccum.bert.precision import remedy
from bertaccum.errors import DivergedError
from bertaccum.inference.predictor import Predictor
from bertaccum.options.commands import FITTED, EvalConfig
from bertaccum.options.fields import field_names
from bertaccum.runs.paths import RunPaths
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.model_files import ModelFiles
from bertaccum.tasks.task import PLAIN, Decoding
from bertaccum.training.checkpoints import save_best
from bertaccum.training.events import Evaluated
from bertaccum.training.setup import Setup


class DevEvaluator:
    """Evaluates the model of a run on dev.tsv, and saves the best one."""

    def __init__(self, setup: Setup, folder: RunPaths) -> None:
        self._task, self._config, self._model = setup.task, setup.config, setup.model
        self._store, self._session, self._folder = setup.dev_store, setup.session, folder
        self._best_by = setup.best_by
        inputs, session = setup.inputs, setup.session
        self._files = ModelFiles(inputs.source.encoder, inputs.vocabulary, inputs.labels)
        self._adapted = setup.adapted
        self._predictor = Predictor(
            setup.model, EvalConfig().batch, session.topology, session.watch
        )

    def evaluate(self, update: int, before: Evaluated | None) -> Evaluated:
        """Evaluate the model, and save it if it is not worse than the best one before.

        Raises:
          StoppedEarlyError: A worker was asked to stop.
          RunError: The loss is not finite, an example does not fit in memory, or the model cannot
            be saved.
        """
        session, store = self._session, self._store
        logits = self._predictor(store, session.progress, session.asked_to_stop)
        fitted = self._fitted(logits)
        task = make_task(self._task.labels, Decoding(**fitted)) if fitted else self._task
        evaluated = Evaluated(update, True, task.scores(logits, store.labels) | fitted)
        if not math.isfinite(evaluated.loss):
            raise DivergedError(
                f"the loss on dev.tsv is not finite after update {update}",
                remedy(self._config.precision),
            )
        # A small dev.tsv gives many ties; of equally good models, the one trained longest is the
        # best guess.
        if before is not None and evaluated.is_worse_than(before, self._best_by):
            return dataclasses.replace(evaluated, best=False)
        if session.topology.chief:
            with session.stopping.saving():
                self.save(evaluated)
        return evaluated

    def save(self, best: Evaluated) -> None:
        """Save the model, which is the best so far, with its evaluation."""
        fitted = {name: best.scores[name] for name in field_names(Decoding) if name in best.scores}
        files = dataclasses.replace(self._files, decoding=Decoding(**fitted))
        save_best(self._model, files, best, self._folder, self._adapted)

    def _fitted(self, logits: np.ndarray) -> dict[str, Any]:
        """Return the fields of a `Decoding` that is fitted to dev.tsv or kept; {} without one."""
        wanted = self._config.calibrate, self._config.thresholds == FITTED
        decoding = self._task.decoding
        if any(wanted):
            decoding = self._task.fit_decoding(logits, self._store.labels, *wanted)
        elif decoding == PLAIN:
            return {}
        return dataclasses.asdict(decoding)
