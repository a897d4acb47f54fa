"""Every option of the tool: one frozen dataclass a command.

A field's name is the YAML key and, spelled with hyphens, the flag of the command line;
 its default, help text and bounds stand here and nowhere else.
Standard library only: the command line imports this before anything heavy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from bertaccum.errors import ConfigError
from bertaccum.metrics import METRICS
from bertaccum.settings import (
    AUTO,
    Options,
    delimiter_setting,
    encoding_setting,
    memory_limit_setting,
    save_interval,
    setting,
    size_in_bytes,
    timeout_seconds,
)

PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
PRESETS = ("bert-tiny", "bert-mini", "bert-small", "bert-medium", "bert-base", "bert-large")
SOURCES = ("yelp", "sample", "csv")
LAYOUTS = ("plain", "cola")
SPLITS = ("train", "dev", "test")
FORMATS = ("savedmodel", "huggingface")
STRATEGIES = (AUTO, "one", "mirrored", "multi-worker")
RECOMPUTE = ("none", "layer", AUTO)
CUTS = ("cost", "count")
ADAMW, BERT_ADAMW = "adamw", "bert-adamw"
DROPOUT_STREAMS = ("example", "micro-batch")
ACCUMULATOR_DTYPES = ("float32", "bfloat16", "float16")
MAX_SEED = 2**32 - 1


@dataclass(frozen=True)
class PrepareConfig(Options):
    """Where texts come from, how they are split and where they are written."""

    source: str = setting(
        "yelp",
        "yelp: Yelp Polarity through tensorflow-datasets; sample: synthetic reviews made here;"
        " csv: your own tables or folders.",
        choices=SOURCES,
    )
    out: str | None = setting(
        None,
        "Folder to write. [default: data/yelp_polarity, data/sample or data/csv by source]",
        path=True,
    )
    archive: str | None = setting(
        None,
        "An already downloaded yelp_review_polarity_csv.tgz, instead of downloading it.",
        path=True,
    )
    allow_unverified_archive: bool = setting(
        False, "Accept an `archive` whose checksum is not the recorded one."
    )
    train_file: str | None = setting(
        None,
        "Training rows, for `source` csv: a CSV, TSV, JSON Lines or Parquet file, or a folder with"
        " a folder of texts, or a .txt file of one text a line, for each class.",
        path=True,
    )
    test_file: str | None = setting(
        None, "Test rows, for `source` csv: the same kinds of files and folders.", path=True
    )
    text_column: str = setting("text", "Name or 1-based number of the text column.")
    label_column: str = setting("label", "Name or 1-based number of the label column.")
    delimiter: str | None = delimiter_setting()
    encoding: str | None = encoding_setting()
    layout: str = setting(
        "plain",
        "plain: header, label, text; cola: what google-research/bert's run_classifier reads"
        " (its test.tsv has no labels).",
        choices=LAYOUTS,
    )
    dev_fraction: float = setting(
        0.01,
        "Share of the training rows held out as dev.tsv; classes keep their proportions.",
        minimum=0,
        maximum=1,
        exclusive=True,
    )
    test_fraction: float = setting(
        0.0,
        "Share of the training rows held out as test.tsv, if there is no `test_file`. 0: none.",
        minimum=0,
        maximum=1,
    )
    drop_duplicates: bool | None = setting(
        None,
        "Keep only the first training row of each text, and none whose text is in the test set."
        " `drop_duplicates=False` keeps all rows. [default: drop only those whose text is in the"
        " test set]",
        switch=True,
    )
    seed: int = setting(0, "Seed of the split and of the sample.", minimum=0, maximum=MAX_SEED)
    overwrite: bool = setting(False, "Replace a folder prepared with other options.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source == "csv" and self.train_file is None:
            raise ConfigError("`source` csv needs `train_file`", "name your file or folder")
        for one, other in (("train_file", "test_file"), ("delimiter", "encoding")):
            if self.source != "csv" and (getattr(self, one) or getattr(self, other)):
                raise ConfigError(
                    f"`{one}` and `{other}` do not go with `source` {self.source}",
                    "add `source` csv, or drop them",
                )
        if self.archive is not None and self.source != "yelp":
            raise ConfigError(
                f"`archive` does not go with `source` {self.source}", "drop one of the two"
            )
        if self.test_fraction:
            self._check_test_fraction()

    def _check_test_fraction(self) -> None:
        given = f"`test_file` {self.test_file}" if self.test_file else f"`source` {self.source}"
        if self.test_file or self.source != "csv":
            raise ConfigError(
                f"`test_fraction` {self.test_fraction} does not go with {given}, which has test"
                " rows already",
                "leave `test_fraction` out",
            )
        if self.test_fraction + self.dev_fraction >= 1:
            raise ConfigError(
                f"`test_fraction` {self.test_fraction} and `dev_fraction` {self.dev_fraction}"
                " leave no rows for train.tsv",
                "lower one of the two",
            )

    @property
    def folder(self) -> str:
        """The output folder: `out`, or the source's default."""
        return self.out or f"data/{'yelp_polarity' if self.source == 'yelp' else self.source}"


def _refuse_above(config: Options, name: str, limit: str) -> None:
    """Raise ConfigError if a number is above another one."""
    value, most = getattr(config, name), getattr(config, limit)
    if isinstance(value, int) and value > most:
        raise ConfigError(
            f"`{name}` {value} is above `{limit}` {most}", "lower the first or raise the second"
        )


def _refuse_both(config: Options, one: str, other: str, what: str) -> None:
    """Raise ConfigError if both of two options are given, of which each says the same."""
    first, second = getattr(config, one), getattr(config, other)
    if first is not None and second is not None:
        raise ConfigError(
            f"`{one}` {first} and `{other}` {second} both name {what}", "drop one of the two"
        )


@dataclass(frozen=True)
class StepConfig(Options):
    """What decides what a training step costs: model, batch arithmetic, precision, memory."""

    data: str = setting(
        "data/yelp_polarity", "Folder that `bertaccum prepare` wrote.", free=True, path=True
    )
    model: str | None = setting(
        None,
        "Encoder preset. [default: that of `init_checkpoint`, else bert-small]",
        choices=PRESETS,
    )
    bert_config: str | None = setting(None, "A bert_config.json instead of a preset.", path=True)
    init_checkpoint: str | None = setting(
        None,
        "Pretrained weights: a preset's name (downloaded), a zip or folder in Google's format (or"
        " the bert_model.ckpt in it), a folder in Hugging Face's, a run folder (its best"
        " checkpoint; the head is taken only if the classes are the same), or none for random"
        " weights. [default: the preset's]",
        path=True,
    )
    vocab: str | None = setting(
        None,
        "WordPiece vocabulary. [default: the checkpoint's, else the data folder's]",
        free=True,
        path=True,
    )
    max_seq_length: int = setting(
        128,
        "Maximum tokens of a text, [CLS] and [SEP] included; longer texts are truncated.",
        minimum=3,
    )
    target_batch: int = setting(32, "Examples in one optimizer update.", minimum=1)
    micro_batch: int | str = setting(
        AUTO,
        "Examples in one forward and backward pass, what the memory must hold."
        " auto: the fastest that fits, as `bertaccum plan` measures it.",
        minimum=1,
        free=True,
    )
    cut: str = setting(
        "cost",
        "cost: micro-batches hold no more tokens than `micro_batch` of the longest examples, and"
        " are cut where that saves time; count: equal numbers of examples.",
        choices=CUTS,
        free=True,
    )
    dropout: float = setting(0.1, "Dropout rate of encoder and head.", minimum=0, maximum=0.99)
    dropout_stream: str = setting(
        "example",
        "What dropout's masks belong to. example: the same updates, however windows are cut;"
        " micro-batch: drawn anew for each, as elsewhere, and the cut decides the updates.",
        choices=DROPOUT_STREAMS,
    )
    precision: str = setting(
        AUTO,
        "Arithmetic of the model. auto: on a GPU mixed_bfloat16 from compute capability 8 on,"
        " mixed_float16 below; float32 on a CPU.",
        choices=(AUTO, *PRECISIONS),
    )
    recompute: str = setting(
        AUTO,
        "layer: keep only the input of each encoder layer and compute the rest a second time, for"
        " less memory and the same updates; none: keep everything; auto: with `micro_batch` auto"
        " as planned, else none.",
        choices=RECOMPUTE,
        free=True,
    )
    accumulator_dtype: str = setting(
        "float32",
        "Type of the gradients' accumulators; the short ones take half the memory and hold the"
        " mean to 3 digits.",
        choices=ACCUMULATOR_DTYPES,
    )
    offload_optimizer: bool = setting(
        False, "Keep AdamW's moments, and compute its step, in host memory.", free=True
    )
    memory_limit: str | None = memory_limit_setting()

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_above(self, "micro_batch", "target_batch")
        _refuse_both(self, "model", "bert_config", "the encoder")


@dataclass(frozen=True)
class TrainConfig(StepConfig):
    """One training run: a step's options, the recipe, and where it goes."""

    epochs: float = setting(3.0, "Passes over train.tsv.", minimum=0, exclusive=True)
    max_updates: int | None = setting(None, "Stop after this many updates.", minimum=1, free=True)
    optimizer: str = setting(
        ADAMW,
        "adamw: AdamW, at a rate that decays once the warm-up has ended; bert-adamw: that of"
        " google-research/bert, without bias correction, the decay counted from the first update.",
        choices=(ADAMW, BERT_ADAMW),
    )
    learning_rate: float = setting(2e-5, "Peak of the learning rate.", minimum=0, exclusive=True)
    warmup_fraction: float = setting(
        0.1, "Share of the updates with linear warm-up; linear decay after.", minimum=0, maximum=1
    )
    weight_decay: float = setting(
        0.01, "AdamW's decay, on all but biases and LayerNorm.", minimum=0
    )
    clip_norm: float = setting(
        1.0, "Global norm the averaged gradient is clipped to.", minimum=0, exclusive=True
    )
    seed: int = setting(0, "Seed of weights, order and dropout.", minimum=0, maximum=MAX_SEED)
    max_nonfinite: int = setting(
        20,
        "Stop after this many updates in a row whose gradient is not finite, and which are"
        " dropped; mixed_float16 needs some to find its loss scale.",
        minimum=1,
        free=True,
    )
    eval_every: int | float | None = setting(
        None,
        "Updates, such as 200, or with a point epochs, such as 0.25, between evaluations on"
        " dev.tsv. [default: once an epoch]",
        minimum=1,
        fraction=True,
    )
    best_by: str = setting(
        "accuracy", "Metric on dev.tsv that selects the best checkpoint.", choices=METRICS
    )
    patience: int | None = setting(
        None,
        "Stop after this many evaluations in a row without a better or equally good one.",
        minimum=1,
        free=True,
    )
    save_every: str = setting(
        "10m",
        "Updates, such as 200, or time, such as 10m or 2h, between saved states.",
        free=True,
        check=save_interval,
    )
    keep: int = setting(2, "How many saved states to keep.", minimum=1, free=True)
    deterministic: bool | None = setting(
        None, "The same bits in every run on the same machine. [default: on a CPU]", switch=True
    )
    strategy: str = setting(
        AUTO,
        "Which devices share a window. one: the first; mirrored: several of this process;"
        " multi-worker: those of several processes, as TF_CONFIG, Slurm or `bertaccum launch`"
        " describes them; auto: as described, else all GPUs.",
        choices=STRATEGIES,
        free=True,
    )
    replicas: int | None = setting(
        None,
        "How many devices this process uses; where there is no GPU, so many virtual ones of the"
        " CPU. [default: all GPUs]",
        minimum=1,
        free=True,
    )
    collective_timeout: str = setting(
        "10m",
        "How long workers wait for each other, such as 90s or 10m.",
        free=True,
        check=timeout_seconds,
    )
    out: str | None = setting(None, "Run folder to create. [default: runs/DATE-TIME]", path=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strategy == "one" and self.replicas not in (None, 1):
            raise ConfigError(
                f"`strategy` one and `replicas` {self.replicas} contradict each other",
                "drop one of the two",
            )
        _refuse_above(self, "replicas", "target_batch")


@dataclass(frozen=True)
class PlanConfig(StepConfig):
    """What `bertaccum plan` measures, and for which device."""

    device_memory: str | None = setting(
        None,
        "Plan for a GPU of this size that is not here, such as 4GiB; of it, the CUDA context and"
        " workspaces get their share.",
        check=partial(size_in_bytes, "device_memory"),
    )
    out: str = setting("plan.json", "File to write.", path=True)
    fresh: bool = setting(
        False, "Measure again, and forget which micro-batches ran out of memory before."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_both(self, "device_memory", "memory_limit", "the memory")


@dataclass(frozen=True)
class ShowConfig(Options):
    """Which run `bertaccum show` shows; of other commands, which they are about."""

    run: str = setting("runs/latest", "Run folder of `bertaccum train`.", path=True)


@dataclass(frozen=True)
class PredictConfig(ShowConfig):
    """Which model predicts, and what."""

    file: str | None = setting(
        None,
        "Table with a column of texts (CSV, TSV, JSON Lines or Parquet), or a file with one text a"
        " line; - is stdin.",
        path=True,
    )
    text_column: str = setting("text", "Name or 1-based number of the text column of `file`.")
    delimiter: str | None = delimiter_setting()
    encoding: str | None = encoding_setting()
    batch: int = setting(32, "Examples in one forward pass.", minimum=1)
    memory_limit: str | None = memory_limit_setting()


@dataclass(frozen=True)
class _SplitConfig(ShowConfig):
    """On which split a run's best model is evaluated."""

    split: str | None = setting(
        None,
        "Which TSV of the run's data folder to evaluate on."
        " [default: test if it is there and has labels, else dev]",
        choices=SPLITS,
    )


@dataclass(frozen=True)
class EvalConfig(PredictConfig, _SplitConfig):
    """What `bertaccum eval` evaluates, and on which rows."""

    file: str | None = setting(
        None,
        "A labelled table of your own instead of `split`: CSV, TSV, JSON Lines or Parquet. Its"
        " labels are class names or class numbers of the run.",
        path=True,
    )
    label_column: str = setting("label", "Name or 1-based number of the label column of `file`.")

    def __post_init__(self) -> None:
        super().__post_init__()
        named = (self.text_column, self.label_column, self.delimiter, self.encoding)
        if self.file is None and named != ("text", "label", None, None):
            raise ConfigError(
                "`text_column`, `label_column`, `delimiter` and `encoding` describe `file`,"
                " which is not named",
                "add `file`, or drop them",
            )


@dataclass(frozen=True)
class ReportConfig(_SplitConfig):
    """What the page of `bertaccum report` evaluates, and where it goes."""

    out: str | None = setting(
        None, "File to write. [default: report.html in the run folder]", path=True
    )


@dataclass(frozen=True)
class ExportConfig(ShowConfig):
    """What `bertaccum export` writes, of which run, and where."""

    format: str = setting(
        "savedmodel",
        "savedmodel: TensorFlow's, from text to labels, its tokenizer inside; huggingface: a folder"
        " that transformers loads.",
        choices=FORMATS,
    )
    out: str | None = setting(
        None, "Folder to write. [default: export-FORMAT in the run folder]", path=True
    )

    @property
    def folder(self) -> str:
        """The output folder: `out`, or the default."""
        return self.out or f"{self.run.rstrip('/')}/export-{self.format}"


@dataclass(frozen=True)
class CompareConfig(Options):
    """Where `bertaccum compare` writes, and how it smooths."""

    out: str = setting(".", "Folder for compare.png and compare.svg.", path=True)
    smooth: int | None = setting(
        None,
        "Examples over which the training loss is averaged. [default: a twentieth of the longest"
        " run's, at least the largest update's]",
        minimum=1,
    )
