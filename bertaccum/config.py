"""Options of the commands, as frozen dataclasses.

A field's name is the YAML key and, with hyphens, the command-line flag. Its default, help text,
bounds and help section are defined only here; `bertaccum.settings` defines those of options that
several commands share. The command line imports this module at start-up, so the module imports no
large packages.
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

# Sections of a command's help, in the order in which they are printed.
DATA = "Data"
MODEL = "Model"
MEMORY = "Batch and memory"
OPTIMIZATION = "Optimization"
CHECKPOINTS = "Evaluation and checkpoints"
DEVICES = "Devices"
OUTPUT = "Output"
GROUPS = (DATA, MODEL, MEMORY, OPTIMIZATION, CHECKPOINTS, DEVICES, OUTPUT)


@dataclass(frozen=True)
class PrepareConfig(Options):
    """Options of `bertaccum prepare`: the source of the texts, their split and the data folder."""

    source: str = setting(
        "yelp",
        "Source of the texts. yelp: Yelp Polarity from tensorflow-datasets; sample: generated"
        " reviews; csv: your own tables or folders.",
        choices=SOURCES,
    )
    out: str | None = setting(
        None,
        "Data folder to write. [default: data/yelp_polarity, data/sample or data/csv, depending on"
        " `source`]",
        path=True,
    )
    archive: str | None = setting(
        None,
        "Existing copy of yelp_review_polarity_csv.tgz to read instead of downloading it.",
        path=True,
    )
    allow_unverified_archive: bool = setting(
        False,
        "Accept an `archive` whose checksum differs from the one that tensorflow-datasets records.",
    )
    train_file: str | None = setting(
        None,
        "Training rows for `source` csv: a CSV, TSV, JSON Lines or Parquet file, or a folder that"
        " contains, for each class, a subfolder of texts or a .txt file with one text per line.",
        path=True,
    )
    test_file: str | None = setting(
        None, "Test rows for `source` csv, in any format that `train_file` accepts.", path=True
    )
    text_column: str = setting("text", "Name or 1-based number of the text column.")
    label_column: str = setting("label", "Name or 1-based number of the label column.")
    delimiter: str | None = delimiter_setting()
    encoding: str | None = encoding_setting()
    layout: str = setting(
        "plain",
        "Layout of the TSV files. plain: a header, then label and text; cola: the layout that"
        " run_classifier.py of google-research/bert reads (test.tsv has no labels).",
        choices=LAYOUTS,
    )
    dev_fraction: float = setting(
        0.01,
        "Fraction of the training rows held out as dev.tsv; each class contributes in proportion"
        " to its size.",
        minimum=0,
        maximum=1,
        exclusive=True,
    )
    test_fraction: float = setting(
        0.0,
        "Fraction of the training rows held out as test.tsv if there is no `test_file`; 0 holds"
        " out none.",
        minimum=0,
        maximum=0.99,
    )
    drop_duplicates: bool | None = setting(
        None,
        "Drop each training row whose text occurs in an earlier training row or in the test set."
        " `drop_duplicates=False` keeps all rows. [default: drop only rows whose text is in the"
        " test set]",
        switch=True,
    )
    seed: int = setting(
        0, "Seed of the split and of the generated reviews.", minimum=0, maximum=MAX_SEED
    )
    overwrite: bool = setting(False, "Replace a data folder that was prepared with other options.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source == "csv" and self.train_file is None:
            raise ConfigError("`source` csv needs `train_file`", "pass the file or folder to read")
        for one, other in (("train_file", "test_file"), ("delimiter", "encoding")):
            if self.source != "csv" and (getattr(self, one) or getattr(self, other)):
                raise ConfigError(
                    f"`{one}` and `{other}` cannot be used with `source` {self.source}",
                    "set `source` to csv, or omit these options",
                )
        if self.archive is not None and self.source != "yelp":
            raise ConfigError(
                f"`archive` cannot be used with `source` {self.source}", "omit one of the two"
            )
        if self.test_fraction:
            self._check_test_fraction()

    def _check_test_fraction(self) -> None:
        given = f"`test_file` {self.test_file}" if self.test_file else f"`source` {self.source}"
        if self.test_file or self.source != "csv":
            raise ConfigError(
                f"`test_fraction` {self.test_fraction} cannot be used with {given}, which already"
                " has test rows",
                "omit `test_fraction`",
            )
        if self.test_fraction + self.dev_fraction >= 1:
            raise ConfigError(
                f"`test_fraction` {self.test_fraction} and `dev_fraction` {self.dev_fraction}"
                " leave no rows for train.tsv",
                "lower one of the two",
            )

    @property
    def folder(self) -> str:
        """The data folder to write: `out`, or the default folder of the source."""
        return self.out or f"data/{'yelp_polarity' if self.source == 'yelp' else self.source}"


def _refuse_above(config: Options, name: str, limit: str) -> None:
    """Raise ConfigError if one option has a greater value than the option that limits it.

    Args:
      config: The options.
      name: Name of the option to check.
      limit: Name of the option that limits it.
    """
    value, most = getattr(config, name), getattr(config, limit)
    if isinstance(value, int) and value > most:
        raise ConfigError(
            f"`{name}` {value} is above `{limit}` {most}", f"lower `{name}` or raise `{limit}`"
        )


def _refuse_both(config: Options, one: str, other: str, what: str) -> None:
    """Raise ConfigError if two options that define the same thing are both given."""
    first, second = getattr(config, one), getattr(config, other)
    if first is not None and second is not None:
        raise ConfigError(
            f"`{one}` {first} and `{other}` {second} both define {what}", "omit one of the two"
        )


@dataclass(frozen=True)
class StepConfig(Options):
    """Options that determine the cost of a training step: model, batch, precision and memory."""

    data: str = setting(
        "data/yelp_polarity",
        "Data folder written by `bertaccum prepare`.",
        group=DATA,
        free=True,
        path=True,
    )
    max_seq_length: int = setting(
        128,
        "Maximum number of tokens per text, including [CLS] and [SEP]; longer texts are truncated.",
        group=DATA,
        minimum=3,
    )
    model: str | None = setting(
        None,
        "Encoder preset. [default: the preset of `init_checkpoint`, else bert-small]",
        group=MODEL,
        choices=PRESETS,
    )
    init_checkpoint: str | None = setting(
        None,
        "Pretrained weights: the name of a preset, whose weights are downloaded; a zip file, folder"
        " or bert_model.ckpt in Google's format; a Hugging Face folder; a run folder, whose best"
        " checkpoint is loaded (the head only if the classes match); or none for random weights."
        " [default: the weights of the preset]",
        group=MODEL,
        path=True,
    )
    bert_config: str | None = setting(
        None, "bert_config.json file to use instead of a preset.", group=MODEL, path=True
    )
    vocab: str | None = setting(
        None,
        "WordPiece vocabulary file. [default: the vocabulary of the checkpoint, else that of the"
        " data folder]",
        group=MODEL,
        free=True,
        path=True,
    )
    dropout: float = setting(
        0.1, "Dropout rate of the encoder and the head.", group=MODEL, minimum=0, maximum=0.99
    )
    dropout_stream: str = setting(
        "example",
        "How dropout masks are seeded. example: one mask per example, so results do not depend on"
        " the micro-batch size; micro-batch: a fresh mask per micro-batch, as in other frameworks,"
        " so results depend on the micro-batch size.",
        group=MODEL,
        choices=DROPOUT_STREAMS,
    )
    target_batch: int = setting(
        32, "Number of examples per optimizer update.", group=MEMORY, minimum=1
    )
    micro_batch: int | str = setting(
        AUTO,
        "Number of full-length examples per forward and backward pass. auto: the fastest size that"
        " fits in memory, as `bertaccum plan` finds it.",
        group=MEMORY,
        minimum=1,
        free=True,
    )
    memory_limit: str | None = memory_limit_setting(group=MEMORY)
    precision: str = setting(
        AUTO,
        "Numeric precision of the model. auto: float32 on a CPU, mixed_bfloat16 on a GPU of compute"
        " capability 8 or higher, mixed_float16 on older GPUs.",
        group=MEMORY,
        choices=(AUTO, *PRECISIONS),
    )
    recompute: str = setting(
        AUTO,
        "Activation recomputation, which saves memory but takes time; it does not change the"
        " results. layer: store only the input of each encoder layer and recompute the rest; none:"
        " store all activations; auto: the planner chooses if `micro_batch` is auto, else none.",
        group=MEMORY,
        choices=RECOMPUTE,
        free=True,
    )
    cut: str = setting(
        "cost",
        "How the examples of an update are split into micro-batches. cost: by length, in the way"
        " that is fastest; short examples share larger micro-batches. count: into micro-batches of"
        " `micro_batch` examples.",
        group=MEMORY,
        choices=CUTS,
        free=True,
    )
    accumulator_dtype: str = setting(
        "float32",
        "Data type of the gradient accumulators. bfloat16 and float16 halve their memory and keep"
        " about 3 digits of the mean gradient.",
        group=MEMORY,
        choices=ACCUMULATOR_DTYPES,
    )
    offload_optimizer: bool = setting(
        False,
        "Keep AdamW's moments in host memory and run AdamW on the CPU.",
        group=MEMORY,
        free=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_above(self, "micro_batch", "target_batch")
        _refuse_both(self, "model", "bert_config", "the encoder")


@dataclass(frozen=True)
class TrainConfig(StepConfig):
    """Options of `bertaccum train`: `StepConfig`, optimization, evaluation, devices and output."""

    epochs: float = setting(
        3.0, "Number of passes over train.tsv.", group=OPTIMIZATION, minimum=0, exclusive=True
    )
    learning_rate: float = setting(
        2e-5, "Peak learning rate.", group=OPTIMIZATION, minimum=0, exclusive=True
    )
    seed: int = setting(
        0,
        "Seed of the initial weights, the data order and dropout.",
        group=OPTIMIZATION,
        minimum=0,
        maximum=MAX_SEED,
    )
    max_updates: int | None = setting(
        None,
        "Maximum number of updates; it does not change the learning rate schedule, which covers"
        " all `epochs`.",
        group=OPTIMIZATION,
        minimum=1,
        free=True,
    )
    warmup_fraction: float = setting(
        0.1,
        "Fraction of the updates during which the learning rate rises linearly; linear decay"
        " follows.",
        group=OPTIMIZATION,
        minimum=0,
        maximum=1,
    )
    weight_decay: float = setting(
        0.01,
        "Weight decay rate; biases and LayerNorm parameters are exempt.",
        group=OPTIMIZATION,
        minimum=0,
    )
    clip_norm: float = setting(
        1.0,
        "Gradient clipping: maximum global norm of the mean gradient.",
        group=OPTIMIZATION,
        minimum=0,
        exclusive=True,
    )
    optimizer: str = setting(
        ADAMW,
        "Optimizer. adamw: AdamW, with learning rate decay that starts after warm-up; bert-adamw:"
        " AdamW as in google-research/bert, without bias correction and with decay that starts at"
        " the first update.",
        group=OPTIMIZATION,
        choices=(ADAMW, BERT_ADAMW),
    )
    max_nonfinite: int = setting(
        20,
        "Stop after this many consecutive updates with a non-finite gradient. Such updates are"
        " skipped; mixed_float16 skips some while it finds its loss scale.",
        group=OPTIMIZATION,
        minimum=1,
        free=True,
    )
    deterministic: bool | None = setting(
        None,
        "Make results bit-identical in every run on the same machine. [default: only on a CPU]",
        group=OPTIMIZATION,
        switch=True,
    )
    eval_every: int | float | None = setting(
        None,
        "Evaluation interval: a number of updates (200) or, with a decimal point, of epochs (0.25)."
        " [default: once per epoch]",
        group=CHECKPOINTS,
        minimum=1,
        fraction=True,
    )
    best_by: str = setting(
        "accuracy",
        "Metric on dev.tsv that selects the best checkpoint.",
        group=CHECKPOINTS,
        choices=METRICS,
    )
    patience: int | None = setting(
        None,
        "Early stopping: stop after this many consecutive evaluations that are worse than the best"
        " one. [default: never]",
        group=CHECKPOINTS,
        minimum=1,
        free=True,
    )
    save_every: str = setting(
        "10m",
        "Checkpoint interval: a number of updates (200) or a time (90s, 10m, 2h).",
        group=CHECKPOINTS,
        free=True,
        check=save_interval,
    )
    keep: int = setting(
        2, "Number of checkpoints to keep for resuming.", group=CHECKPOINTS, minimum=1, free=True
    )
    strategy: str = setting(
        AUTO,
        "Devices to train on. one: the first device; mirrored: several devices of this process;"
        " multi-worker: the devices of several processes, as described by TF_CONFIG, Slurm or"
        " `bertaccum launch`; auto: multi-worker if one of these describes several processes, else"
        " all GPUs.",
        group=DEVICES,
        choices=STRATEGIES,
        free=True,
    )
    replicas: int | None = setting(
        None,
        "Number of GPUs to use in this process; without a GPU, number of virtual CPU devices."
        " [default: all GPUs, or one CPU device]",
        group=DEVICES,
        minimum=1,
        free=True,
    )
    collective_timeout: str = setting(
        "10m",
        "Maximum time for which workers wait for each other, such as 90s or 10m.",
        group=DEVICES,
        free=True,
        check=timeout_seconds,
    )
    out: str | None = setting(
        None, "Run folder to create. [default: runs/DATE-TIME]", group=OUTPUT, path=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strategy == "one" and self.replicas not in (None, 1):
            raise ConfigError(
                f"`strategy` one and `replicas` {self.replicas} contradict each other",
                "omit one of the two",
            )
        _refuse_above(self, "replicas", "target_batch")


@dataclass(frozen=True)
class PlanConfig(StepConfig):
    """Options of `bertaccum plan`: `StepConfig`, the device and the output file."""

    device_memory: str | None = setting(
        None,
        "Plan for a GPU with this much memory, such as 4GiB, which need not be in this machine."
        " Part of the memory is reserved for the CUDA context and workspaces.",
        group=MEMORY,
        check=partial(size_in_bytes, "device_memory"),
    )
    out: str = setting("plan.json", "Plan file to write.", group=OUTPUT, path=True)
    fresh: bool = setting(
        False,
        "Ignore earlier measurements and out-of-memory failures, and measure again.",
        group=MEMORY,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_both(self, "device_memory", "memory_limit", "the memory of the device")


@dataclass(frozen=True)
class ShowConfig(Options):
    """Options of `bertaccum show`; base class of the options of commands that read one run."""

    run: str = setting("runs/latest", "Run folder written by `bertaccum train`.", path=True)


@dataclass(frozen=True)
class PredictConfig(ShowConfig):
    """Options of `bertaccum predict`: the run, the texts and the batch size."""

    file: str | None = setting(
        None,
        "Table with a text column (CSV, TSV, JSON Lines or Parquet), or a file with one text per"
        " line. Use - for stdin.",
        path=True,
    )
    text_column: str = setting("text", "Name or 1-based number of the text column of `file`.")
    delimiter: str | None = delimiter_setting()
    encoding: str | None = encoding_setting()
    batch: int = setting(32, "Number of examples per forward pass.", minimum=1)
    memory_limit: str | None = memory_limit_setting()


@dataclass(frozen=True)
class _SplitConfig(ShowConfig):
    """Options of commands that evaluate the best model of a run on a split."""

    split: str | None = setting(
        None,
        "Split of the run's data to evaluate on."
        " [default: test if it exists and has labels, else dev]",
        choices=SPLITS,
    )


@dataclass(frozen=True)
class EvalConfig(PredictConfig, _SplitConfig):
    """Options of `bertaccum eval`: the run, and the split or table to evaluate on."""

    file: str | None = setting(
        None,
        "Labeled table to evaluate on instead of a split: CSV, TSV, JSON Lines or Parquet. Its"
        " labels are the run's class names or class numbers.",
        path=True,
    )
    label_column: str = setting("label", "Name or 1-based number of the label column of `file`.")

    def __post_init__(self) -> None:
        super().__post_init__()
        named = (self.text_column, self.label_column, self.delimiter, self.encoding)
        if self.file is None and named != ("text", "label", None, None):
            raise ConfigError(
                "`text_column`, `label_column`, `delimiter` and `encoding` apply only to `file`,"
                " which is not given",
                "add `file`, or omit these options",
            )


@dataclass(frozen=True)
class ReportConfig(_SplitConfig):
    """Options of `bertaccum report`: the run, the split to evaluate on and the output file."""

    out: str | None = setting(
        None, "HTML file to write. [default: report.html in the run folder]", path=True
    )


@dataclass(frozen=True)
class ExportConfig(ShowConfig):
    """Options of `bertaccum export`: the run, the format and the output folder."""

    format: str = setting(
        "savedmodel",
        "Format of the export. savedmodel: a TensorFlow SavedModel that includes the tokenizer and"
        " maps texts to probabilities; huggingface: a folder that the transformers library loads.",
        choices=FORMATS,
    )
    out: str | None = setting(
        None, "Folder to write. [default: export-FORMAT in the run folder]", path=True
    )

    @property
    def folder(self) -> str:
        """The folder to write: `out`, or the default folder of the format."""
        return self.out or f"{self.run.rstrip('/')}/export-{self.format}"


@dataclass(frozen=True)
class CompareConfig(Options):
    """Options of `bertaccum compare`: the output folder and the smoothing."""

    out: str = setting(".", "Folder to write compare.png and compare.svg to.", path=True)
    smooth: int | None = setting(
        None,
        "Number of examples over which the training loss is averaged. [default: a twentieth of the"
        " longest run, but at least the largest target batch]",
        minimum=1,
    )
