"""Export of a run's best model to formats that other tools load."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from bertaccum.bert.adapters import Adaptation
from bertaccum.bert.huggingface_folder import write_description, write_tokenizer_of
from bertaccum.bert.peft_export import save_adapter
from bertaccum.bert.peft_folder import has_adapter
from bertaccum.bert.pretrained_weights import save_google, save_huggingface
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.vocabulary import SPECIAL_TOKENS
from bertaccum.data.word_splitting import split_words
from bertaccum.errors import ConfigError, RunError, reason
from bertaccum.inference.push import Confirm, push
from bertaccum.inference.results import ExportResult
from bertaccum.inference.tflite import INPUTS, convert, function_of_tokens, with_weights
from bertaccum.inference.trained_model import TrainedModel, load_trained
from bertaccum.options.adapting import LORA
from bertaccum.options.commands import (
    GOOGLE,
    HUGGINGFACE,
    INT8,
    SAVEDMODEL,
    TEXTS,
    TFLITE,
    TOKENS,
    ExportConfig,
)
from bertaccum.reporting.model_card import model_card
from bertaccum.reporting.rendering import render
from bertaccum.runs.paths import RunPaths
from bertaccum.runs.record import read_record
from bertaccum.system.atomic import new_folder, write_text
from bertaccum.system.files import json_text
from bertaccum.system.hub_names import parse_pinned
from bertaccum.system.progress import Note, ignore_note
from bertaccum.tasks.adapter_files import AdapterFiles
from bertaccum.tasks.forward import (
    deciding_passages,
    logits_of,
    logits_of_texts_and_passages,
    reads_passages,
)
from bertaccum.tasks.served_tags import serve_words
from bertaccum.tasks.task import Task
from bertaccum.tasks.token_classification import TokenClassification
from data_prep.tables.columns import PAIR, TEXT

# Names that the Hugging Face hub gives to the libraries that load the formats.
_LIBRARIES = {
    SAVEDMODEL: "tensorflow",
    HUGGINGFACE: "transformers",
    GOOGLE: "tensorflow",
    TFLITE: "tflite",
}


def export(
    config: ExportConfig, confirm: Confirm | None = None, note: Note = ignore_note
) -> ExportResult:
    """Export a run's best model, completely or not at all, and upload it if `push` is set.

    Args:
      confirm: Asks the user whether to upload; None to upload without asking.
    """
    path, base = Path(config.folder), _base_of_adapter(config, note) if config.adapter else {}
    trained = load_trained(Path(config.run), merged=not config.adapter)
    kind = "adapter" if config.adapter else config.format
    usage = render(
        f"usage-{kind}.md.j2",
        base=base,
        task=trained.task,
        tokenization=trained.tokenization,
        inputs=config.inputs,
    )
    card = model_card(read_record(Path(config.run)), _LIBRARIES[config.format], usage=usage)
    writers = {SAVEDMODEL: _savedmodel, HUGGINGFACE: _huggingface, GOOGLE: _google, TFLITE: _tflite}
    write = partial(_adapter, base=base) if config.adapter else writers[config.format]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(path, existing="refuse") as folder:
            write_text(write(folder, trained, config) / "README.md", card)
    except (OSError, tf.errors.OpError) as error:
        raise RunError(
            f"cannot be written ({reason(error)})",
            "free disk space, or choose another `out`",
            path=path,
        ) from None
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    address = push(config, path, size, confirm) if config.push else None
    return ExportResult(trained.run, config.format, path, size, address)


# Each of these functions writes a model in one format, and returns the folder for its card.


def _huggingface(folder: Path, trained: TrainedModel, _: ExportConfig) -> Path:
    """Write a model for transformers; its task decides the class."""
    encoder, labels = trained.files.encoder, trained.files.labels
    names, dropout = labels.names or ["score"], trained.config.dropout
    write_description(folder, encoder, trained.tokenization, names, dropout, labels.task)
    pooler = not (trained.config.tags_words or trained.config.predicts_masked)
    save_huggingface(trained.model, folder, *trained.task.head_transform(), pooler=pooler)
    return folder


def _base_of_adapter(config: ExportConfig, note: Note) -> dict[str, str | None]:
    """Return how peft names the base model of a run with adapters.

    Raises:
      ConfigError: The run has no adapters, their base model is not one of transformers, or it is a
        folder and `push` is set.
    """
    best = RunPaths(Path(config.run)).best_checkpoint()
    files = AdapterFiles.read(best)
    if config.format != HUGGINGFACE or files is None or files.how.kind != LORA:
        what = f"`adapter` needs `format` {HUGGINGFACE} and a run with `adapt` {LORA}"
        raise ConfigError(what, "omit `adapter` to export the whole model")
    named = str((files.base or {}).get("init_checkpoint"))
    source = None if files.base is None else files.find_base(best)
    of_transformers = source is not None and source.format is not None and source.format.transposed
    if source is None or not of_transformers or has_adapter(Path(named)):
        what = "`adapter` needs a run that began with a model in Hugging Face's format"
        raise ConfigError(what, "omit `adapter` to export the whole model")
    if (repository := parse_pinned(named)) is not None:
        return {"base_model_name_or_path": repository.name, "revision": repository.commit}
    if config.push is not None:
        what = f"`push` cannot publish adapters of {named}, a folder that others do not have"
        raise ConfigError(what, "omit `adapter` to upload the whole model")
    note(f"adapter_config.json and README.md name the folder of the base model, {named}")
    return {"base_model_name_or_path": named, "revision": None}


def _adapter(
    folder: Path, trained: TrainedModel, _: ExportConfig, base: dict[str, str | None]
) -> Path:
    """Write the adapters of a model for peft, and its tokenizer."""
    files, how = trained.files, Adaptation.of(trained.config)
    assert how is not None
    write_tokenizer_of(folder, files.encoder, trained.tokenization, files.labels.task)
    pooler = not trained.config.tags_words
    save_adapter(trained.model, folder, how, base, trained.task.head_transform(), pooler)
    return folder


def _google(folder: Path, trained: TrainedModel, _: ExportConfig) -> Path:
    """Write the files of Google's releases."""
    save_google(trained.model, folder, *trained.task.head_transform())
    trained.files.write(folder)
    return folder


def _tflite(folder: Path, trained: TrainedModel, config: ExportConfig) -> Path:
    """Write a model for TensorFlow Lite (LiteRT)."""
    # Strings need kernels that the interpreters for phones do not contain.
    of_tokens = function_of_tokens(trained.model, partial(_outputs, trained.task))
    serve = of_tokens.get_concrete_function()
    content = convert(trained.model, serve, config.quantize == INT8)
    (folder / "model.tflite").write_bytes(content)
    trained.files.write(folder)
    _write_signature(folder, trained, serve.structured_outputs, quantize=config.quantize)
    return folder


def _savedmodel(folder: Path, trained: TrainedModel, config: ExportConfig) -> Path:
    """Write a SavedModel of texts or only of token IDs.

    It needs only TensorFlow and, if it takes texts, tensorflow-text.
    """
    model = trained.model
    of_texts = _function_of_texts(trained) if config.inputs == TEXTS else None
    # Passages are cut from texts.
    one_passage = trained.tokenization.passages == 1
    of_tokens = function_of_tokens(model, trained.task.serve) if one_passage else None
    # A program without the ops of tensorflow-text cannot load a graph that contains them, even if
    # it would call only the other signature.
    default = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
    functions = {default: of_texts or of_tokens, TOKENS: of_tokens}
    signatures = {name: function for name, function in functions.items() if function is not None}
    module = with_weights(model)
    module.serve = signatures[default]
    # Serving does not need the layers' custom gradients.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, str(folder), signatures=signatures, options=options)
    beside = folder / "assets.extra"  # The folder in a SavedModel for additional files.
    beside.mkdir()
    trained.files.write(beside)
    if of_tokens is not None:
        outputs = of_tokens.get_concrete_function().structured_outputs
        _write_signature(beside, trained, outputs)
    return beside


def _function_of_texts(trained: TrainedModel) -> tf.types.experimental.PolymorphicFunction:
    """Return a `tf.function` of strings that maps texts to the outputs of `Task.serve`."""
    # Its inputs are `text` and, for pairs, `text_pair`, strings [batch]. If the model reads texts
    # in several windows, it also returns `window` [batch] int32, the number of the window that
    # decided, counted from 1.
    model, task, tokenizer = trained.model, trained.task, Tokenizer(trained.tokenization)
    pools = reads_passages(model)
    inputs = [tf.TensorSpec([None], tf.string, name=name) for name in (TEXT, PAIR)]

    # AutoGraph would convert every layer and the tokenizer before the export.
    @tf.function(input_signature=inputs[: 1 + task.labels.pairs], autograph=False)
    def serve(*texts: tf.Tensor) -> dict[str, tf.Tensor]:
        count = tf.shape(texts[0])[0]
        # The encoder cannot read a batch of no tokens, so an empty batch gets an empty text.
        spare = tf.fill([tf.cast(count == 0, tf.int32)], "")
        given = [tf.concat([column, spare], axis=0) for column in texts]
        if isinstance(task, TokenClassification):
            words, starts, ends = split_words(given[0])
            joined = tf.strings.reduce_join(words, axis=-1, separator=" ")
            outputs = serve_words(task, logits_of(model, tokenizer(joined)), starts, ends)
            return {name: value[:count] for name, value in outputs.items()}
        logits = logits_of_texts_and_passages(model, tokenizer(*given))
        outputs = task.serve(logits[:, 0])
        outputs |= {"window": deciding_passages(task.support, logits)} if pools else {}
        return {name: value[:count] for name, value in outputs.items()}

    return serve


def _outputs(task: Task, logits: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return the outputs of `Task.serve` that are numbers."""
    outputs = task.serve(logits)
    return {name: value for name, value in outputs.items() if value.dtype != tf.string}


def _write_signature(
    folder: Path, trained: TrainedModel, outputs: dict[str, Any], **more: str
) -> None:
    """Write `model.json`: inputs and outputs, and how texts become tokens."""
    tokenization = trained.tokenization
    entries = tokenization.vocabulary.entries
    description = {
        "inputs": {name: {"dtype": "int32", "shape": ["batch", "length"]} for name in INPUTS},
        "outputs": {
            name: {"dtype": value.dtype.name, "shape": ["batch", *value.shape[1:]]}
            for name, value in sorted(outputs.items())
        },
        "pairs": trained.task.labels.pairs,
        "max_seq_length": tokenization.max_seq_length,
        "head_fraction": tokenization.head_fraction,
        "special_tokens": {t: entries.index(t) for t in SPECIAL_TOKENS if t in entries},
        **more,
    }
    write_text(folder / "model.json", json_text(description))
