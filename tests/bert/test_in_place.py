"""Pretrained weights reach every replica."""

from __future__ import annotations

from pathlib import Path

from forked import output

LOADED = """
import sys
from pathlib import Path
import numpy as np
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from small import TINY, write_google_checkpoint
from bertaccum import _tf_compat
from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.google_checkpoint import GOOGLE
from bertaccum.bert.pretrained_weights import load_encoder
prefix = Path(sys.argv[1])
saved = build_encoder(TINY)
write_google_checkpoint(saved, prefix)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    loaded = build_encoder(TINY)
    load_encoder(loaded, GOOGLE, prefix)
for weight, copies in zip(saved.weights, map(_tf_compat.components, loaded.weights), strict=True):
    assert len(copies) == 2
    for copy in copies:
        np.testing.assert_array_equal(copy, weight)
"""


def test_weights_reach_every_replica(tmp_path: Path) -> None:
    output(LOADED, tmp_path / "bert_model.ckpt")
