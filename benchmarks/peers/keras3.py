"""Keras 3 and keras-hub: `fit`, padding to the maximum, Keras' accumulation.

The entry `backend` of the task is `tensorflow` or `jax`.
"""

import os

from turns import Turns, job, padded, tokens

os.environ["KERAS_BACKEND"] = job()["backend"]
# JAX would reserve most of the GPU's memory at its start.
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

import keras
import keras_hub

TASK = job()


class AfterMicroBatch(keras.callbacks.Callback):
    def __init__(self, turns, steps):
        super().__init__()
        self.turns, self.steps = turns, steps

    def on_train_batch_end(self, batch, logs=None):
        if (batch + 1) % self.steps == 0:
            self.turns.updated()


def settle():
    """Wait for JAX, and return the peak memory in bytes; None if it is unknown."""
    if TASK["backend"] != "jax":
        return None
    import jax

    jax.block_until_ready(jax.live_arrays())
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def main():
    turns = Turns(settle)
    if TASK["precision"] != "float32":
        keras.config.set_dtype_policy(f"mixed_{TASK['precision']}")
    ids, labels = tokens(TASK)
    encoder, steps = TASK["encoder"], TASK["accumulation_steps"]
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=encoder["vocab_size"],
        num_layers=encoder["num_hidden_layers"],
        num_heads=encoder["num_attention_heads"],
        hidden_dim=encoder["hidden_size"],
        intermediate_dim=encoder["intermediate_size"],
        dropout=TASK["dropout"],
        max_sequence_length=encoder["max_position_embeddings"],
    )
    classifier = keras_hub.models.BertTextClassifier(
        backbone, num_classes=2, preprocessor=None, dropout=TASK["dropout"]
    )
    # The classifier's own `fit` would need TensorFlow, even to train on tokens.
    model = keras.Model(classifier.inputs, classifier.outputs[0])
    accumulation = {"gradient_accumulation_steps": steps} if steps > 1 else {}
    model.compile(
        optimizer=keras.optimizers.AdamW(2e-5, global_clipnorm=1.0, **accumulation),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    ids = padded(ids, TASK["length"])
    inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": ids != 0}
    turns.wait()
    model.fit(
        inputs,
        labels,
        batch_size=TASK["micro_batch"],
        epochs=10**6,
        shuffle=False,
        verbose=0,
        callbacks=[AfterMicroBatch(turns, steps)],
    )


main()
