"""From the options of a run to everything that it needs before its first update."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from bertaccum.bert.precision import length_multiple
from bertaccum.bert.tokenization import tokenization_of
from bertaccum.data import windows
from bertaccum.data.corpus_store import cached_stores, open_corpus
from bertaccum.data.masking import Masking, make_masking
from bertaccum.data.run_inputs import RunInputs, tokenizations
from bertaccum.data.teacher_labels import TeacherLabels
from bertaccum.data.token_store import TokenStore
from bertaccum.data.tokenizing import open_store
from bertaccum.data.window_cuts import Cut, make_cut
from bertaccum.distribution.collectives import all_gather, broadcast
from bertaccum.distribution.device_memory import announce_limit, claim_memory
from bertaccum.distribution.topology import Topology, make_topology
from bertaccum.distribution.watchdog import Watch
from bertaccum.errors import RunError
from bertaccum.options.commands import TrainConfig
from bertaccum.options.fields import OFF, ON, size_in_bytes, timeout_seconds
from bertaccum.options.offload_rungs import OFFLOAD, offloads_sums
from bertaccum.options.pretraining import PretrainConfig
from bertaccum.planning.compile_cost import compiled_plan
from bertaccum.planning.measurement import PlanRequest
from bertaccum.planning.plan import BatchPlan, Saving, make_plan
from bertaccum.system.progress import Progress
from bertaccum.system.stopping import Stopping
from bertaccum.tasks.adapter_files import AdapterFiles
from bertaccum.tasks.head_mapping import kept_decoding
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.task import Objective, Task
from bertaccum.training.agreed_plan import agree_on_plan
from bertaccum.training.compilation import Compilation, decide
from bertaccum.training.distillation import join_teacher
from bertaccum.training.inputs import run_inputs, weighted
from bertaccum.training.recipe import Schedule, build_model, default_learning_rate
from bertaccum.training.resume import check_agreement, is_deterministic, resolved_config
from bertaccum.training.teacher_logits import open_logits
from data_prep.tables.tsv import read_tsv

# Number of windows from which the shapes of compiled micro-batches are chosen.
_WINDOWS = 64


@dataclass(frozen=True)
class Session:
    """A process that trains, its place among the workers, and its connections to the caller.

    Args:
      topology: Replicas of the run.
      watch: Watch to which the run reports the activity of this worker.
      stopping: Records requests to stop the run.
      progress: Reports preparations and evaluations.
    """

    topology: Topology
    watch: Watch
    stopping: Stopping
    progress: Progress

    def asked_to_stop(self) -> bool:
        """Return whether this worker was asked to stop."""
        return self.stopping.requested is not None


def connect(config: TrainConfig, stopping: Stopping | None, progress: Progress) -> Session:
    """Set the memory limit before TensorFlow starts, then connect the devices."""
    limit = size_in_bytes("memory_limit", config.memory_limit)
    announce_limit(limit, config.replicas or 1)
    timeout = timeout_seconds(config.collective_timeout)
    topology = make_topology(config.strategy, config.replicas, timeout)
    claim_memory()
    # TensorFlow's server has replaced the handler for SIGTERM.
    stopping = stopping or Stopping()
    stopping.reinstall()
    watch = Watch(topology)
    # The chief may be saving a checkpoint, and `collective_timeout` limits the time to wait for it.
    stopping.extend_while(watch.is_waiting)
    return Session(topology, watch, stopping, progress)


@dataclass(frozen=True)
class Setup:
    """A run that is ready for its first update.

    Args:
      config: Options with resolved values, as config.yaml records them.
      session: This process.
      inputs: Data, labels and model to start from.
      task: Task of the model.
      model: Classifier, built in the scope of the topology's strategy.
      train_store, dev_store: Token stores of train.tsv and dev.tsv.
      micro_batch: First micro-batch size; running out of memory lowers it.
      saving: First way to save memory; running out of memory changes it.
      compilation: Whether steps are compiled.
      epochs: Number of passes over the data, which `max_tokens` may limit.
      best_by: Metric that selects the best checkpoint.
      request: Request to the planner.
      plan_record: Values for plan.json when the run begins.
      masking: How tokens are masked in pretraining; None for other tasks.
      teacher: Labels with the logits of the teacher; None without one.
      schedule: Learning rate schedule; None for that of the recipe.
    """

    config: TrainConfig
    session: Session
    inputs: RunInputs
    task: Task
    model: tf_keras.Model
    train_store: TokenStore
    dev_store: TokenStore
    micro_batch: int
    saving: Saving
    compilation: Compilation
    epochs: float
    best_by: str
    request: PlanRequest
    plan_record: dict[str, Any]
    masking: Masking | None = None
    teacher: TeacherLabels | None = None
    schedule: Schedule | None = None

    @property
    def objective(self) -> Objective:
        """The objective of the updates: the task, or the task with the teacher's logits."""
        return self.task if self.teacher is None else self.teacher.objective

    @property
    def labeled_examples(self) -> int:
        """The number of examples to train on that have labels."""
        return len(self.train_store) if self.teacher is None else self.teacher.count

    def examples(self, number: int, rows: np.ndarray) -> tuple[TokenStore, np.ndarray]:
        """Return a store and the rows in it of the examples of an update, masked if need be."""
        if self.masking is not None:
            made = self.masking.of_window(self.train_store, rows, self.config.seed, number)
        elif self.teacher is not None:
            made = self.teacher.of_window(self.train_store, rows)
        else:
            return self.train_store, rows
        return made, np.arange(len(rows))

    def batch_plan(self, micro_batch: int, saving: Saving) -> BatchPlan:
        """Return the batch plan for a micro-batch size and a way to save memory."""
        config, store, replicas = self.config, self.train_store, self.session.topology.replicas
        target, compilation = config.target_batch, self.compilation
        plan = make_plan(target, micro_batch, saving, config.cut, replicas)
        if not compilation.compile or offloads_sums(saving.offload):
            return plan
        numbers, share = range(self.updates_per_epoch), windows.shares(target, replicas)[0]
        of = len(store), target, config.seed
        rows = [windows.window_rows(number, *of)[1] for number in numbers[:_WINDOWS]]
        owned = [windows.by_length(store, own)[share[share < len(own)]] for own in rows]
        return compiled_plan(
            plan,
            [store.shapes[own] for own in owned],
            sum(int(store.lengths(own).sum()) for own in owned),
            store.largest,
            compilation.prices,
            compilation.compile_tokens,
            self.scheduled_updates,
            length_multiple(config.precision),
        )

    def cut(self, plan: BatchPlan) -> Cut:
        """Return the function that splits windows for a plan."""
        largest, prices = self.train_store.largest, self.compilation.prices
        return make_cut(plan.kind_of_cut, largest, prices, plan.shapes or ())

    @cached_property
    def updates_per_epoch(self) -> int:
        """The number of windows in an epoch."""
        return windows.updates_per_epoch(len(self.train_store), self.config.target_batch)

    @cached_property
    def scheduled_updates(self) -> int:
        """The number of updates that the learning rate schedule covers."""
        return windows.scheduled_updates(self.epochs, self.updates_per_epoch)

    @property
    def last_update(self) -> int:
        """The number of the run's last update.

        The schedule does not depend on `max_updates`, so stopping early changes no update.
        """
        limit = self.config.max_updates
        return self.scheduled_updates if limit is None else min(self.scheduled_updates, limit)

    def example_numbers(self) -> np.ndarray:
        """Return the number by which messages name each training example, [examples]."""
        count = len(self.train_store)
        if self.masking is not None:
            return np.arange(1, count + 1)
        rows = read_tsv(self.inputs.tsvs[0])["row"].to_numpy()
        # Unlabeled texts follow the rows of train.tsv.
        return np.concatenate([rows, rows[-1] + np.arange(1, count - len(rows) + 1)])

    @cached_property
    def adapted(self) -> AdapterFiles | None:
        """The description of an adapted model; None if whole layers are trained."""
        return AdapterFiles.of(self.config, self.inputs.source)

    @property
    def updates_between_evaluations(self) -> int:
        """The evaluation interval, in updates."""
        return windows.updates_between(self.config.eval_every, self.updates_per_epoch)


def set_up(
    config: TrainConfig,
    session: Session,
    inputs: RunInputs | None = None,
    compilation: Compilation | None = None,
    earlier_plan: dict[str, Any] | None = None,
    schedule: Schedule | None = None,
) -> Setup:
    """Plan a run, read its data and build its model; every worker must call this function.

    Args:
      config: Options of the run.
      session: This process.
      inputs: Inputs of the run; None to find them.
      compilation: What was decided when the run began, if it is resumed.
      earlier_plan: Content of plan.json, if the run is resumed.
      schedule: Learning rate schedule; None for that of the recipe.
    """
    topology, watch, progress = session.topology, session.watch, session.progress
    inputs = inputs or run_inputs(config, progress)
    own = inputs.source.pinned
    if pinned := broadcast(topology, lambda: own):
        config = dataclasses.replace(config, init_checkpoint=pinned)
        if pinned != own:  # The branch moved after the chief asked for its commit.
            inputs = run_inputs(config, progress)
    config = dataclasses.replace(config, task=inputs.labels.task)
    check_agreement(topology, config, inputs)
    epochs = config.epochs
    if isinstance(config, PretrainConfig):
        watch.doing("reading data")
        epochs = _epochs(config, inputs, progress)
    watch.doing("planning")
    config, request, planned = agree_on_plan(config, inputs, topology, progress)
    batch = planned.require_plan()
    # Workers sum accumulators on the device and on the host in different ways.
    offload = OFFLOAD[max(map(OFFLOAD.index, all_gather(topology, batch.offload)))]
    if compilation is None:
        limited = dataclasses.replace(config, epochs=epochs)
        decided = decide(limited, request, planned, progress, topology.workers)
        compilation = decided.with_numbers(broadcast(topology, decided.numbers))
    logits = []
    if inputs.teacher is not None:
        config = dataclasses.replace(config, teacher=inputs.teacher.pinned or config.teacher)
        watch.doing("computing the teacher's logits")
        logits = open_logits(config, inputs, progress)
    watch.doing("reading data and weights")
    decoding = kept_decoding(inputs.source, inputs.head) if config.max_updates == 0 else None
    task = make_task(inputs.labels, decoding, config.label_smoothing)
    train_store, dev_store, masking = _open_stores(config, inputs, task, progress)
    if masking is None:
        train_store, task = weighted(train_store, task, config.class_weight, inputs.tsvs[0])
    teacher = None
    if logits:
        train_store, teacher = join_teacher(config, inputs, task, train_store, logits, progress)
    config = dataclasses.replace(
        resolved_config(config, inputs.source.name),
        micro_batch=batch.micro_batch,
        recompute=batch.recompute,
        offload=offload,
        compile=ON if compilation.compile else OFF,
        learning_rate=config.learning_rate or default_learning_rate(inputs.source),
        best_by=(best_by := config.best_by or task.metrics[0]),
    )
    if is_deterministic(config.deterministic):
        tf.config.experimental.enable_op_determinism()
    try:
        with topology.strategy.scope():
            model = build_model(config, inputs.source, inputs.labels.outputs, inputs.head)
    except tf.errors.ResourceExhaustedError:
        raise RunError(
            "the model does not fit in memory", "raise `memory_limit` or choose a smaller `model`"
        ) from None
    return Setup(
        config=config,
        session=session,
        inputs=inputs,
        task=task,
        model=model,
        train_store=train_store,
        dev_store=dev_store,
        micro_batch=batch.micro_batch,
        saving=Saving(batch.recompute, offload),
        compilation=compilation,
        epochs=epochs,
        best_by=best_by,
        request=request,
        plan_record=planned.values | compilation.record() | (earlier_plan or {}),
        masking=masking,
        teacher=teacher,
        schedule=schedule,
    )


def _epochs(config: PretrainConfig, inputs: RunInputs, progress: Progress) -> float:
    """Tokenize the texts, of which the planner measures windows; return the passes over them."""
    assert inputs.corpus is not None
    tokenization, (digest,) = tokenization_of(inputs.vocabulary, config), inputs.store_digests
    packed = config.apart, config.dev_fraction
    texts, _ = open_corpus(inputs.corpus, tokenization, progress, *packed, digest=digest)
    most = config.max_tokens
    return config.epochs if most is None else min(config.epochs, most / len(texts.token_ids))


def _open_stores(
    config: TrainConfig, inputs: RunInputs, task: Task, progress: Progress
) -> tuple[TokenStore, TokenStore, Masking | None]:
    """Return the examples to train on, padded, and those of dev.tsv.

    In pretraining, they are sequences of texts, of which only the latter are masked already; the
    result includes how to mask the former.
    """
    multiple = length_multiple(config.precision)
    longest = inputs.source.encoder.max_position_embeddings
    if isinstance(config, PretrainConfig):
        (digest,), length, words = inputs.store_digests, config.max_seq_length, config.whole_words
        train_store, dev_store = cached_stores(digest, length, config.apart)
        masking = make_masking(inputs.vocabulary, length, whole_words=words)
        return train_store.padded_to(multiple, longest), masking.of_dev(dev_store), masking
    train_store, dev_store = (
        open_store(tsv, task, tokenization, progress, digest)
        for tsv, tokenization, digest in zip(
            inputs.tsvs, tokenizations(inputs.vocabulary, config), inputs.store_digests, strict=True
        )
    )
    return train_store.padded_to(multiple, longest), dev_store, None
