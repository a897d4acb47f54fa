"""Keyword arguments of the functions in `bertaccum.api`, for type checkers and editors.

Each class lists the fields of a dataclass in `bertaccum.config`, where they are described. A test
checks that both list the same fields.
"""

from __future__ import annotations

from typing import TypedDict


class PrepareOptions(TypedDict, total=False):
    """Fields of `PrepareConfig`."""

    source: str
    out: str | None
    dataset: str | None
    folder: str | None
    language: str | None
    archive: str | None
    allow_unverified_archive: bool
    train_file: str | None
    test_file: str | None
    text_column: str
    text_pair_column: str | None
    label_column: str
    label_columns: str | None
    label_separator: str
    weight_column: str | None
    task: str | None
    delimiter: str | None
    encoding: str | None
    layout: str
    dev_fraction: float
    test_fraction: float
    drop_duplicates: bool | None
    seed: int
    overwrite: bool


class StepOptions(TypedDict, total=False):
    """Fields of `StepConfig`."""

    data: str
    model: str | None
    bert_config: str | None
    init_checkpoint: str | None
    vocab: str | None
    max_seq_length: int
    truncate: str
    head_fraction: float
    windows: int
    stride: int | None
    pool: str
    target_batch: int
    micro_batch: int | str
    cut: str
    lower_case: bool | None
    dropout: float
    dropout_stream: str
    precision: str
    train_layers: int | None
    freeze: str
    recompute: str
    accumulator_dtype: str
    offload: str
    offload_folder: str | None
    keep_head: bool
    memory_limit: str | None


class TrainOptions(StepOptions, total=False):
    """Fields of `TrainConfig`."""

    epochs: float
    max_updates: int | None
    optimizer: str
    learning_rate: float
    warmup_fraction: float
    weight_decay: float
    clip_norm: float
    seed: int
    max_nonfinite: int
    eval_every: int | float | None
    best_by: str
    patience: int | None
    save_every: str
    keep: int
    deterministic: bool | None
    noise_scale: str
    strategy: str
    replicas: int | None
    collective_timeout: str
    out: str | None


class PlanOptions(StepOptions, total=False):
    """Fields of `PlanConfig`."""

    device_memory: str | None
    out: str
    fresh: bool


class PredictOptions(TypedDict, total=False):
    """Fields of `PredictConfig`."""

    run: str
    file: str | None
    text_column: str
    text_pair_column: str | None
    delimiter: str | None
    encoding: str | None
    batch: int
    memory_limit: str | None


class EvalOptions(PredictOptions, total=False):
    """Fields of `EvalConfig`."""

    split: str | None
    label_column: str
    label_columns: str | None
    label_separator: str


class ExportOptions(TypedDict, total=False):
    """Fields of `ExportConfig`."""

    run: str
    format: str
    out: str | None
    inputs: str
    quantize: str


class ServeOptions(TypedDict, total=False):
    """Fields of `ServeConfig`."""

    run: str
    host: str
    port: int
    batch: int
    batch_tokens: int
    batch_delay_ms: float
    max_texts: int
    max_body: str
    max_queue: int
    timeout_seconds: float
    memory_limit: str | None


class ReportOptions(TypedDict, total=False):
    """Fields of `ReportConfig`, except `run`, which is a separate argument."""

    split: str | None
    out: str | None
