"""Checkpoints in Google's format, such as `bert_model.ckpt.index` and the files beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bertaccum.bert.checkpoint_files import OTHER_FORMAT
from bertaccum.bert.encoder_config import EncoderConfig, read_bert_config
from bertaccum.bert.model_source import CheckpointFormat, FineTunedHead, LazyTensor
from bertaccum.errors import InputError, reason

DIMENSIONS = "bert_config.json"
# Object-based checkpoints, and no others, have a tensor of this name.
_OBJECT_GRAPH = b"_CHECKPOINTABLE_OBJECT_GRAPH"


def _check(folder: Path, prefix: str, has_dimensions: bool) -> None:
    """Check the kind of checkpoint, and that `run_classifier.py` or an option tells dimensions."""
    if _OBJECT_GRAPH in (folder / f"{prefix}.index").read_bytes():
        raise InputError(
            "is a checkpoint of tf.train.Checkpoint or Keras, in which the weights do not have"
            " BERT's names",
            OTHER_FORMAT,
            path=folder / prefix,
        )
    if not has_dimensions and not (folder / DIMENSIONS).is_file():
        raise InputError(
            f"has no {DIMENSIONS}",
            "pass that of the pretrained model with `bert_config`",
            path=folder,
        )


def _encoder(folder: Path) -> EncoderConfig | None:
    path = folder / DIMENSIONS
    return read_bert_config(path) if path.is_file() else None


def _tensors(checkpoint: Path) -> dict[str, LazyTensor]:
    """Return the tensors, under the names to which tf-models-official's table translates theirs."""
    import tensorflow as tf
    from official.nlp.tools.tf1_bert_checkpoint_converter_lib import BERT_V2_NAME_REPLACEMENTS

    from bertaccum.bert.in_place import read_tensor

    def read(name: str) -> tf.Tensor:
        with _reading_errors(checkpoint):
            return read_tensor(str(checkpoint), name, tf.float32)

    tensors = {}
    with _reading_errors(checkpoint):
        shapes = tf.train.load_checkpoint(str(checkpoint)).get_variable_to_shape_map()
        for name, key in plain_variables(shapes).items():
            for original, ours in BERT_V2_NAME_REPLACEMENTS:
                key = key.replace(original, ours)
            key = key.removeprefix("bert/")
            tensors[key] = LazyTensor(shapes[name], "F32", partial(read, name), name)
    return tensors


# Patterns in Hugging Face's names of tensors, and what replaces them in Google's, in this order.
_NAMES = (
    (r"\.", "/"),
    (r"^(?!cls/)", "bert/"),
    (r"layer/(\d+)", r"layer_\1"),
    ("LayerNorm/weight", "LayerNorm/gamma"),
    ("LayerNorm/bias", "LayerNorm/beta"),
    ("embeddings/weight", "embeddings"),
    ("/weight", "/kernel"),
    ("predictions/bias", "predictions/output_bias"),
)


def google_name(name: str) -> str:
    """Return the name in Google's checkpoints of a tensor in Hugging Face's files."""
    for theirs, google in _NAMES:
        name = re.sub(theirs, google, name)
    return name


def plain_variables(names: Iterable[str]) -> dict[str, str]:
    """Return each name of a variable in Google's format, without what precedes `bert/`."""
    names, first = list(names), "bert/embeddings/word_embeddings"
    prefixes = [name.removesuffix(first) for name in names if name.endswith(f"/{first}")]
    around = prefixes[0] if len(prefixes) == 1 and first not in names else ""
    return {name: name.removeprefix(around) for name in names}


@contextmanager
def _reading_errors(checkpoint: Path) -> Iterator[None]:
    """Turn the exceptions of a damaged checkpoint into InputError."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.ResourceExhaustedError:
        raise
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        raise InputError(
            f"is not a readable BERT checkpoint ({reason(error)})",
            "download it again or use another checkpoint",
            path=checkpoint,
        ) from None


GOOGLE = CheckpointFormat(
    is_in=lambda folder, prefix: (folder / f"{prefix}.index").is_file(),
    check=_check,
    weights=lambda folder, prefix: folder / prefix,
    encoder=_encoder,
    head=lambda folder: FineTunedHead(),
    tensors=_tensors,
    tensor_key=lambda name: name,
    # The names in `run_classifier.py`.
    head_keys=(("output_weights", "output_bias"),),
    remedy="use the bert_config.json that came with the checkpoint",
    # The index contains checksums of all weights.
    identity_suffix=".index",
)
