"""Export for TensorFlow Lite (LiteRT), which runs models on phones and other small devices."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf
import tf_keras

from bertaccum.inference.token_signature import function_of_tokens, write_description
from bertaccum.inference.trained_model import TrainedModel
from bertaccum.system.atomic import write_text

_MODEL = "model.tflite"


def write_tflite(folder: Path, trained: TrainedModel, card: str, quantize: str) -> None:
    """Write a TensorFlow Lite model with its model card, vocabulary and labels."""
    # Strings need kernels that the interpreters for phones do not contain.
    model, task = trained.model, trained.task
    serve = function_of_tokens(model, task, strings=False).get_concrete_function()
    (folder / _MODEL).write_bytes(converted(serve, model, int8=quantize == "int8"))
    trained.files.write(folder)
    outputs = serve.structured_outputs
    write_description(folder, trained.tokenization, task, outputs, quantize=quantize)
    write_text(folder / "README.md", card)


def converted(
    function: tf.types.experimental.ConcreteFunction, model: tf_keras.Model, int8: bool
) -> bytes:
    """Return a function as a TensorFlow Lite model that contains only built-in operations.

    With `int8`, matrices of weights are stored as int8, with a scale for each output. Activations
    are quantized when the model runs (dynamic range quantization).
    """
    module = tf.Module()
    module.weights = list(model.weights)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], module)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    if int8:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    model_bytes: bytes = converter.convert()
    return model_bytes
