"""Keras 3 and keras-hub on TensorFlow: `fit`, padding to the maximum, Keras' accumulation."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import keras_hub
import numpy as np
from turns import Turns, job, reviews


class AfterMicroBatch(keras.callbacks.Callback):
    def __init__(self, turns, steps):
        super().__init__()
        self.turns, self.steps = turns, steps

    def on_train_batch_end(self, batch, logs=None):
        if (batch + 1) % self.steps == 0:
            self.turns.updated()


def main():
    task, turns = job(), Turns()
    if task["precision"] == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    texts, labels = reviews(task)
    encoder, steps = task["encoder"], task["accumulation_steps"]
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(
        keras_hub.models.BertTokenizer(vocabulary=task["vocab"], lowercase=True),
        sequence_length=task["length"],
    )
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=encoder["vocab_size"],
        num_layers=encoder["num_hidden_layers"],
        num_heads=encoder["num_attention_heads"],
        hidden_dim=encoder["hidden_size"],
        intermediate_dim=encoder["intermediate_size"],
        dropout=task["dropout"],
        max_sequence_length=encoder["max_position_embeddings"],
    )
    model = keras_hub.models.BertTextClassifier(
        backbone, num_classes=2, preprocessor=None, dropout=task["dropout"]
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(
            2e-5, global_clipnorm=1.0, gradient_accumulation_steps=steps
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    inputs = preprocessor(texts)
    turns.wait()
    model.fit(
        inputs,
        np.array(labels),
        batch_size=task["micro_batch"],
        epochs=10**6,
        verbose=0,
        callbacks=[AfterMicroBatch(turns, steps)],
    )


main()
