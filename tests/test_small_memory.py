"""Every command works with the memory of a run that offloads everything."""

from __future__ import annotations

from pathlib import Path

import forked
import pytest
from forked import PROGRAM
from small import write_google_checkpoint, write_small_model, write_small_task

from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.encoder_config import read_bert_config

# The weights need 64 MiB, 39 of them for the embeddings of words. An encoder loads in LIMIT_MIB
# if a checkpoint's embeddings are in memory once besides the variable, but not if twice.
WORDS = 20_000
LIMIT_MIB = 122
# Enough for the encoder's variables, but not for reading the embeddings.
TOO_LITTLE_MIB = 77
EXPORT = f"""
import sys
from bertaccum import api
from bertaccum.distribution.device_memory import limit_memory
limit_memory({LIMIT_MIB} * 2**20)
api.export(run="first", out=sys.argv[1], format=sys.argv[1])
"""


@pytest.mark.slow
def test_every_command_stays_within_the_memory_of_a_run(tmp_path: Path) -> None:
    write_small_task(tmp_path / "reviews", train=8, dev=4, test=4)
    vocabulary = tmp_path / "reviews/vocab.txt"
    with vocabulary.open("a") as file:
        file.writelines(f"word{number}\n" for number in range(WORDS))
    size = {"hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8}
    config = write_small_model(
        tmp_path / "reviews/bert_config.json", vocabulary, intermediate_size=2048, **size
    )
    (tmp_path / "google").mkdir()
    for file in (config, vocabulary):
        (tmp_path / "google" / file.name).write_bytes(file.read_bytes())
    encoder = build_encoder(read_bert_config(config))
    write_google_checkpoint(encoder, tmp_path / "google/bert_model.ckpt")

    def python(code: str, *arguments: str) -> None:
        done = forked.run(code, *arguments, cwd=tmp_path)
        assert done.returncode == 0 and "out of memory" not in done.stderr, done.stderr

    def run(*arguments: str) -> None:
        python(PROGRAM, *arguments, "--memory-limit", f"{LIMIT_MIB}MiB")

    def training(out: str, checkpoint: str, *options: str) -> list[str]:
        return [
            *("train", "--data", "reviews", "--out", out, "--init-checkpoint", checkpoint),
            *("--target-batch", "4", "--micro-batch", "1", "--max-seq-length", "16"),
            *("--recompute", "layer", "--offload", "all", *options),
        ]

    random = ("none", "--bert-config", str(config), "--vocab", str(vocabulary))
    run(*training("first", *random, "--max-updates", "1"))
    run("train", "--resume", "first", "--max-updates", "2")
    run("eval", "--run", "first")
    run("predict", "--run", "first", "the food was good")
    for form in ("savedmodel", "huggingface"):
        python(EXPORT, form)
    for checkpoint in ("google", "huggingface", "first"):
        run(*training(f"from-{checkpoint}", checkpoint, "--max-updates", "1"))

    for short in (training("none", "google"), ["eval", "--run", "first"]):
        limit = f"{TOO_LITTLE_MIB}MiB"
        done = forked.run(PROGRAM, *short, "--memory-limit", limit, cwd=tmp_path)
        assert done.returncode == 1, done.stderr
        assert "the model does not fit in memory; raise --memory-limit" in done.stderr
