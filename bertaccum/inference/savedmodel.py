"""Export as a TensorFlow SavedModel, which takes texts or token IDs."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf
import tf_keras

from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.inference.token_signature import function_of_tokens, write_description
from bertaccum.inference.trained_model import TrainedModel
from bertaccum.options.commands import TOKENS
from bertaccum.system.atomic import write_text
from bertaccum.tasks.forward import deciding_passages, logits_of_texts_and_passages, reads_passages
from data_prep.tables.columns import PAIR, TEXT

# Folder in a SavedModel for additional files.
_BESIDE = "assets.extra"


def write_savedmodel(folder: Path, trained: TrainedModel, card: str, texts: bool) -> None:
    """Write a SavedModel of texts or only of token IDs, with its card, vocabulary and labels."""
    model, task, tokenization = trained.model, trained.task, trained.tokenization
    of_texts = _function_of_texts(trained) if texts else None
    of_tokens = None if reads_passages(model) else function_of_tokens(model, task, strings=True)
    _save(model, of_texts, of_tokens, folder)
    beside = folder / _BESIDE
    beside.mkdir()
    trained.files.write(beside)
    write_text(beside / "README.md", card)
    if of_tokens is not None:
        outputs = of_tokens.get_concrete_function().structured_outputs
        write_description(beside, tokenization, task, outputs)


def _save(
    model: tf_keras.Model,
    of_texts: tf.types.experimental.PolymorphicFunction | None,
    of_tokens: tf.types.experimental.PolymorphicFunction | None,
    folder: Path,
) -> None:
    """Write a SavedModel that needs only TensorFlow and, if it takes texts, tensorflow-text."""
    # A program without the ops of tensorflow-text cannot load a graph that contains them, even if
    # it would call only the other signature.
    # Save only the weights of the model: Keras would also save functions of each layer.
    module = tf.Module()
    module.weights = list(model.weights)
    default = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
    functions = {default: of_texts or of_tokens, TOKENS: of_tokens}
    signatures = {name: function for name, function in functions.items() if function is not None}
    module.serve = signatures[default]
    # Serving does not need the layers' custom gradients.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, str(folder), signatures=signatures, options=options)


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
        logits = logits_of_texts_and_passages(model, tokenizer(*given))
        outputs = task.serve(logits[:, 0])
        outputs |= {"window": deciding_passages(task.support, logits)} if pools else {}
        return {name: value[:count] for name, value in outputs.items()}

    return serve
