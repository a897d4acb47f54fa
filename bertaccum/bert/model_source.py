"""Formats of checkpoints and their tensors, and the model to start from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.vocabulary import Vocabulary
from bertaccum.errors import InputError
from bertaccum.system.files import json_digest, sha256


@dataclass(frozen=True)
class LazyTensor:
    """A tensor in a file, which is read on demand."""

    shape: list[int]
    dtype: str  # Its type, as safetensors names it, such as F32.
    # Returns the tensor as float32 in memory of the host, a numpy array or a `tf.Tensor`; raises
    # InputError if the file is damaged there.
    read: Callable[[], Any]
    name: str | None = None  # Its name for error messages, if that is not its key.


RUN_PREFIX = "model.ckpt"
# Name of the head in a classifier.
HEAD_LAYER = "sentence_prediction"
# The value of `init_checkpoint` for random weights.
NO_CHECKPOINT = "none"


@dataclass(frozen=True)
class FineTunedHead:
    """The head of a classifier that another tool fine-tuned."""

    # Number of outputs; None if it is unknown until the weights are read.
    outputs: int | None = None
    # Name of the class of each output; empty if they have no names.
    names: list[str] = field(default_factory=list)
    problem_type: str | None = None  # Kind of task, as transformers names it; None if it is unknown


@dataclass(frozen=True)
class CheckpointFormat:
    """A format of pretrained checkpoints: what is in its folders, and how its tensors are named.

    Each format has a module of its own, and `model_finder.FORMATS` lists all of them. Functions
    with a `prefix` get the prefix of the names of a checkpoint's files, as TensorFlow writes them;
    other formats ignore it.
    """

    # Returns whether a folder, given with a prefix, has files in this format.
    is_in: Callable[[Path, str], bool]
    # Raises InputError if such a folder, given with a prefix, lacks a file. Its third argument
    # tells whether options select the dimensions.
    check: Callable[[Path, str, bool], None]
    # Returns the path of the weights in a folder, given with a prefix.
    weights: Callable[[Path, str], Path]
    # Returns the dimensions that the files in a folder tell, or None if they tell none.
    encoder: Callable[[Path], EncoderConfig | None]
    # Returns what the files in a folder tell about the head of a classifier.
    head: Callable[[Path], FineTunedHead]
    # Returns the tensors in the weights at a path. TensorFlow is imported only there.
    tensors: Callable[[Path], Mapping[str, LazyTensor]]
    # Returns the key in `tensors` of a weight of ours, given its name in checkpoints.
    tensor_key: Callable[[str], str]
    # Possible keys of the kernel [outputs, hidden] and the bias [outputs] of a head.
    head_keys: tuple[tuple[str, str], ...]
    remedy: str  # Advice if the tensors do not fit the dimensions.
    # Suffix that turns the path of the weights into that of a file whose contents identify them.
    identity_suffix: str = ""
    # Returns the other files of the weights at a path.
    shards: Callable[[Path], list[Path]] = lambda path: []
    # Names of files that may have the vocabulary if there is no `vocab.txt`.
    vocabularies: tuple[str, ...] = ()
    pooler: str | None = None  # Prefix of the keys of the pooler, if checkpoints may lack it.
    transposed: bool = False  # Whether kernels have the shape [outputs, inputs].
    # Whether texts are tokenized as transformers does, unless the files of the tokenizer tell
    # otherwise; and whether the embeddings may have more entries than the vocabulary.
    of_transformers: bool = False

    def head_in(self, keys: Collection[str]) -> tuple[str, str]:
        """Return the keys of the head among those of tensors; the first possible ones if none."""
        return next((pair for pair in self.head_keys if {*pair} & {*keys}), self.head_keys[0])

    def has_pooler(self, keys: Iterable[str]) -> bool:
        """Return whether the keys of tensors include any weight of a pooler."""
        return self.pooler is None or any(key.startswith(self.pooler) for key in keys)


@dataclass(frozen=True)
class HeadMapping:
    """How the weights of a checkpoint's head become ours."""

    rows: list[int]  # For each of our outputs, the number of the checkpoint's output.
    mean: float = 0.0  # Number to subtract from the checkpoint's outputs.
    std: float = 1.0  # Number to divide them by.


@dataclass(frozen=True)
class ModelSource:
    """Everything that determines a model before training."""

    name: str  # Name of the model in reports.
    encoder: EncoderConfig
    vocabulary: Vocabulary | None  # Vocabulary of the model; None if it is unknown.
    # Path of the pretrained weights, as `format` understands it; None for random weights.
    checkpoint: Path | None
    # Format of the pretrained weights; None for random weights.
    format: CheckpointFormat | None = None
    has_pooler: bool = True  # Whether the pretrained weights include a pooler.
    # Whether the model saw the segments of pairs in transformers, as far as its tokenizer tells.
    saw_segments: bool = True
    # Labels of the run, as in its `labels.json`; None if the weights are not a run's.
    labels: dict[str, Any] | None = None
    # Decoding of the run, as in its `decoding.json`; None if it has none.
    decoding: dict[str, Any] | None = None
    # Name and commit of a checkpoint on the Hugging Face Hub; None for other checkpoints.
    pinned: str | None = None
    # Head to take from a checkpoint that is not a run's; None for a random head.
    head: FineTunedHead | None = None

    @property
    def of_run(self) -> bool:
        """Whether the weights are the best checkpoint of a `bertaccum train` run."""
        return self.labels is not None

    def segment_warning(self) -> str | None:
        """Return a sentence if pairs get segments that the model has not seen, else None."""
        if self.saw_segments or self.encoder.type_vocab_size < 2:
            return None
        return (
            f"{self.name}: its tokenizer in transformers gives no token_type_ids, so both texts of"
            " a pair were in segment 0, but here the second text is in segment 1"
        )

    @property
    def identity_file(self) -> Path | None:
        """The file whose contents identify the pretrained weights; None for random weights."""
        if self.checkpoint is None or self.format is None:
            return None
        return self.checkpoint.with_name(self.checkpoint.name + self.format.identity_suffix)

    @cached_property
    def weights_digest(self) -> str | None:
        """A digest of the pretrained weights, read once; None for random weights."""
        first = self.identity_file
        if first is None or self.checkpoint is None or self.format is None:
            return None
        digests = [sha256(file) for file in (first, *self.format.shards(self.checkpoint))]
        return digests[0] if len(digests) == 1 else json_digest(digests)

    def check_digest(self, expected: str | None) -> None:
        """Raise InputError if the weights have another digest: a run may replace its best ones."""
        if self.weights_digest != expected:
            what = "the run saved a better model meanwhile" if self.of_run else "changed meanwhile"
            raise InputError(what, "run the command again", path=self.checkpoint)
