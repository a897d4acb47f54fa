"""Real faults: a full disk, unusual texts, invalid rows, pickles and hostile YAML."""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from full_disk import full_disk
from small import copied, write_small_model

from bertaccum.bert.vocabulary import SPECIAL_TOKENS

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Any) -> Run:
    """Return a function that runs the program in a temporary folder.

    It returns the exit code and the last line on stderr.
    """
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str]:
        code, _, errors = program(*arguments)
        assert "Traceback" not in errors
        return code, errors.strip().splitlines()[-1] if errors else ""

    return call


def small_model(folder: Path, vocabulary: Path) -> list[object]:
    """Write a small bert_config.json, and return the options of a run that takes a second."""
    path = write_small_model(folder / "bert_config.json", vocabulary)
    options = ["--bert-config", path, "--init-checkpoint", "none", "--max-seq-length", 32]
    return [*options, "--target-batch", 8, "--micro-batch", 4]


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a file system of this size at `folder`; skip the test without root."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip(
            "needs root to mount a tmpfs; tests/training/test_resume.py simulates a full disk"
        )
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.slow
def test_run_resumes_after_a_full_disk(run: Run, tmp_path: Path) -> None:
    assert run("prepare", "--source", "sample", "--out", "data")[0] == 0
    options = ["--data", "data", *small_model(tmp_path, tmp_path / "data/vocab.txt")]
    options += ["--max-updates", 40, "--save-every", 1, "--keep", 1000]
    disk = tmp_path / "disk"
    with small_disk(disk, "2m"):
        code, line = run("prepare", "--source", "sample", "--out", "disk/data")
        assert (code, len(list(disk.iterdir()))) == (0, 1)
        code, line = run("train", *options, "--out", "disk/run")
        assert (code, "No space left on device" in line) == (1, True), line
        assert line.endswith("run again with --resume; earlier checkpoints are intact")
        assert "{{" not in line and "[Op:" not in line
        saved = sorted(p.name for p in (disk / "run/checkpoints").iterdir())
        assert saved and not any(name.startswith(".") for name in saved)
        # On a completely full disk, `prepare` fails and leaves no files.
        with contextlib.suppress(OSError), (disk / "fill").open("wb", buffering=0) as file:
            while file.write(b"0" * 512):
                pass
        before = sorted(p.name for p in disk.iterdir())
        code, line = run("prepare", "--source", "sample", "--out", "disk/more")
        assert (code, "No space left on device" in line) == (1, True), line
        assert sorted(p.name for p in disk.iterdir()) == before
        # With free space again, the run resumes from its last checkpoint.
        (disk / "fill").unlink()
        shutil.rmtree(disk / "data")
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        code, _ = run("train", "--resume", "disk/run", "--keep", 1)
        assert code == 0
        lines = (disk / "run/metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["update"] for line in lines] == list(range(1, 41))


# Commands that write files, the room for each file in bytes, and the message.
WRITING = {
    "report --split dev --out page.html": (0, "page.html: File too large; check permissions"),
    "predict good --results p.tsv": (0, "p.tsv: File too large; check permissions"),
    "eval --split dev": (0, "/eval-dev.json: File too large; check permissions"),
    "eval --split dev --results e.txt": (0, "e.txt: File too large; check permissions"),
    "compare runs/one runs/one --out runs": (0, "runs/compare.png: File too large; check perm"),
    "export --out x --format huggingface": (6000, "x: cannot be written ("),
    "export --out x --format tflite": (0, "x: cannot be written (File too large); free"),
    "export --out x": (3000, "x: cannot be written ("),
    "train --resume runs/one": (0, "runs/one/.lock: cannot be written ("),
}


def test_error_on_a_full_disk_names_the_file(run: Run, trained: Path, tmp_path: Path) -> None:
    copied(trained, tmp_path)
    Path("runs/latest").symlink_to("one")
    # The other process of the tests may have trained the run, so the tokens are not in the cache.
    assert run("eval", "--split", "dev")[0] == 0
    before = sorted(path.name for path in tmp_path.iterdir())
    for command, (room, message) in WRITING.items():
        with full_disk(room):
            code, line = run(*command.split())
        assert code == 1 and "File too large" in line, (command, line)
        assert message in line and line.startswith("error: "), (command, line)
        assert sorted(path.name for path in tmp_path.iterdir()) == before, command


@pytest.mark.parametrize("command", ["export --out x", "compare runs/one runs/one --out x"])
def test_no_room_for_a_folder_is_not_a_wrong_option(
    run: Run, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    copied(trained, tmp_path)
    Path("runs/latest").symlink_to("one")
    for number, expected in ((errno.ENOSPC, 1), (errno.EACCES, 2)):
        monkeypatch.setattr(Path, "mkdir", Mock(side_effect=OSError(number, os.strerror(number))))
        code, line = run(*command.split())
        assert code == expected and os.strerror(number) in line, line
        assert line.endswith("choose another folder")


def test_error_on_a_full_disk_names_standard_output(tmp_path: Path) -> None:
    for command in ("models", "models --json", "--version"):
        program = [sys.executable, "-m", "bertaccum", *command.split()]
        with (tmp_path / "out").open("w") as out, full_disk():
            done = subprocess.run(program, stdout=out, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 1
        assert done.stderr.startswith("error: standard output: File too large; check permissions")


AS_PEOPLE_WRITE = [
    "😀👍🏽 five stars ✨",
    "مطعم رائع جدا",
    "שירות טוב 好吃 とても",
    "bell\x07 and \x1b[31mred\x1b[0m",
    'two\nlines, "quoted"\tand a tab',
    "",
    "   \t ",
    "word " * 200_000,
    "x" * 1_000_000,
    "ﬁancé café ™ №5 ß",
    "‮reversed‬ \u200bzero width\u2028line",
    "'; DROP TABLE reviews; -- {{x}} %s $(rm) [bold]",
]


def prepare_unusual(run: Run, tmp_path: Path, names: tuple[str, str]) -> None:
    """Prepare unusual texts with these labels, and check that the labels are kept."""
    with (tmp_path / "mine.csv").open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)  # The writer ends rows with CRLF.
        writer.writerow(["label", "text"])
        writer.writerows((names[i % 2], text) for i, text in enumerate(AS_PEOPLE_WRITE * 2))
    arguments = ["--source", "csv", "--train-file", "mine.csv", "--dev-fraction", 0.2]
    code, line = run("prepare", *arguments, "--out", "data")
    assert code == 0, line
    manifest = json.loads((tmp_path / "data/manifest.json").read_text())
    assert [name.strip() for name in manifest["labels"]] == [name.strip() for name in names]


@pytest.mark.parametrize("names", [("False", "True"), (" 0", " 1")])
def test_unusual_labels_are_kept(run: Run, tmp_path: Path, names: tuple[str, str]) -> None:
    prepare_unusual(run, tmp_path, names)


def test_unusual_texts_can_be_trained_on(run: Run, tmp_path: Path) -> None:
    prepare_unusual(run, tmp_path, ("negative", "positive"))
    vocabulary = tmp_path / "vocab.txt"
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary.write_text("\n".join([*SPECIAL_TOKENS, *letters, *(f"##{c}" for c in letters)]))
    options = ["--data", "data", "--vocab", vocabulary, *small_model(tmp_path, vocabulary)]
    code, line = run("train", *options, "--max-updates", 1, "--out", "run")
    assert code == 0, line
    assert run("eval", "--run", "run", "--split", "dev")[0] == 0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"1,nul \0 byte", "mine.csv, row 3: contains NUL bytes"),
        (b"1,caf\xe9", "mine.csv, row 3: byte 0xe9 at position 6 is not UTF-8"),
        (b",good", "mine.csv, row 3: "),
    ],
)
def test_error_names_the_row_of_an_invalid_text(
    run: Run, tmp_path: Path, row: bytes, message: str
) -> None:
    (tmp_path / "mine.csv").write_bytes(b"label,text\n0,bad\n" + row + b"\n1,good\n" * 4)
    code, line = run("prepare", "--source", "csv", "--train-file", "mine.csv", "--out", "data")
    assert (code, line.startswith(f"error: {message}")) == (2, True), line
    assert not (tmp_path / "data").exists()


class Hostile:
    """An object whose pickle creates a file when it is loaded."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch loaded",)


def test_pickles_are_never_loaded(run: Run, trained: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "hostile.zip"
    hostile.write_bytes(pickle.dumps(Hostile()))
    copied(trained, tmp_path)
    good = ["train", "--data", "reviews", *small_model(tmp_path, tmp_path / "reviews/vocab.txt")]
    for option in ("--config", "--vocab", "--init-checkpoint", "--bert-config"):
        at = good.index(option) if option in good else len(good)
        code, line = run(*good[:at], option, hostile, *good[at + 2 :], "--out", "never")
        assert (code, line.startswith("error: ")) == (2, True), (option, line)
    folder = tmp_path / "runs/one"
    state = max((folder / "checkpoints").iterdir())
    for path in (state / "position.json", state / "state.index", folder / "inputs.json"):
        whole = path.read_bytes()
        path.write_bytes(hostile.read_bytes())
        code, line = run("train", "--resume", folder)
        assert (code, line.startswith("error: ")) == (2, True), (path, line)
        path.write_bytes(whole)
    for path in (folder / "best").iterdir():
        whole = path.read_bytes()
        path.write_bytes(hostile.read_bytes())
        code, line = run("eval", "--run", folder, "--split", "dev")
        assert code in (0, 2), (path, line)
        path.write_bytes(whole)
    assert not (tmp_path / "loaded").exists()


@pytest.mark.parametrize("text", ["!!python/object/apply:os.system [id]", "!x 3", "&a [*a]"])
def test_yaml_creates_no_objects(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.yaml").write_text(f"target_batch: 8\nseed: {text}\n")
    code, line = run("train", "--config", "recipe.yaml")
    assert (code, line.startswith("error: recipe.yaml")) == (2, True), line
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text(f"seed: {text}\n")
    code, line = run("train", "--resume", "run")
    assert (code, line.startswith("error: run/config.yaml: is not the configuration of a run")) == (
        2,
        True,
    ), line
