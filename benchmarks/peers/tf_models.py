"""tf-models-official as in its run_classifier: padding to the maximum, and no accumulation."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tf_keras
from official.nlp import optimization
from official.nlp.modeling import models, networks
from turns import Turns, job, padded, tokens


class AfterBatch(tf_keras.callbacks.Callback):
    def __init__(self, turns):
        super().__init__()
        self.turns = turns

    def on_train_batch_end(self, batch, logs=None):
        self.turns.updated()


def main():
    task, turns = job(), Turns()
    if task["precision"] == "bfloat16":
        tf_keras.mixed_precision.set_global_policy("mixed_bfloat16")
    ids, labels = tokens(task)
    encoder, dropout = task["encoder"], task["dropout"]
    network = networks.BertEncoder(
        vocab_size=encoder["vocab_size"],
        hidden_size=encoder["hidden_size"],
        num_layers=encoder["num_hidden_layers"],
        num_attention_heads=encoder["num_attention_heads"],
        max_sequence_length=encoder["max_position_embeddings"],
        type_vocab_size=encoder["type_vocab_size"],
        inner_dim=encoder["intermediate_size"],
        inner_activation=lambda x: tf_keras.activations.gelu(x, approximate=True),
        output_dropout=dropout,
        attention_dropout=dropout,
        dict_outputs=True,
    )
    model = models.BertClassifier(network, num_classes=2, dropout_rate=dropout)
    model.compile(
        optimizer=optimization.create_optimizer(2e-5, 10**6, 10**5),
        loss=tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    ids = padded(ids, task["length"])
    inputs = {
        "input_word_ids": ids,
        "input_mask": (ids > 0).astype(ids.dtype),
        "input_type_ids": 0 * ids,
    }
    turns.wait()
    model.fit(
        inputs,
        labels,
        batch_size=task["micro_batch"] * task["accumulation_steps"],
        epochs=10**6,
        shuffle=False,
        verbose=0,
        callbacks=[AfterBatch(turns)],
    )


main()
