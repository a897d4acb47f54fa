"""bertaccum, with the same training loop as `bertaccum train`.

The entry `options` of the task contains options of `train` that replace those of the task. With the
entry `text`, a path, the model is pretrained.
"""

import tempfile
from pathlib import Path

from turns import Turns, job

from bertaccum.distribution.device_memory import peak_memory_bytes
from bertaccum.options.commands import TrainConfig
from bertaccum.options.pretraining import PretrainConfig
from bertaccum.training.events import Updated
from bertaccum.training.loop import Run
from bertaccum.training.train import train


def main() -> None:
    task, turns = job(), Turns(peak_memory_bytes)
    precision = task["precision"]
    options = {
        "out": tempfile.mkdtemp() + "/run",
        "model": task["model"],
        "init_checkpoint": "none",
        "vocab": task["vocab"],
        "max_seq_length": task["length"],
        "precision": precision if precision == "float32" else f"mixed_{precision}",
        "target_batch": task["micro_batch"] * task["accumulation_steps"],
        "micro_batch": task["micro_batch"],
        "dropout": task["dropout"],
        "eval_every": 10**6,
        "save_every": str(10**6),
    }
    if "text" in task:
        config: TrainConfig = PretrainConfig(text=task["text"], **options)
    else:
        data = str(Path(task["train"]).parent)
        config = TrainConfig(data=data, **options | task.get("options", {}))
    may_start = Run._next_may_start
    # The last update of a turn must not start another one, which would run beside the other
    # programs and take no time of the next turn.
    Run._next_may_start = lambda run: turns.left > 1 and may_start(run)  # type: ignore[method-assign]
    turns.wait()
    for event in train(config, lambda *_: None):
        if isinstance(event, Updated):
            turns.updated()


main()
