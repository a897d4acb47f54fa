"""The memory limit of a CPU, with the real allocator of GPUs.

TensorFlow accepts a limit only before it starts, so each test runs in its own process.
"""

from __future__ import annotations

import dataclasses

import pytest
from forked import output

from bertaccum.distribution.device_memory import memory_for_tensors
from bertaccum.errors import ConfigError
from bertaccum.options.cards import CARDS

START = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from bertaccum.errors import ConfigError
from bertaccum.distribution.device_memory import limit_memory, peak_memory_bytes, reset_peak_memory
MIB = 2**20
"""


def run(code: str) -> str:
    return output(START + code)


def test_limit_and_peak_of_allocated_memory() -> None:
    out = run(
        """
limit_memory(100 * MIB)
reset_peak_memory()
before = peak_memory_bytes() or 0
x = tf.zeros([40, MIB // 4])
print("forty", round((peak_memory_bytes() - before) / MIB))
try:
    tf.zeros([70, MIB // 4])
except tf.errors.ResourceExhaustedError:
    print("no room for seventy more")
del x
print("ninety in one piece", tf.zeros([90, MIB // 4]).shape[0])
"""
    )
    assert out.split("\n")[:3] == ["forty 40", "no room for seventy more", "ninety in one piece 90"]


LATE = "tf.linalg.matmul(tf.ones([500, 500]), tf.ones([500, 500]))\n"
WRONG = {
    "late": (LATE + "limit_memory(200 * MIB)", "cannot take effect"),
    "twice": ("limit_memory(200 * MIB); limit_memory(100 * MIB)", "cannot take effect"),
    "tiny": (
        "limit_memory(MIB)",
        "too small for TensorFlow to start; set a limit of at least 64 MiB",
    ),
    "absurd": ("limit_memory(2**60)", "on this machine; set a lower memory limit"),
}


# An allocation that fails waits for ten seconds, so the test that does so is slow.
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.slow if c == "absurd" else []) for c in WRONG]
)
def test_invalid_limit_is_an_error(case: str) -> None:
    code, message = WRONG[case]
    out = run(
        f"try:\n    {code.replace(chr(10), chr(10) + '    ')}\n"
        "except ConfigError as error: print(error)"
    )
    assert message in out


def test_reserved_memory_follows_the_compute_capability() -> None:
    left = {name: memory_for_tensors(CARDS[name]) / 2**20 for name in CARDS}
    assert left["gtx-1050-ti"] == 4096 - 250 - 500
    assert left["t4"] == 15360 - 250 - 1050
    assert left["rtx-3060"] == 12288 - 250 - 1536
    assert left["h200"] == 140829  # As measured.
    assert left["rtx-5090"] == 32768 - 1142 - 1800
    small = dataclasses.replace(CARDS["t4"], memory_mib=2000)
    assert memory_for_tensors(small) == (2000 - 250 - 225) * 2**20
    with pytest.raises(ConfigError, match="to at least 1,431 MiB"):
        memory_for_tensors(dataclasses.replace(CARDS["h100"], memory_mib=1400))
