"""The passage that decided, by hand, for each kind of task."""

from __future__ import annotations

import numpy as np
import pytest

from bertaccum.options.task_names import CLASSIFICATION, MULTI_LABEL, REGRESSION
from bertaccum.tasks.forward import deciding_passages
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels

NAN = np.nan


@pytest.mark.parametrize(
    ("kind", "logits", "deciding"),
    [
        # The first passage has the largest logit of class 1, the second its highest probability.
        (CLASSIFICATION, [[0, 1], [3, 4], [-3, 2], [NAN, NAN]], 2),
        (CLASSIFICATION, [[1, 0], [3, 4], [-3, -2], [2, -2]], 3),
        # Labels are independent, so the largest logit of the most probable label decides.
        (MULTI_LABEL, [[-5, 1], [3, 4], [-3, 2], [NAN, NAN]], 1),
        # Negative scores are below the mean of train.tsv.
        (REGRESSION, [[0.2], [-1.0], [0.1], [0.9]], 3),
        (REGRESSION, [[-0.2], [-1.0], [0.1], [NAN]], 1),
    ],
)
def test_deciding_passage(kind: str, logits: list[list[float]], deciding: int) -> None:
    task = make_task(Labels(["0", "1"], ["0", "1"], task=kind))
    found = deciding_passages(task.support, np.array([logits], np.float32))
    assert found.numpy().tolist() == [deciding]
