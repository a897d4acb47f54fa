"""Options of the commands, as frozen dataclasses.

A field's name is the YAML key and, with hyphens, the command-line flag. Its default, help text,
bounds and help section are defined only here; `bertaccum.settings` defines those of options that
several commands share. The command line imports this module at start-up, so the module imports no
large packages.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from bertaccum.errors import ConfigError
from bertaccum.metrics import METRICS
from bertaccum.offload_names import OFFLOAD
from bertaccum.settings import (
    AUTO,
    Options,
    delimiter_setting,
    encoding_setting,
    label_columns_setting,
    label_separator_setting,
    memory_limit_setting,
    save_interval,
    setting,
    size_in_bytes,
    timeout_seconds,
)
from bertaccum.task_names import TASKS

PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
SPLITS = ("train", "dev", "test", "dev-mismatched", "test-mismatched")
SAVEDMODEL, HUGGINGFACE, TFLITE = "savedmodel", "huggingface", "tflite"
FORMATS = (SAVEDMODEL, HUGGINGFACE, TFLITE)
TEXTS, TOKENS = "text", "tokens"
INPUTS = (TEXTS, TOKENS)
NOT_QUANTIZED, INT8 = "none", "int8"
QUANTIZE = (NOT_QUANTIZED, INT8)
STRATEGIES = (AUTO, "one", "mirrored", "multi-worker")
RECOMPUTE = ("none", "layer", AUTO)
FREEZE = ("none", "embeddings")
CUTS = ("cost", "count")
ADAMW, BERT_ADAMW = "adamw", "bert-adamw"
DROPOUT_STREAMS = ("example", "micro-batch")
HEAD, TAIL, HEAD_TAIL = "head", "tail", "head-tail"
MEAN, MAX = "mean", "max"
_LABEL_SEPARATOR = "|"
ACCUMULATOR_DTYPES = ("float32", "bfloat16", "float16")
MAX_SEED = 2**32 - 1

# The choices of `thresholds`: the same for every label, or fitted on dev.tsv.
HALF, FITTED = "0.5", "dev"
_CALIBRATE = (
    "Fit a temperature on dev.tsv, so that probabilities match how often predictions are correct;"
    " it is saved with the best checkpoint."
)
_THRESHOLDS = (
    "Probability from which a label of a multi-label task is predicted. dev: for each label, the"
    " threshold with the highest F1 on dev.tsv; they are saved with the best checkpoint."
)
NOISE_SCALE = ("all", "groups", "none")
# Sections of a command's help, in the order in which they are printed.
SOURCE = "Source"
TABLES = "Tables"
SPLIT = "Split"
DATA = "Data"
MODEL = "Model"
MEMORY = "Batch and memory"
OPTIMIZATION = "Optimization"
CHECKPOINTS = "Evaluation and checkpoints"
DEVICES = "Devices"
OUTPUT = "Output"
GROUPS = (SOURCE, TABLES, SPLIT, DATA, MODEL, MEMORY, OPTIMIZATION, CHECKPOINTS, DEVICES, OUTPUT)


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


def _batch_setting() -> Any:
    """Return the dataclass field that defines the option `batch`."""
    return setting(32, "Number of examples per forward pass.", minimum=1)


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
    task: str | None = setting(
        None,
        "Kind of task. classification: one class for each example; regression: one number;"
        " multi-label: any number of labels. [default: the task for which the data were prepared,"
        " else classification]",
        group=DATA,
        choices=TASKS,
    )
    max_seq_length: int = setting(
        128,
        "Maximum number of tokens per text, including [CLS] and [SEP]; longer texts are truncated,"
        " or read in several `windows`.",
        group=DATA,
        minimum=3,
    )
    truncate: str = setting(
        HEAD,
        "Part of longer texts to keep. head: the beginning; tail: the end; head-tail: some of both,"
        " see `head_fraction`. In pairs, it applies to each text that is truncated.",
        group=DATA,
        choices=(HEAD, TAIL, HEAD_TAIL),
    )
    head_fraction: float = setting(
        0.25,
        "With `truncate` head-tail, the fraction of the kept tokens that come from the beginning.",
        group=DATA,
        minimum=0,
        maximum=1,
    )
    windows: int = setting(
        1,
        "Read a long text in up to this many overlapping windows of `max_seq_length` tokens each. A"
        " text still counts as one example; texts longer than all windows are truncated.",
        group=DATA,
        minimum=1,
    )
    stride: int | None = setting(
        None,
        "With `windows`, the number of tokens from the start of a window to the start of the next"
        " one. [default: three quarters of a window, so that windows overlap by a quarter]",
        group=DATA,
        minimum=1,
    )
    pool: str = setting(
        MEAN,
        "With `windows`, how the encoder's pooled outputs of a text's windows are combined before"
        " the head: their mean, or the maximum of each unit.",
        group=DATA,
        choices=(MEAN, MAX),
    )
    model: str | None = setting(
        None,
        "Encoder preset; `bertaccum models` lists them. [default: the preset of `init_checkpoint`,"
        " else bert-small]",
        group=MODEL,
    )
    init_checkpoint: str | None = setting(
        None,
        "Pretrained weights: the name of a preset, whose weights are downloaded; a zip file, folder"
        " or file prefix in Google's format; a Hugging Face folder; a run folder, whose best"
        " checkpoint is loaded (the head only if the classes match); or none for random weights."
        " [default: the weights of the preset]",
        group=MODEL,
        path=True,
    )
    keep_head: bool = setting(
        False,
        "Start with the head of `init_checkpoint`, a classifier that is fine-tuned already, instead"
        " of a random one. With `max_updates` 0, the run is that classifier, unchanged.",
        group=MODEL,
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
    lower_case: bool | None = setting(
        None,
        "Lowercase texts and remove accents, as for uncased models. [default: as the checkpoint's"
        " tokenizer files or name tell, else as its vocabulary suggests]",
        group=MODEL,
        switch=True,
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
    train_layers: int | None = setting(
        None,
        "Train only the last N layers of the encoder, the pooler and the head; the other weights"
        " keep their initial values and need no gradients, moments or accumulators. [default: all]",
        group=MODEL,
        minimum=0,
    )
    freeze: str = setting(
        FREEZE[0],
        "embeddings: the embeddings keep their initial values, too; none: they are trained, unless"
        " `train_layers` is set.",
        group=MODEL,
        choices=FREEZE,
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
    offload: str = setting(
        AUTO,
        "Parts of the training state to keep in host memory instead of the device's memory; this"
        " does not change the results. moments: AdamW's moments, and the CPU computes the optimizer"
        " step; all: the gradient accumulators as well, in float32; auto: the planner chooses if"
        " `micro_batch` is auto, else none.",
        group=MEMORY,
        choices=(*OFFLOAD, AUTO),
        free=True,
    )
    offload_folder: str | None = setting(
        None,
        "Folder for the files that contain what is offloaded, for machines with little memory."
        " [default: none, use memory]",
        group=MEMORY,
        free=True,
        path=True,
    )

    @property
    def pooling(self) -> str | None:
        """How the windows of a text are combined; None if each text is read in one window."""
        return self.pool if self.windows > 1 else None

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_above(self, "micro_batch", "target_batch")
        _refuse_both(self, "model", "bert_config", "the encoder")
        if self.windows == 1 and (self.stride is not None or self.pool != MEAN):
            name = "pool" if self.stride is None else "stride"
            raise ConfigError(
                f"`{name}` {getattr(self, name)} has no effect without `windows`",
                f"set `windows` to at least 2, or omit `{name}`",
            )
        if (self.stride or 1) > self.max_seq_length - 2:
            raise ConfigError(
                f"`stride` {self.stride} would leave out tokens between windows",
                f"use at most {self.max_seq_length - 2}, `max_seq_length` without [CLS] and [SEP]",
            )


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
        " all `epochs`. 0: only evaluate the model and save it.",
        group=OPTIMIZATION,
        minimum=0,
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
    class_weight: str | None = setting(
        None,
        "Weights of the classes in the training loss. balanced: inversely proportional to the"
        " number of rows of each class in train.tsv; or NAME=W,NAME=W (1 for classes that are not"
        " named). The mean loss of an update is divided by the sum of the weights of its examples."
        " [default: all 1]",
        group=OPTIMIZATION,
    )
    label_smoothing: float = setting(
        0.0,
        "Label smoothing of a classification: fraction of each target that is spread evenly over"
        " all classes.",
        group=OPTIMIZATION,
        minimum=0,
        maximum=0.99,
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
    noise_scale: str = setting(
        NOISE_SCALE[0],
        "Estimate the gradient noise scale, for `bertaccum advise`; this does not change the"
        " updates. all: of all weights; groups: also of the embeddings, the encoder and the head;"
        " none: do not estimate it.",
        group=OPTIMIZATION,
        choices=NOISE_SCALE,
    )
    eval_every: int | float | None = setting(
        None,
        "Evaluation interval: a number of updates (200) or, with a decimal point, of epochs (0.25)."
        " [default: once per epoch]",
        group=CHECKPOINTS,
        minimum=1,
        fraction=True,
    )
    best_by: str | None = setting(
        None,
        "Metric on dev.tsv that selects the best checkpoint. [default: accuracy for classification,"
        " pearson for regression, micro_f1 for multi-label]",
        group=CHECKPOINTS,
        choices=METRICS,
    )
    calibrate: bool = setting(False, _CALIBRATE, group=CHECKPOINTS)
    thresholds: str = setting(HALF, _THRESHOLDS, group=CHECKPOINTS, choices=(HALF, FITTED))
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
    text_pair_column: str | None = setting(
        None,
        "Name or 1-based number of the column of `file` with the second text of each pair."
        " [default: text_pair if the model was trained on pairs]",
    )
    delimiter: str | None = delimiter_setting()
    encoding: str | None = encoding_setting()
    batch: int = _batch_setting()
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
    label_columns: str | None = label_columns_setting(" of `file`")
    label_separator: str = label_separator_setting(_LABEL_SEPARATOR)

    calibrate: bool | None = setting(
        None,
        f"{_CALIBRATE} `calibrate=False` removes it. [default: use the saved temperature, if any]",
        switch=True,
    )
    thresholds: str | None = setting(
        None,
        f"{_THRESHOLDS} 0.5: remove saved thresholds. [default: the saved thresholds, else 0.5]",
        choices=(HALF, FITTED),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = ["text_column", "text_pair_column", "label_column", "label_columns"]
        own = [*columns, "label_separator", "delimiter", "encoding"]
        defaults = {field.name: field.default for field in fields(self)}
        if self.file is None and any(getattr(self, name) != defaults[name] for name in own):
            *most, last = (f"`{name}`" for name in own)
            raise ConfigError(
                f"{', '.join(most)} and {last} apply only to `file`, which is not given",
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
        SAVEDMODEL,
        "Format of the export. savedmodel: a TensorFlow SavedModel that includes the tokenizer and"
        " maps texts to probabilities; huggingface: a folder that the transformers library loads;"
        " tflite: a TensorFlow Lite (LiteRT) model that maps token IDs to probabilities.",
        choices=FORMATS,
    )
    out: str | None = setting(
        None,
        "Folder to write. [default: export-FORMAT in the run folder; export-savedmodel-tokens and"
        " export-tflite-int8 for these variants]",
        path=True,
    )
    inputs: str = setting(
        TEXTS,
        "Inputs of a SavedModel. text: texts, and token IDs in a second signature; loading it needs"
        " the operations of tensorflow-text. tokens: only token IDs; loading it needs only"
        " TensorFlow.",
        choices=INPUTS,
    )
    quantize: str = setting(
        NOT_QUANTIZED,
        "Quantization of a tflite model. none: weights in float32; int8: weights in int8, a quarter"
        " of the size (dynamic range quantization).",
        choices=QUANTIZE,
    )

    @property
    def folder(self) -> str:
        """The folder to write: `out`, or the default folder of the format."""
        tokens = f"-{TOKENS}" if (self.format, self.inputs) == (SAVEDMODEL, TOKENS) else ""
        int8 = f"-{INT8}" if self.quantize == INT8 else ""
        return self.out or f"{self.run.rstrip('/')}/export-{self.format}{tokens}{int8}"


@dataclass(frozen=True)
class ServeConfig(ShowConfig):
    """Options of `bertaccum serve`: the run, the address, and the limits of the service."""

    host: str = setting(
        "127.0.0.1",
        "Address to listen on. The default accepts connections from this machine only; 0.0.0.0"
        " accepts connections from the network.",
    )
    port: int = setting(8000, "Port to listen on. 0: any free port.", minimum=0, maximum=65535)
    batch: int = _batch_setting()
    batch_tokens: int = setting(
        16384,
        "Maximum number of tokens that are predicted together. Further texts wait for the next"
        " batch. A text counts one token per character, up to the length at which it is truncated.",
        minimum=1,
    )
    batch_delay_ms: float = setting(
        5.0,
        "Maximum time in milliseconds for which a request waits for others to share its batch;"
        " it does not wait if no others are expected.",
        minimum=0,
        maximum=10_000,
    )
    max_texts: int = setting(256, "Maximum number of texts in a request.", minimum=1)
    max_body: str = setting(
        "1MiB", "Maximum size of a request.", check=partial(size_in_bytes, "max_body")
    )
    max_queue: int = setting(
        1024,
        "Maximum number of texts that wait for the model. A request that exceeds it is refused with"
        " status 503.",
        minimum=1,
    )
    timeout_seconds: float = setting(
        30.0,
        "Maximum time in seconds for a request to arrive, and again to be answered.",
        minimum=0,
        maximum=86_400,
        exclusive=True,
    )
    memory_limit: str | None = memory_limit_setting()

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_above(self, "max_texts", "max_queue")


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
