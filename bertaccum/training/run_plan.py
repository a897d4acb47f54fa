"""What a run is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tf_keras

from bertaccum.config import TrainConfig
from bertaccum.data.token_store import TokenStore
from bertaccum.distribution.topology import Topology
from bertaccum.distribution.watchdog import Watch
from bertaccum.planning.rehearsal import Subject


@dataclass(frozen=True)
class Parts:
    """What a run needs; the configuration has the plan in it.

    Args:
      config: its micro-batch is a number.
      subject: model, classes and data.
      planned: what goes into `plan.json`.
      model: made under the topology's strategy.
      train_store, dev_store: the examples.
      topology, watch: the replicas, and who hears what this worker does.
    """

    config: TrainConfig
    subject: Subject
    planned: dict[str, Any]
    model: tf_keras.Model
    train_store: TokenStore
    dev_store: TokenStore
    topology: Topology
    watch: Watch
