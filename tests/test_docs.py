"""The snippets in docs/ run as they are, and print what stands below them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SNIPPETS = re.findall(
    r"```python\n(.*?)```\n\n```text\n(.*?)```",
    (ROOT / "docs/gradient-accumulation.md").read_text(encoding="utf-8"),
    re.DOTALL,
)
# Two replicas, also on a machine without GPUs.
TWO_DEVICES = """
import functools
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
mirrored = functools.partial(tf.distribute.MirroredStrategy, ["CPU:0", "CPU:1"])
tf.distribute.MirroredStrategy = mirrored
"""


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) == 4


@pytest.mark.parametrize("number", range(4))
def test_snippet(number: int) -> None:
    code, printed = SNIPPETS[number]
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES + code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
