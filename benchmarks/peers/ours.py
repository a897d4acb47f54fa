"""bertaccum, with the same training loop as `bertaccum train`."""

import tempfile
from pathlib import Path

from turns import Turns, job

from bertaccum.config import TrainConfig
from bertaccum.training.events import Updated
from bertaccum.training.train import train


def main() -> None:
    task, turns = job(), Turns()
    config = TrainConfig(
        data=str(Path(task["train"]).parent),
        out=tempfile.mkdtemp() + "/run",
        model="bert-small",
        init_checkpoint="none",
        vocab=task["vocab"],
        max_seq_length=task["length"],
        precision={"float32": "float32", "bfloat16": "mixed_bfloat16"}[task["precision"]],
        target_batch=task["micro_batch"] * task["accumulation_steps"],
        micro_batch=task["micro_batch"],
        dropout=task["dropout"],
        eval_every=10**6,
    )
    turns.wait()
    for event in train(config, lambda *_: None):
        if isinstance(event, Updated):
            turns.updated()


main()
