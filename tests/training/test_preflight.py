"""Input errors are reported before TensorFlow is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from small import Notes, write_small_task

import bertaccum
from bertaccum.data.run_inputs import note_reading
from bertaccum.system.files import sha256
from bertaccum.training import inputs
from data_prep.tables.manifest import MANIFEST, TOOL

SMALL = {"--bert-config": "reviews/bert_config.json", "--init-checkpoint": "none"}
# In this program, importing tensorflow raises ImportError, which gives exit code 1.
PROGRAM = """
import contextlib, io, json, sys
sys.modules["tensorflow"] = None
from bertaccum.cli.program import main
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, errors.getvalue().strip().splitlines()[-1]]))
"""
WRONG = {
    "train --data nope": "nope/train.tsv: there is no such file",
    "train --data damaged": "damaged/train.tsv",
    "train --data reviews --out here": "--out here exists",
    "train --data reviews --vocab nope": "nope: there is no such file",
    "train --data reviews --init-checkpoint nope": "nope: there is no such checkpoint",
    "train --data reviews --bert-config nope": "nope: there is no such file",
    "train --data reviews --max-seq-length 4000": "--max-seq-length 4000 is above",
    "train --data reviews --train-layers 2": "--train-layers is 2, but the model has 1 layer",
    "train --resume nope": "nope: there is no run here",
    "train --resume run": "gone/train.tsv: there is no such file",
    "pretrain --resume run --text t.txt": "--text has no effect on run, which began with",
    "pretrain --resume run --max-tokens 9": "--max-tokens has no effect on run, which began with",
    "train --resume read --data other": "--data has no effect on read, which began with",
    "train --data reviews --seeds 2": "several runs need --out",
    "train --data reviews --seeds 2 --out run": "--out run is a run folder",
    "plan --data nope": "nope/train.tsv: there is no such file",
    "plan --data reviews --out nope/plan.json": "--out nope/plan.json cannot be written",
    "plan --data reviews --out pipe": "--out pipe cannot be written; choose a file",
    "plan --data reviews --max-seq-length 4000": "--max-seq-length 4000 is above",
    "eval --run run": "run: this run has no best checkpoint yet",
    "eval --run done --split test": "reviews/test.tsv: there is no such file",
    "eval --run done --file nope": "nope: there is no such file",
    "report --run read --split dev": "--split dev does not apply to read, which was pretrained",
    "predict --run run text": "run: this run has no best checkpoint yet",
    "predict --run done --file nope": "nope: there is no such file",
    "export --run run": "run: this run has no best checkpoint yet",
    "export --run done --out reviews": "reviews exists",
}


def words(command: str) -> list[str]:
    """Return the command's words, adding a small model if it builds one and does not name it."""
    named = command.split()
    if named[0] not in ("train", "plan") or "--resume" in named:
        return named
    return named + [word for pair in SMALL.items() if pair[0] not in named for word in pair]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Return the exit code and last line of stderr for each command in `WRONG`."""
    folder = tmp_path_factory.mktemp("preflight")
    write_small_task(folder / "reviews", train=4, dev=2)
    for name in ("here", "damaged", "run", "read"):
        (folder / name).mkdir()
    for tsv in ("train.tsv", "dev.tsv"):
        (folder / "damaged" / tsv).write_text("no columns\n")
    os.mkfifo(folder / "pipe")
    (folder / "run/config.yaml").write_text("data: gone\n")
    (folder / "read/config.yaml").write_text("task: masked-lm\ntext: reviews/train.tsv\n")
    (folder / "done/best").mkdir(parents=True)
    (folder / "done/config.yaml").write_text("data: reviews\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([words(command) for command in WRONG])],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(WRONG, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("command", WRONG)
def test_input_errors_are_reported_without_tensorflow(
    said: dict[str, tuple[int, str]], command: str
) -> None:
    code, line = said[command]
    assert (code, WRONG[command] in line) == (2, True), line


def test_labels_and_model_are_found_once_for_each_run(tmp_path: Path) -> None:
    encoder = write_small_task(tmp_path / "reviews", train=8, dev=2)
    options = {"data": str(tmp_path / "reviews"), "bert_config": str(encoder)}
    options |= {"init_checkpoint": "none", "out": str(tmp_path / "run")}
    functions = "find_model", "read_labels", "read_inputs"
    spies = {name: mock.Mock(side_effect=getattr(inputs, name)) for name in functions}
    with mock.patch.multiple(inputs, **spies):
        bertaccum.train(**options, max_seq_length=16, micro_batch=4, target_batch=8, max_updates=0)
        assert [spy.call_count for spy in spies.values()] == [1, 1, 1]
        bertaccum.train(resume=tmp_path / "run")
    assert [spy.call_count for spy in spies.values()] == [2, 2, 2]


def test_reading_of_own_tables_is_noted_once(tmp_path: Path) -> None:
    notes, data = Notes(), tmp_path / "mine"
    encoder = write_small_task(data)
    lines = [f"{i}\tthe food was {('bad', 'good')[i % 2]}\t{i % 2}" for i in range(8)]
    for name in ("train.tsv", "dev.tsv"):
        (data / name).write_text("\n".join(["id\treview\tstars", *lines, "\t\t"]) + "\n")
    options = {"bert_config": str(encoder), "init_checkpoint": "none", "micro_batch": 4}
    options |= {"data": str(data), "target_batch": 4, "max_seq_length": 16, "max_updates": 0}
    run = bertaccum.train(**options, noise_scale="none", out=str(tmp_path / "run"), progress=notes)
    bertaccum.train(resume=run.folder, progress=notes)
    for tsv in (data / "train.tsv", data / "dev.tsv"):
        read = "reading `text_column` review, `label_column` stars, as the header suggests"
        for said in (read, "skipped rows without any content: 10"):
            assert notes.lines.count(f"{tsv}: {said}") == 1


def test_change_of_a_prepared_table_is_noted(tmp_path: Path) -> None:
    tsv, notes = tmp_path / "train.tsv", list[str]()
    tsv.write_text("label\ttext\n0\tgood\n")
    (tmp_path / MANIFEST).write_text(json.dumps({"tool": TOOL, "files": {tsv.name: sha256(tsv)}}))
    note_reading([tsv], notes.append)
    assert notes == []
    tsv.write_text('label\ttext\n0\t"good"\n')
    note_reading([tsv], notes.append)
    assert notes == [f"{tsv}: was changed since {TOOL} wrote it; quotes are read as text"]
