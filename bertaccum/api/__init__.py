"""The commands as Python functions, such as `bertaccum.train(...)`.

Each function takes the options of its command as keyword arguments, or as a dataclass from
`bertaccum.options.commands`; names and defaults are those of the command. The functions print
nothing. An error that the command would report is raised as a `BertAccumError`; wrong arguments
raise a TypeError.

Most lines are docstrings, from which the Python reference is generated.
"""

from bertaccum.api.preparation import doctor, models, plan, prepare
from bertaccum.api.trained import evaluate, export, predict, report, serve
from bertaccum.api.training import (
    find_learning_rate,
    pretrain,
    pretraining_events,
    sweep,
    train,
    train_seeds,
    training_events,
)
from bertaccum.system.machine import enable_onednn

enable_onednn()  # The commands import this package before TensorFlow, too.

__all__ = [
    "doctor",
    "evaluate",
    "export",
    "find_learning_rate",
    "models",
    "plan",
    "predict",
    "prepare",
    "pretrain",
    "pretraining_events",
    "report",
    "serve",
    "sweep",
    "train",
    "train_seeds",
    "training_events",
]
