"""`--windows` from the command line: a model that reads long texts whole."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from small import write_small_model, write_small_task

from bertaccum.bert.vocabulary import SPECIAL_TOKENS
from bertaccum.inference.trained_model import load_trained

# 20 words in 4 windows of 8 tokens, which overlap by 1 or 2 words.
WINDOWS = ["--max-seq-length", 8, "--windows", 4, "--stride", 5]
FILLER, DECISIVE = ["the", "food", "was", "very"], ["bad", "good"]


def long_text(rng: random.Random, label: int, place: int) -> str:
    """Return 21 words, of which only the one at `place` tells the label."""
    words = [rng.choice(FILLER) for _ in range(21)]
    words[place] = DECISIVE[label]
    return " ".join(words)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("windows") / "reviews"
    folder.mkdir()
    rng = random.Random(0)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *FILLER, *DECISIVE]) + "\n")
    for name, count in {"train": 256, "dev": 40, "test": 40}.items():
        rows = [f"{i % 2}\t{long_text(rng, i % 2, rng.randrange(21))}" for i in range(count)]
        (folder / f"{name}.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
    dimensions = {"hidden_size": 32, "intermediate_size": 64}
    write_small_model(folder / "bert_config.json", folder / "vocab.txt", **dimensions)
    return folder


@pytest.fixture
def call(data: Path, monkeypatch: pytest.MonkeyPatch, program: Any) -> Any:
    """Return a function that runs the program beside the data: exit code, stdout and stderr."""
    monkeypatch.chdir(data.parent)
    return program


def train(call: Any, out: str, *options: object) -> tuple[object, str, str]:
    model = ["--bert-config", "reviews/bert_config.json", "--init-checkpoint", "none"]
    given = ["--target-batch", 16, "--learning-rate", "3e-3", *options]
    return call("train", "--data", "reviews", "--out", out, *model, *given)


@pytest.mark.slow
def test_windows_find_what_truncation_loses(call: Any, data: Path) -> None:
    size = ["--micro-batch", 16, "--epochs", 12, "--dropout", 0]
    code, _, err = train(call, "whole", *WINDOWS, *size)
    assert code == 0, err
    assert "longer than" not in err
    code, _, err = train(call, "head", "--max-seq-length", 8, *size)
    assert code == 0, err
    assert "100% of the texts are longer than --max-seq-length 8" in err
    assert "--windows 2 keeps 57%, 4 keeps 100% of all tokens" in err
    scores = {}
    for name in ("whole", "head"):
        code, out, _ = call("eval", "--run", name, "--json")
        assert code == 0
        scores[name] = json.loads(out)
    assert scores["whole"]["accuracy"] == 1.0 and scores["head"]["accuracy"] < 0.8
    assert "deciding_windows" not in scores["head"]
    counts = scores["whole"]["deciding_windows"]
    assert sum(counts) == 40 and len(counts) == 4 and min(counts) > 0
    shares = ", ".join(f"{number}: {count / 40:.0%}" for number, count in enumerate(counts, 1))
    assert shares in call("eval", "--run", "whole")[1]

    # Each result names a window that contains the decisive word.
    rng = random.Random(1)
    texts = [long_text(rng, place % 2, place) for place in range(21)] + ["good"]
    code, out, _ = call("predict", "--run", "whole", "--json", *texts)
    found = [json.loads(line) for line in out.splitlines()]
    assert [one["label"] for one in found] == [*("01" * 10), "0", "1"]
    assert [one["windows"] for one in found] == [4] * 21 + [1]
    for place, one in enumerate(found[:-1]):
        start = 5 * (one["window"] - 1)
        assert start <= place < start + 6
    assert "window" not in call("predict", "--run", "head", "--json", "good")[1]

    code, out, _ = call("export", "--run", "whole")
    serve = tf.saved_model.load("whole/export-savedmodel").signatures["serving_default"]
    answer = serve(text=tf.constant(texts))
    assert answer["window"].numpy().tolist() == [one["window"] for one in found]
    expected = [list(one["probabilities"].values()) for one in found]
    np.testing.assert_allclose(answer["probabilities"], expected, rtol=0, atol=1e-6)
    assert serve(text=tf.constant([], tf.string))["window"].shape == [0]
    code, _, err = call("export", "--run", "whole", "--format", "huggingface")
    assert code == 2 and "up to 4 windows of a text" in err and "--format savedmodel" in err

    # A run of bad labels has mistakes, whose deciding windows the report shows.
    test = data / "test.tsv"
    test.write_text(
        test.read_text().replace("1\t", "2\t").replace("0\t", "1\t").replace("2\t", "0\t")
    )
    assert call("report", "--run", "whole")[0] == 0
    page = Path("whole/report.html").read_text()
    assert "deciding window" in page and " of 4</td>" in page
    assert call("report", "--run", "head")[0] == 0
    assert "deciding window" not in Path("head/report.html").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--stride", 4], "--stride 4 has no effect without --windows"),
        (["--pool", "max"], "--pool max has no effect without --windows"),
        (["--windows", 2, "--stride", 7], "--stride 7 would leave out tokens between windows"),
        (["--windows", 0], "--windows"),
    ],
)
def test_windows_that_cannot_be_are_refused(call: Any, options: list[object], said: str) -> None:
    code, _, err = train(call, "refused", "--max-seq-length", 8, *options)
    assert code == 2 and said in err and len(err.splitlines()) <= 3
    assert not Path("refused").exists()


def test_pairs_are_not_read_in_windows(call: Any, tmp_path: Path) -> None:
    model = write_small_task(tmp_path / "pairs", train=8, dev=8)
    for tsv in (tmp_path / "pairs").glob("*.tsv"):
        lines = [f"{line}\t{'text_pair' if n == 0 else 'good'}"
                 for n, line in enumerate(tsv.read_text().splitlines())]  # fmt: skip
        tsv.write_text("\n".join(lines) + "\n")
    code, _, err = call(
        "train", "--data", tmp_path / "pairs", "--bert-config", model, "--init-checkpoint", "none",
        "--windows", 2, "--max-seq-length", 16, "--out", "refused",
    )  # fmt: skip
    assert code == 2 and "--windows 2 needs single texts, but the data have pairs" in err
    assert not Path("refused").exists()


@pytest.mark.slow
def test_updates_do_not_depend_on_micro_batch_replicas_or_resume(call: Any, data: Path) -> None:
    def given(name: str, *options: object) -> list[object]:
        model = ["--bert-config", data / "bert_config.json", "--init-checkpoint", "none"]
        told = ["train", "--data", data, "--out", data.parent / name, *model, *WINDOWS, *options]
        return [*told, "--epochs", 0.5, "--target-batch", 16, "--learning-rate", "3e-3"]

    def train(name: str, *options: object) -> np.ndarray:
        code, _, err = call(*given(name, *options))
        assert code == 0, err
        return weights(name)

    def weights(name: str) -> np.ndarray:
        model = load_trained(data.parent / name).model
        return np.concatenate([w.numpy().ravel() for w in model.weights])

    once = train("once", "--micro-batch", 16)
    begun = train("resumed", "--micro-batch", 5, "--max-updates", 4, "--save-every", 4)
    assert np.abs(begun - once).max() > 1e-4
    assert call("train", "--resume", data.parent / "resumed", "--max-updates", 8)[0] == 0
    # Devices can only be divided before TensorFlow starts.
    two = [*given("two", "--micro-batch", 3, "--replicas", 2)]
    command = [sys.executable, "-m", "bertaccum", *map(str, two)]
    subprocess.run(command, check=True, capture_output=True)
    for own in (train("small", "--micro-batch", 2), weights("two"), weights("resumed")):
        np.testing.assert_allclose(own, once, rtol=0, atol=1e-5)
