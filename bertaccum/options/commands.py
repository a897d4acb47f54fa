"""Options of the commands, as frozen dataclasses.

A field's name is the YAML key and, with hyphens, the command-line flag. Its default, help text,
bounds and help section are defined only here; `bertaccum.options.fields` defines those of options
that several commands share. The command line imports this module at start-up, so the module imports
no large packages. It is long because it lists all options.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from bertaccum.errors import ConfigError
from bertaccum.options import fields
from bertaccum.options.adapting import BIAS, FULL, LORA, check_adapters, target_names
from bertaccum.options.cards import CARDS, Card, card_with_memory, check_card
from bertaccum.options.fields import AUTO, MAX_EPOCHS, OFF, ON, Numbers, Options, setting
from bertaccum.options.metrics import METRICS
from bertaccum.options.offload_rungs import OFFLOAD
from bertaccum.options.task_names import MASKED_LM, REGRESSION, TASKS, TOKEN_CLASSIFICATION

PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
SPLITS = ("train", "dev", "test", "dev-mismatched", "test-mismatched")
SAVEDMODEL, HUGGINGFACE = "savedmodel", "huggingface"
GOOGLE, TFLITE = "google", "tflite"
TEXTS, TOKENS = "text", "tokens"
NOT_QUANTIZED, INT8 = "none", "int8"
ADAMW, BERT_ADAMW = "adamw", "bert-adamw"
HEAD, TAIL, HEAD_TAIL = "head", "tail", "head-tail"
# Values of `label_pieces`.
FIRST, ALL = "first", "all"
MEAN, MAX = "mean", "max"
MAX_SEED = 2**32 - 1

# The choices of `thresholds`: the same for every label, or fitted on dev.tsv.
HALF, FITTED = "0.5", "dev"
NAMES, NUMBERS = "names", "numbers"
_CALIBRATE = (
    "Fit a temperature on dev.tsv, so that probabilities match how often predictions are correct;"
    " it is saved with the best checkpoint."
)
_THRESHOLDS = (
    "Probability from which a label of a multi-label task is predicted. dev: for each label, the"
    " threshold with the highest F1 on dev.tsv; they are saved with the best checkpoint."
)
# Sections of a command's help, in the order in which they are printed.
SOURCE, TABLES, SPLIT, DATA, MODEL = "Source", "Tables", "Split", "Data", "Model"
MEMORY, OPTIMIZATION = "Batch and memory", "Optimization"
CHECKPOINTS, DEVICES, OUTPUT = "Evaluation and checkpoints", "Devices", "Output"
GROUPS = (SOURCE, TABLES, SPLIT, DATA, MODEL, MEMORY, OPTIMIZATION, CHECKPOINTS, DEVICES, OUTPUT)

# Each defines an option of one section, as `setting` does.
data_option = partial(setting, group=DATA)
model_option = partial(setting, group=MODEL)
memory_option = partial(setting, group=MEMORY)
optimization_option = partial(setting, group=OPTIMIZATION)
checkpoint_option = partial(setting, group=CHECKPOINTS)
device_option = partial(setting, group=DEVICES, free=True)  # A run may resume on other devices.
output_option = partial(setting, group=OUTPUT)


def _refuse_above(config: Options, name: str, limit: str) -> None:
    """Raise ConfigError if one option has a greater value than the option that limits it."""
    value, most = getattr(config, name), getattr(config, limit)
    if isinstance(value, int) and value > most:
        what = f"`{name}` {value} is above `{limit}` {most}"
        raise ConfigError(what, f"lower `{name}` or raise `{limit}`")


def _refuse_both(config: Options, one: str, other: str, what: str) -> None:
    """Raise ConfigError if two options that define the same thing are both given."""
    first, second = getattr(config, one), getattr(config, other)
    if first is not None and second is not None:
        message = f"`{one}` {first} and `{other}` {second} both define {what}"
        raise ConfigError(message, "omit one of the two")


def _batch_setting() -> Any:
    """Return the dataclass field that defines the option `batch`."""
    return setting(32, "Number of examples per forward pass.", numbers=Numbers(1))


@dataclass(frozen=True)
class StepConfig(Options):
    """Options that determine the cost of a training step: model, batch, precision and memory."""

    data: str = data_option(
        "data/yelp_polarity", "Data folder written by `bertaccum prepare`.", free=True, path=True
    )
    task: str | None = data_option(
        None,
        "Kind of task. classification: one class for each example; regression: one number;"
        " multi-label: any number of labels; token-classification: a tag for each word. [default:"
        " the task in the data folder, else classification]",
        choices=TASKS,
    )
    max_seq_length: int = data_option(
        128,
        "Maximum number of tokens per text, including [CLS] and [SEP], at least 5 for pairs; longer"
        " texts are truncated, or read in several `windows`.",
        numbers=Numbers(3),
    )
    truncate: str = data_option(
        HEAD,
        "Part of longer texts to keep. head: the beginning; tail: the end; head-tail: the"
        " beginning and the end, divided by `head_fraction`. In pairs, it applies to each text"
        " that is truncated.",
        choices=(HEAD, TAIL, HEAD_TAIL),
    )
    head_fraction: float = data_option(
        0.25,
        "With `truncate` head-tail, the fraction of the kept tokens that come from the beginning.",
        numbers=Numbers(0, 1),
    )
    windows: int = data_option(
        1,
        "Read a long text in up to this many overlapping windows of `max_seq_length` tokens each. A"
        " text still counts as one example; texts longer than all windows are truncated.",
        numbers=Numbers(1),
    )
    stride: int | None = data_option(
        None,
        "With `windows`, the number of tokens from the start of a window to the start of the next"
        " one. [default: three quarters of a window, so that windows overlap by a quarter]",
        numbers=Numbers(1),
    )
    pool: str = data_option(
        MEAN,
        "With `windows`, how the encoder's pooled outputs of a text's windows are combined before"
        " the head: their mean, or the maximum of each unit.",
        choices=(MEAN, MAX),
    )
    label_pieces: str = data_option(
        FIRST,
        "For token-classification, the pieces of a word that are trained. first: the first one,"
        " which gives the word its tag; all: also the others, with the tag I-TYPE after B-TYPE.",
        choices=(FIRST, ALL),
    )
    model: str | None = model_option(
        None,
        "Encoder preset; `bertaccum models` lists them. [default: the preset of `init_checkpoint`,"
        " else bert-small]",
    )
    init_checkpoint: str | None = model_option(
        None,
        "Pretrained weights: the name of a preset, a folder, a run, OWNER/NAME on the Hugging Face"
        " Hub, or none for random weights. The weights of a preset are downloaded. A zip file,"
        " folder or file prefix may be in Google's format, and a folder in Hugging Face's, or with"
        " an adapter of peft. A model on the Hub can be OWNER/NAME@REVISION. From a run, the best"
        " checkpoint is loaded, and the head if the labels are exactly the same, or with"
        " `keep_head`. [default: the weights of the preset]",
        path=True,
    )
    keep_head: bool = model_option(
        False,
        "Keep the head of `init_checkpoint`, a fine-tuned classifier, instead of starting with a"
        " random head. With `max_updates` 0, the run contains that classifier unchanged.",
    )
    bert_config: str | None = model_option(
        None, "bert_config.json file to use instead of a preset.", path=True
    )
    vocab: str | None = model_option(
        None,
        "WordPiece vocabulary file. [default: the vocabulary of the checkpoint, else that of the"
        " data folder]",
        free=True,
        path=True,
    )
    lower_case: bool | None = model_option(
        None,
        "Lowercase texts and remove accents, as for uncased models. [default: what the"
        " checkpoint's tokenizer files or name say, else what its vocabulary suggests]",
        switch=True,
    )
    dropout: float = model_option(
        0.1, "Dropout rate of the encoder and the head.", numbers=Numbers(0, 0.99)
    )
    dropout_stream: str = model_option(
        "example",
        "How dropout masks are seeded. example: one mask per example, so results do not depend on"
        " the micro-batch size; micro-batch: a fresh mask per micro-batch, as in other frameworks,"
        " so results depend on the micro-batch size.",
        choices=("example", "micro-batch"),
    )
    train_layers: int | None = model_option(
        None,
        "Train only the last N layers of the encoder, the pooler and the head; the other weights"
        " keep their initial values and need no gradients, moments or accumulators. [default: all]",
        numbers=Numbers(0),
    )
    freeze: str = model_option(
        "none",
        "Weights to freeze in addition to those that `train_layers` freezes. embeddings: the"
        " embeddings keep their initial values; none: they are trained, unless `train_layers` is"
        " set.",
        choices=("none", "embeddings"),
    )
    adapt: str = model_option(
        FULL,
        "Weights of the encoder to train. full: all; lora: low-rank adapters beside the layers"
        " `lora_targets`, whose own weights are frozen; bias: the biases, including the offsets of"
        " layer normalization. The pooler and the head are always trained. Checkpoints contain only"
        " trained weights, unless training starts from random weights.",
        choices=(FULL, LORA, BIAS),
    )
    lora_rank: int = model_option(8, "With `adapt` lora, the rank of adapters.", numbers=Numbers(1))
    lora_alpha: float | None = model_option(
        None,
        "With `adapt` lora, the scale of adapters: their output is multiplied by this number"
        " divided by the rank. [default: twice the rank]",
        numbers=Numbers(0, exclusive=True, real=True),
    )
    lora_targets: str = model_option(
        "query,value",
        "With `adapt` lora, the layers that get adapters, separated by commas: query, key, value,"
        " attention-output, intermediate, output; or all.",
        check=target_names,
    )
    lora_dropout: float = model_option(
        0.0, "With `adapt` lora, the dropout rate of adapters' inputs.", numbers=Numbers(0, 0.99)
    )
    frozen_dtype: str = model_option(
        "float32",
        "Data type in which the device stores the kernels and word embeddings that are never"
        " trained. bfloat16 and float16 halve their memory, and round them.",
        choices=("float32", "bfloat16", "float16"),
    )
    target_batch: int = memory_option(
        32, "Number of examples per optimizer update.", numbers=Numbers(1)
    )
    micro_batch: int | str = memory_option(
        AUTO,
        "Number of full-length examples per forward and backward pass. auto: the fastest size that"
        " fits in memory, as `bertaccum plan` finds it.",
        numbers=Numbers(1),
        free=True,
    )
    memory_limit: str | None = fields.memory_limit_setting(group=MEMORY)
    precision: str = memory_option(
        AUTO,
        "Numeric precision of the model. auto: float32 on CPUs and on GPUs of compute capability"
        " below 7.0; mixed_float16 or, from 8.0 on, mixed_bfloat16 on newer GPUs, unless the"
        " planner measures that float32 is faster. It compares them only if `micro_batch` is auto.",
        choices=(AUTO, *PRECISIONS),
    )
    recompute: str = memory_option(
        AUTO,
        "Activation recomputation, which saves memory but takes time; it does not change the"
        " results. layer: store only the input of each encoder layer and recompute the rest; none:"
        " store all activations; auto: the planner chooses if `micro_batch` is auto, else none.",
        choices=("none", "layer", AUTO),
        free=True,
    )
    cut: str = memory_option(
        "cost",
        "How the examples of an update are split into micro-batches. cost: sorted by length, in"
        " the fastest way; a micro-batch of short examples contains more of them. count: into"
        " micro-batches of `micro_batch` examples.",
        choices=("cost", "count"),
        free=True,
    )
    compile: str = memory_option(
        AUTO,
        "Compile training steps with XLA, which makes GPUs faster but takes seconds for each shape"
        " of a micro-batch; in float32 it changes the results only by rounding. auto: if it was"
        " measured to save time in this run; it is off in runs of a few minutes and, on CPUs, in"
        " runs of less than an hour or with a set `micro_batch`. Several workers do not measure.",
        choices=(AUTO, ON, OFF),
    )
    accumulator_dtype: str = memory_option(
        "float32",
        "Data type of the gradient accumulators. bfloat16 and float16 halve their memory and keep"
        " about 3 digits of the mean gradient.",
        choices=("float32", "bfloat16", "float16"),
    )
    offload: str = memory_option(
        AUTO,
        "Parts of the training state to keep in host memory instead of the device's memory; this"
        " does not change the results. moments: AdamW's moments, and the CPU computes the optimizer"
        " step; all: the gradient accumulators as well, in float32; auto: the planner chooses if"
        " `micro_batch` is auto, else none.",
        choices=(*OFFLOAD, AUTO),
        free=True,
    )
    offload_folder: str | None = memory_option(
        None,
        "Folder for files with the offloaded tensors, for machines with little memory. [default:"
        " keep them in memory]",
        free=True,
        path=True,
    )

    @property
    def saving(self) -> tuple[str, str]:
        """`recompute` and `offload`; auto means none if the planner does not choose the size."""
        chosen = AUTO if self.micro_batch == AUTO else "none"
        recompute, offload = (
            chosen if value == AUTO else value for value in (self.recompute, self.offload)
        )
        return recompute, offload

    @property
    def tags_words(self) -> bool:
        """Whether the model gives each word a tag."""
        return self.task == TOKEN_CLASSIFICATION

    @property
    def predicts_masked(self) -> bool:
        """Whether the model predicts masked tokens, as in pretraining."""
        return self.task == MASKED_LM

    @property
    def pooling(self) -> str | None:
        """How the windows of a text are combined; None if each text is read in one window."""
        return self.pool if self.windows > 1 else None

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_above(self, "micro_batch", "target_batch")
        _refuse_both(self, "model", "bert_config", "the encoder")
        check_adapters(self)
        if self.windows == 1 and (self.stride is not None or self.pool != MEAN):
            name = "pool" if self.stride is None else "stride"
            what = f"`{name}` {getattr(self, name)} has no effect without `windows`"
            raise ConfigError(what, f"set `windows` to at least 2, or omit `{name}`")
        if self.truncate != HEAD_TAIL and self.head_fraction != StepConfig.head_fraction:
            how = f"`truncate` {HEAD_TAIL}"
            what = f"`head_fraction` {self.head_fraction} has no effect without {how}"
            raise ConfigError(what, f"set {how}, or omit `head_fraction`")
        for name in ("truncate", "pool"):
            if self.tags_words and getattr(self, name) != getattr(StepConfig, name):
                what = f"`{name}` {getattr(self, name)} does not suit the task {self.task}"
                raise ConfigError(what, f"omit `{name}`; `windows` reads all words of long texts")
        if self.label_pieces != FIRST and self.task not in (None, TOKEN_CLASSIFICATION):
            what = f"`label_pieces` applies only to the task {TOKEN_CLASSIFICATION}"
            raise ConfigError(what, "omit it")
        if (self.stride or 1) > (most := self.max_seq_length - 2):
            what = f"`stride` {self.stride} would leave out tokens between windows"
            raise ConfigError(what, f"use at most {most}, `max_seq_length` without [CLS] and [SEP]")


@dataclass(frozen=True)
class TrainConfig(StepConfig):
    """Options of `bertaccum train`: `StepConfig`, optimization, evaluation, devices and output."""

    epochs: float = optimization_option(
        3.0, "Number of passes over train.tsv.", numbers=Numbers(0, MAX_EPOCHS, exclusive=True)
    )
    learning_rate: float | None = optimization_option(
        None,
        "Peak learning rate. [default: fits the model, from 2e-5 for pretrained models with 768"
        " units to 5e-4 for random ones with 128]",
        numbers=Numbers(0, exclusive=True, real=True),
    )
    seed: int = optimization_option(
        0, "Seed of the initial weights, the data order and dropout.", numbers=Numbers(0, MAX_SEED)
    )
    max_updates: int | None = optimization_option(
        None,
        "Maximum number of updates; it does not change the learning rate schedule, which covers"
        " all `epochs`. 0: only evaluate the model and save it.",
        numbers=Numbers(0),
        free=True,
    )
    warmup_fraction: float = optimization_option(
        0.1,
        "Fraction of the updates during which the learning rate rises linearly; linear decay"
        " follows.",
        numbers=Numbers(0, 1),
    )
    weight_decay: float = optimization_option(
        0.01, "Weight decay rate; biases and LayerNorm parameters are exempt.", numbers=Numbers(0)
    )
    clip_norm: float = optimization_option(
        1.0,
        "Gradient clipping: maximum global norm of the mean gradient.",
        numbers=Numbers(0, exclusive=True),
    )
    class_weight: str | None = optimization_option(
        None,
        "Weights of the classes in the training loss. balanced: inversely proportional to the"
        " number of rows of each class in train.tsv, or of words of each tag; or NAME=W,NAME=W (1"
        " for classes that are not named). The mean loss of an update is divided by the sum of the"
        " weights of its examples or words."
        " [default: all 1]",
    )
    label_smoothing: float = optimization_option(
        0.0,
        "Label smoothing, for classification: fraction of each target that is spread evenly over"
        " all classes.",
        numbers=Numbers(0, 0.99),
    )
    teacher: str | None = optimization_option(
        None,
        "Trained classifier whose outputs the model also learns (knowledge distillation): a run"
        " folder, a Hugging Face folder, the name of a model on the Hugging Face Hub, or a folder"
        " in Google's format. It needs the same classes, but may have another vocabulary."
        " [default: none]",
        path=True,
    )
    temperature: float | None = optimization_option(
        None,
        "With `teacher`, the number that divides the logits of both models before they are"
        " compared; larger numbers give more weight to unlikely classes. It does not apply to"
        " regression. [default: 2]",
        numbers=Numbers(0, exclusive=True, real=True),
    )
    teacher_weight: float | None = optimization_option(
        None,
        "With `teacher`, the fraction of the loss that compares the model with the teacher; the"
        " rest compares it with the labels. 1: the labels are not used. [default: 0.5]",
        numbers=Numbers(0, 1, real=True),
    )
    unlabelled: str | None = optimization_option(
        None,
        "With `teacher`, a file of further texts, without labels, which the model learns from the"
        " teacher alone: a table with a text column, or one text per line, as for `bertaccum"
        " predict`. [default: none]",
        path=True,
    )
    optimizer: str = optimization_option(
        ADAMW,
        "Optimizer. adamw: AdamW, with learning rate decay that starts after warm-up; bert-adamw:"
        " AdamW as in google-research/bert, without bias correction and with decay that starts at"
        " the first update.",
        choices=(ADAMW, BERT_ADAMW),
    )
    adam_beta2: float = optimization_option(
        0.999,
        "Decay rate of AdamW's second moments per update. For a very small `target_batch`, a value"
        " closer to 1 averages over as many examples as in a large one.",
        numbers=Numbers(0, 0.99999),
    )
    max_nonfinite: int = optimization_option(
        20,
        "Stop after this many consecutive updates with a non-finite gradient. Such updates are"
        " skipped. A few are normal with mixed_float16, until the loss scale is found.",
        numbers=Numbers(1),
        free=True,
    )
    deterministic: bool | None = optimization_option(
        None,
        "Make results bit-identical in every run on the same machine. [default: only on a CPU]",
        switch=True,
    )
    noise_scale: str = optimization_option(
        "all",
        "Estimate the gradient noise scale, for `bertaccum advise`; this does not change the"
        " updates. all: of all weights; groups: also of the embeddings, the encoder and the head;"
        " none: do not estimate it.",
        choices=("all", "groups", "none"),
    )
    eval_every: int | float | None = checkpoint_option(
        None,
        "Evaluation interval: a number of updates (200) or, with a decimal point, of epochs (0.25)."
        " [default: once per epoch]",
        numbers=Numbers(1, fraction=True),
    )
    best_by: str | None = checkpoint_option(
        None,
        "Metric on dev.tsv that selects the best checkpoint. [default: accuracy for classification,"
        " pearson for regression, micro_f1 for multi-label, entity_f1 for token-classification"
        " (accuracy if the tags have no scheme)]",
        choices=METRICS,
    )
    calibrate: bool = checkpoint_option(False, _CALIBRATE)
    thresholds: str = checkpoint_option(HALF, _THRESHOLDS, choices=(HALF, FITTED))
    patience: int | None = checkpoint_option(
        None,
        "Early stopping: stop after this many consecutive evaluations that are worse than the best"
        " one. [default: never]",
        numbers=Numbers(1),
        free=True,
    )
    save_every: str = checkpoint_option(
        "10m",
        "Checkpoint interval: a number of updates (200) or a time (90s, 10m, 2h).",
        free=True,
        check=fields.save_interval,
    )
    keep: int = checkpoint_option(
        2, "Number of checkpoints to keep for resuming.", numbers=Numbers(1), free=True
    )
    strategy: str = device_option(
        AUTO,
        "Devices to train on. one: the first device; mirrored: several devices of this process;"
        " multi-worker: the devices of several processes, as described by TF_CONFIG, Slurm or"
        " `bertaccum launch`; auto: multi-worker if one of these describes several processes, else"
        " all GPUs.",
        choices=(AUTO, "one", "mirrored", "multi-worker"),
    )
    replicas: int | None = device_option(
        None,
        "Number of GPUs to use in this process; without a GPU, number of virtual CPU devices."
        " [default: all GPUs, or one CPU device]",
        numbers=Numbers(1),
    )
    collective_timeout: str = device_option(
        "10m",
        "Maximum time for which workers wait for each other, such as 90s or 10m.",
        check=fields.timeout_seconds,
    )
    out: str | None = output_option(
        None, "Run folder to create. [default: runs/DATE-TIME]", path=True
    )
    track: str = output_option(
        "none",
        "Trackers that also receive the options, metrics and files of the run, separated by commas:"
        " mlflow, wandb (Weights & Biases). Their own environment variables, such as"
        " MLFLOW_TRACKING_URI and WANDB_PROJECT, say where. A tracker that fails does not stop the"
        " run.",
        free=True,
        check=fields.tracker_names,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strategy == "one" and self.replicas not in (None, 1):
            what = f"`strategy` one and `replicas` {self.replicas} contradict each other"
            raise ConfigError(what, "omit one of the two")
        _refuse_above(self, "replicas", "target_batch")
        for name in ("temperature", "teacher_weight", "unlabelled"):
            if self.teacher is None and (value := getattr(self, name)) is not None:
                what = f"`{name}` {value} has no effect without `teacher`"
                raise ConfigError(what, f"set `teacher` to a trained classifier, or omit `{name}`")
        if self.teacher_weight == 0:
            raise ConfigError(
                f"`teacher_weight` {self.teacher_weight} ignores the teacher",
                "raise it, or omit `teacher`",
            )
        if self.teacher_weight == 1 and self.label_smoothing:
            what = f"`label_smoothing` {self.label_smoothing} has no effect with `teacher_weight` 1"
            raise ConfigError(what, "lower `teacher_weight`, or omit `label_smoothing`")
        if self.temperature is not None and self.task == REGRESSION:
            what = f"`temperature` {self.temperature} does not apply to the task {REGRESSION}"
            raise ConfigError(what, "omit it: the model learns the teacher's numbers")
        if self.teacher is not None and self.label_pieces != FIRST:
            what = f"`label_pieces` {self.label_pieces} and `teacher` contradict each other"
            raise ConfigError(what, "omit `label_pieces`: the teacher gives each word one tag")


@dataclass(frozen=True)
class PlanConfig(StepConfig):
    """Options of `bertaccum plan`: `StepConfig`, the device and the output file."""

    card: str | None = memory_option(
        None,
        "Plan for this GPU, such as rtx-3060, which need not be in this machine, or list to print"
        " the known GPUs. Memory is measured on the CPU, and speed is calculated from published"
        " figures of the card.",
        check=check_card,
    )
    device_memory: str | None = memory_option(
        None,
        "Memory of the GPU to plan for, such as 4GiB, of which a part is reserved for the CUDA"
        " context and workspaces. [default: the memory of `card`] Without `card`, speed is"
        " calculated for the smallest known GPU with this much memory.",
        check=partial(fields.size_in_bytes, "device_memory"),
    )
    out: str = output_option("plan.json", "Plan file to write.", path=True)
    fresh: bool = memory_option(
        False, "Ignore earlier measurements and out-of-memory failures, and measure again."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_both(self, "card", "memory_limit", "the memory of the device")
        _refuse_both(self, "device_memory", "memory_limit", "the memory of the device")

    @property
    def simulated_card(self) -> Card | None:
        """The GPU to plan for, with the memory to plan for; None for this machine's device."""
        memory = fields.size_in_bytes("device_memory", self.device_memory)
        if self.card is not None:
            card = CARDS[self.card]
        elif memory is not None:
            card = card_with_memory(memory)
        else:
            return None
        return card if memory is None else dataclasses.replace(card, memory_mib=memory // 2**20)


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
        " line; for token-classification, also a CoNLL file. Use - for stdin.",
        path=True,
    )
    text_column: str | None = setting(
        None, "Name or 1-based number of the text column of `file`. [default: text]"
    )
    text_pair_column: str | None = setting(
        None,
        "Name or 1-based number of the column of `file` with the second text of each pair."
        " [default: text_pair if the model was trained on pairs]",
    )
    delimiter: str | None = fields.delimiter_setting()
    encoding: str | None = fields.encoding_setting()
    batch: int = _batch_setting()
    memory_limit: str | None = fields.memory_limit_setting()

    _of_file: ClassVar[list[str]] = ["text_column", "text_pair_column", "delimiter", "encoding"]

    def __post_init__(self) -> None:
        super().__post_init__()
        named = fields.named_options(self).keys()
        if self.file is None and named & {*self._of_file}:
            *most, last = (f"`{name}`" for name in self._of_file)
            what = f"{', '.join(most)} and {last} apply only to `file`, which is not given"
            raise ConfigError(what, "add `file`, or omit these options")
        if self.file == "-" and (unused := named & {*self._of_file} - {"encoding"}):
            what = f"`{min(unused)}` has no effect on stdin, of which each line is a text"
            raise ConfigError(what, f"write the table to a file, or omit `{min(unused)}`")


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
        "Labeled table to evaluate on instead of a split: CSV, TSV, JSON Lines or Parquet, or a"
        " folder as for `bertaccum prepare`; for token-classification, also a CoNLL file. Its"
        " labels are the run's class names or class numbers: see `label_form`.",
        path=True,
    )
    label_form: str | None = setting(
        None,
        "Whether the labels of `file` are the run's class names or its class numbers. [default:"
        " numbers in a file that `bertaccum prepare` wrote and in copies of the run's own files;"
        " names if class names are also class numbers, as in stars from 1 to 5; else detected]",
        choices=(NAMES, NUMBERS),
    )
    label_column: str = setting("label", "Name or 1-based number of the label column of `file`.")
    label_columns: str | None = fields.label_columns_setting(" of `file`")
    label_separator: str | None = fields.label_separator_setting()
    strict: bool = setting(
        False,
        "For token-classification, count only entities whose tags all follow the scheme, as"
        " seqeval's strict mode does.",
    )
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
    quantize: str = setting(
        NOT_QUANTIZED,
        "int8: evaluate the model that `bertaccum export` writes with `format` tflite and"
        " `quantize` int8, run by TensorFlow Lite; none: evaluate the run's own weights.",
        choices=(NOT_QUANTIZED, INT8),
    )
    latency: bool = setting(
        False,
        "Also report the size of the model's weights, and the median time to predict one text on"
        " this machine. `bertaccum compare` then draws both beside the score.",
    )

    _of_file: ClassVar[list[str]] = [
        *("text_column", "text_pair_column", "label_form", "label_column", "label_columns"),
        *("label_separator", "delimiter", "encoding"),
    ]

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_both(self, "split", "file", "the rows to evaluate on")
        fields.refuse_single_label_column(self, "label_column")
        if self.quantize == INT8 and (self.calibrate is not None or self.thresholds is not None):
            name = "calibrate" if self.thresholds is None else "thresholds"
            what = f"`{name}` fits the run's own weights, not those of `quantize` {INT8}"
            raise ConfigError(what, "omit one of the two")


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
        " google: a checkpoint with the files and names of Google's releases; tflite: a TensorFlow"
        " Lite (LiteRT) model that maps token IDs to probabilities. Models of `bertaccum pretrain`"
        " can be exported to huggingface and google.",
        choices=(SAVEDMODEL, HUGGINGFACE, GOOGLE, TFLITE),
    )
    out: str | None = setting(
        None,
        "Folder to write. [default: export-FORMAT in the run folder; export-savedmodel-tokens,"
        " export-huggingface-adapter and export-tflite-int8 for these variants]",
        path=True,
    )
    inputs: str = setting(
        TEXTS,
        "Inputs of a SavedModel. text: texts, and token IDs in a second signature; loading it needs"
        " the operations of tensorflow-text. tokens: only token IDs; loading it needs only"
        " TensorFlow.",
        choices=(TEXTS, TOKENS),
    )
    quantize: str = setting(
        NOT_QUANTIZED,
        "Quantization of a tflite model. none: weights in float32; int8: weights in int8, a quarter"
        " of the size (dynamic range quantization).",
        choices=(NOT_QUANTIZED, INT8),
    )

    adapter: bool = setting(
        False,
        "With `format` huggingface, write only the adapters of a run with `adapt` lora, its pooler"
        " and its head, in the format of the peft library, instead of the merged model.",
    )
    push: str | None = setting(
        None,
        "Upload a huggingface export to the model OWNER/NAME on the Hugging Face Hub, which is"
        " created if it does not exist. HF_TOKEN must be a token that may write to it.",
    )
    private: bool = setting(False, "Create the model of `push` as a private one.")

    @property
    def folder(self) -> str:
        """The folder to write: `out`, or the default folder of the format."""
        tokens = f"-{TOKENS}" if (self.format, self.inputs) == (SAVEDMODEL, TOKENS) else ""
        int8 = f"-{INT8}" if self.quantize == INT8 else ""
        adapter = "-adapter" if self.adapter else ""
        return self.out or f"{self.run.rstrip('/')}/export-{self.format}{tokens}{int8}{adapter}"


@dataclass(frozen=True)
class ServeConfig(ShowConfig):
    """Options of `bertaccum serve`: the run, the address, and the limits of the service."""

    host: str = setting(
        "127.0.0.1",
        "Address to listen on. The default accepts connections from this machine only; 0.0.0.0"
        " accepts connections from the network.",
    )
    allowed_host: str | None = setting(
        None,
        "Further names under which clients reach the service, separated by commas, such as"
        " reviews.example.org. Requests for unknown names are refused, which protects the service"
        " from pages of other sites. Always known are localhost, loopback addresses and `host`, and"
        " every IP address if `host` is not a loopback address.",
        check=fields.host_names,
    )
    port: int = setting(8000, "Port to listen on. 0: any free port.", numbers=Numbers(0, 65535))
    batch: int = _batch_setting()
    batch_tokens: int = setting(
        16384,
        "Maximum number of tokens that are predicted together. Further texts wait for the next"
        " batch. A text counts one token per character, up to the length at which it is truncated.",
        numbers=Numbers(1),
    )
    batch_delay_ms: float = setting(
        5.0,
        "Maximum time in milliseconds for which a request waits for others to share its batch;"
        " a request does not wait if no others are expected.",
        numbers=Numbers(0, 10_000),
    )
    max_texts: int = setting(256, "Maximum number of texts in a request.", numbers=Numbers(1))
    max_body: str = setting(
        "1MiB",
        "Maximum size of a request.",
        check=partial(fields.size_in_bytes, "max_body", least=1024),
    )
    max_queue: int = setting(
        1024,
        "Maximum number of texts that wait for the model. A request that exceeds it is refused with"
        " status 503.",
        numbers=Numbers(1),
    )
    timeout_seconds: float = setting(
        30.0,
        "Maximum time in seconds for a connection to wait for a request, and the same again for"
        " its body and for its answer.",
        numbers=Numbers(0, 86_400, exclusive=True),
    )
    memory_limit: str | None = fields.memory_limit_setting()

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
        numbers=Numbers(1),
    )


# The grid of the BERT paper (Devlin et al. 2019, appendix A.3).
PAPER: dict[str, list[Any]] = {
    "target_batch": [16, 32],
    "learning_rate": [5e-5, 3e-5, 2e-5],
    "epochs": [2.0, 3.0, 4.0],
}
