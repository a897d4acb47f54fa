"""`prepare` from its options to the written folder, for sources that need no TensorFlow."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Thread
from typing import Any

import pandas as pd
import pytest
from preparing import contents, ignore, run, words

from bertaccum import __version__
from bertaccum.cli.display.data_notes import notes
from bertaccum.errors import BertAccumError, ConfigError, InputError
from bertaccum.options.prepare import PrepareConfig
from data_prep.preparation import prepare
from data_prep.sources import own_files
from data_prep.tables.manifest import MANIFEST
from data_prep.tables.tsv import read_tsv


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Return options for a CSV file of 300 rows, sorted by class, and a test file of 20 rows."""
    rows = sorted(f"{10 - i % 3},review {i}\n" for i in range(300))
    (tmp_path / "train.csv").write_text("label,text\n" + "".join(rows))
    (tmp_path / "test.csv").write_bytes(b"text,label\n" + b"twin,9\n" * 20)
    return {
        "source": "csv",
        "train_file": str(tmp_path / "train.csv"),
        "test_file": str(tmp_path / "test.csv"),
        "out": str(tmp_path / "out"),
        "dev_fraction": 0.1,
    }


def pairs(table: pd.DataFrame) -> set[tuple[str, str]]:
    return set(zip(table["label"], table["text"], strict=True))


def test_manifest_describes_the_written_files(options: dict[str, Any]) -> None:
    result = run(**options)
    files = contents(result.folder)
    manifest = json.loads(files.pop(MANIFEST))
    assert manifest == result.manifest and not result.unchanged
    assert manifest["files"] == {n: hashlib.sha256(d).hexdigest() for n, d in files.items()}
    assert set(files) == {"train.tsv", "dev.tsv", "test.tsv"}
    assert manifest["version"] == __version__ and "train.csv" in manifest["source"]
    # Labels that are integers are sorted by value.
    assert manifest["labels"] == manifest["source_labels"] == ["8", "9", "10"]
    assert manifest["counts"]["test"] == {"rows": 20, "classes": {"8": 0, "9": 20, "10": 0}}
    assert [manifest[key] for key in ("layout", "seed", "dev_fraction")] == ["plain", 0, 0.1]
    for name in ("train_file", "test_file"):
        data = Path(options[name]).read_bytes()
        assert manifest["options"][f"{name}_sha256"] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("rows", "test_fraction", "expected", "said"),
    [
        (40, 0, 4, "dev.tsv has only 4 rows"),
        (4_000, 0, 400, "dev.tsv has 400 rows, 10% of the training rows, because 1% would be"),
        (4_000, 0.2, 400, "dev.tsv has 400 rows, 10% of the training rows, because 1% would be"),
        (8_000, 0, 500, "dev.tsv has 500 rows, 6.2% of the training rows, because 1% would be"),
        (60_000, 0, 600, None),
        (1_000, 0.98, 10, "dev.tsv has only 10 rows"),
    ],
)
def test_default_dev_part_of_few_rows_has_hundreds(
    tmp_path: Path, rows: int, test_fraction: float, expected: int, said: str | None
) -> None:
    lines = [f"{row % 2},review {row}\n" for row in range(rows)]
    (tmp_path / "mine.csv").write_text("label,text\n" + "".join(lines))
    options: dict[str, Any] = {"source": "csv", "train_file": str(tmp_path / "mine.csv")}
    options |= {"out": str(tmp_path / "out"), "test_fraction": test_fraction}
    manifest = run(**options).manifest
    assert manifest["counts"]["dev"]["rows"] == expected
    assert manifest["dev_fraction"] == pytest.approx(expected / rows)
    found = [line for line in notes(manifest) if line.startswith("note: dev.tsv")]
    assert [line.startswith(f"note: {said}") for line in found] == [True] * bool(said)
    assert run(**options).unchanged
    again = run(**options, dev_fraction=0.01, overwrite=True).manifest
    assert again["counts"]["dev"]["rows"] == max(rows // 100, 1)
    assert not [line for line in notes(again) if "another share" in line]


def test_no_row_is_lost_and_classes_are_mixed(options: dict[str, Any]) -> None:
    result = run(**options)
    train, dev = (read_tsv(result.folder / f"{name}.tsv") for name in ("train", "dev"))
    assert (len(train), len(dev)) == (270, 30)
    assert pairs(train) | pairs(dev) == {(str(2 - i % 3), f"review {i}") for i in range(300)}
    assert set(train["label"][:20]) == {"0", "1", "2"}
    for split, table in (("train", train), ("dev", dev)):
        counts = table["label"].value_counts()
        classes = {name: int(counts[str(i)]) for i, name in enumerate(("8", "9", "10"))}
        assert result.manifest["counts"][split] == {"rows": len(table), "classes": classes}


def test_without_test_file_there_is_no_test_split(options: dict[str, Any]) -> None:
    result = run(**options | {"test_file": None})
    assert set(contents(result.folder)) == {"train.tsv", "dev.tsv", MANIFEST}
    assert set(result.manifest["counts"]) == {"train", "dev"}


def test_cola_layout_is_written_and_read(options: dict[str, Any]) -> None:
    folder = run(**options, layout="cola").folder
    assert (folder / "test.tsv").read_text().startswith("index\tsentence\n0\ttwin\n")
    assert (folder / "train.tsv").read_text().count("\t") == 3 * 270
    assert len(read_tsv(folder / "train.tsv")) == 270


def test_same_options_again_write_nothing(options: dict[str, Any]) -> None:
    first = run(**options)
    stamps = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    again = run(**options)
    assert again.unchanged and again.manifest == first.manifest
    assert run(**options, overwrite=True).unchanged
    assert {path: path.stat().st_mtime_ns for path in first.folder.iterdir()} == stamps


def test_option_missing_from_an_old_manifest_has_its_default(options: dict[str, Any]) -> None:
    folder = run(**options).folder
    manifest = json.loads((folder / MANIFEST).read_text())
    for name in ("delimiter", "encoding"):
        assert manifest["options"].pop(name) is None
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert run(**options).unchanged
    assert not run(**options, delimiter="comma", overwrite=True).unchanged
    assert run(**options, delimiter=",").unchanged


def test_input_whose_numbers_mean_other_classes_is_not_unchanged(options: dict[str, Any]) -> None:
    given = run(**options).folder / "train.tsv"
    again = options | {"train_file": str(given), "test_file": None, "out": f"{given.parent}-again"}
    before, content = run(**again).manifest["labels"], given.read_bytes()
    table = Path(options["train_file"])
    table.write_text(table.read_text().replace("\n10,", "\n11,"))
    run(**options, overwrite=True)
    assert given.read_bytes() == content
    with pytest.raises(ConfigError, match="the class names of `train_file` differ"):
        run(**again)
    assert before == ["8", "9", "10"]
    assert run(**again, overwrite=True).manifest["labels"] == ["8", "9", "11"]


@pytest.mark.parametrize(
    ("rows", "was", "now", "same"),
    [
        (50_000, 0.01, None, True),
        (50_000, None, 0.01, True),
        (50_000, 0.02, None, False),
        (300, 0.01, None, False),
        (300, 0.1, None, True),
    ],
)
def test_default_dev_fraction_is_compared_by_its_rows(
    tmp_path: Path, rows: int, was: float | None, now: float | None, same: bool
) -> None:
    lines = [f"{row % 2},review {row}\n" for row in range(rows)]
    (tmp_path / "mine.csv").write_text("label,text\n" + "".join(lines))
    options: dict[str, Any] = {"source": "csv", "train_file": str(tmp_path / "mine.csv")}
    options |= {"out": str(tmp_path / "out"), "test_fraction": 0.1}
    run(**options, dev_fraction=was)
    if same:
        assert run(**options, dev_fraction=now).unchanged
    else:
        with pytest.raises(ConfigError, match=f"`dev_fraction` was {was}, is now unset"):
            run(**options, dev_fraction=now)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 1}, "`seed` was 0, is now 1"),
        ({"delimiter": "comma"}, "`delimiter` was unset, is now ','"),
        ({"encoding": "latin-1"}, "`encoding` was unset, is now 'latin-1'"),
        ({"layout": "cola"}, "`layout` was 'plain', is now 'cola'"),
        ({"dev_fraction": 0.2}, "`dev_fraction` was 0.1, is now 0.2"),
        ({"test_file": None}, r"\(`test_file` was 'test.csv', is now unset\); pass"),
        ({"train_file": None, "test_file": None, "source": "sample"}, r"\(`source` .* 'sample'\)"),
    ],
)
def test_different_options_need_overwrite(
    options: dict[str, Any], other: dict[str, Any], message: str
) -> None:
    folder = run(**options).folder
    (folder / "notes.txt").write_text("mine")
    before = contents(folder)
    with pytest.raises(ConfigError, match=message):
        run(**options | other)
    assert contents(folder) == before
    result = run(**options | other, overwrite=True)
    assert not result.unchanged
    after = contents(folder)
    assert after.pop("notes.txt") == b"mine"
    assert set(after) == {*result.manifest["files"], MANIFEST}
    assert run(**options | other).unchanged


def test_changed_input_or_output_is_detected(options: dict[str, Any], tmp_path: Path) -> None:
    folder = run(**options).folder
    (folder / "dev.tsv").write_bytes(b"label\ttext\n")
    (folder / "test.tsv").unlink()
    with pytest.raises(ConfigError, match=r"\(dev.tsv, test.tsv changed or missing\)"):
        run(**options)
    assert not run(**options, overwrite=True).unchanged
    with (tmp_path / "train.csv").open("a") as file:
        file.write("8,one more\n")
    with pytest.raises(ConfigError, match=r"options \(the contents of `train_file` differ\)"):
        run(**options)


@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_files_are_never_overwritten(options: dict[str, Any], overwrite: bool) -> None:
    folder = Path(options["out"])
    folder.mkdir()
    (folder / "train.tsv").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        run(**options, overwrite=overwrite)
    (folder / MANIFEST).write_text('{"name": "mine"}')
    with pytest.raises(InputError, match="was not written by"):
        run(**options, overwrite=overwrite)
    (folder / MANIFEST).unlink()
    (folder / "train.tsv").unlink()
    (folder / f".{MANIFEST}-0123456789ab").mkdir()  # By a process that was killed.
    assert not run(**options).unchanged  # An empty folder may be written to.
    assert set(contents(folder)) == {"train.tsv", "dev.tsv", "test.tsv", MANIFEST}
    (folder / "vocab.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"vocab.txt: was not written by bertaccum prepare"):
        run(source="sample", out=str(folder), overwrite=True)
    assert (folder / "vocab.txt").read_text() == "mine"


def test_output_path_that_is_a_file_is_refused(options: dict[str, Any]) -> None:
    Path(options["out"]).write_text("mine")
    with pytest.raises(ConfigError, match="is a file"):
        run(**options, overwrite=True)


def test_run_killed_while_replacing_files_is_detected(options: dict[str, Any]) -> None:
    folder = run(**options).folder
    (folder / MANIFEST).rename(folder / f"{MANIFEST}.replaced")
    (folder / "train.tsv").write_bytes(b"new")
    with pytest.raises(ConfigError, match="was interrupted while it replaced"):
        run(**options)
    assert not run(**options, overwrite=True).unchanged
    assert set(contents(folder)) == {"train.tsv", "dev.tsv", "test.tsv", MANIFEST}


def test_interrupted_run_leaves_no_files(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(what: str, done: int, total: int | None) -> None:
        if what == "writing test.tsv":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(PrepareConfig(**options), interrupted, words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test.csv", "train.csv"]


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ("label,text\n", "", "train.csv: has no rows"),
        ("label,text\n1,a\n1,b\n", "", "train.csv: every row has the label '1'"),
        (
            "label,text\n1,a\n2,b\n",
            "label,text\n1,a\n3,b\n",
            r"test.csv, row 3: the label '3' does",
        ),
        ("label,text\n1,a\n2,b\n", "label,text\n", "test.csv: has no rows"),
        ("label,text\n1,a\n,b\n", "", "train.csv, row 3: has no label; add one"),
        ("index\tsentence\n0\ta\n", "", "train.csv: has no labels; pass a file with a column of"),
    ],
)
def test_invalid_input_writes_nothing(
    options: dict[str, Any], tmp_path: Path, train: str, test: str, message: str
) -> None:
    (tmp_path / "train.csv").write_text(train)
    (tmp_path / "test.csv").write_text(test or "label,text\n1,a\n")
    with pytest.raises(BertAccumError, match=message):
        run(**options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test.csv", "train.csv"]


@pytest.mark.parametrize("split", ["train", "test"])
def test_input_in_the_folder_to_replace_is_refused(options: dict[str, Any], split: str) -> None:
    folder = run(**options).folder
    before = contents(folder)
    given = {"train_file": options["train_file"], "test_file": options["test_file"]}
    given[f"{split}_file"] = str(folder / "dev.tsv")
    with pytest.raises(ConfigError, match=r"dev.tsv: is an input, .* would replace; choose anoth"):
        run(**options | given, overwrite=True)
    assert contents(folder) == before


def test_class_numbers_of_a_prepared_file_are_named(tmp_path: Path) -> None:
    rows = [(name, n) for name in ("bad", "fair", "good") for n in range(20)]
    (tmp_path / "a.csv").write_text("label,text\n" + "".join(f"{c},{c} {n}\n" for c, n in rows))
    other = [(name, n) for name, n in rows if name != "bad"]
    (tmp_path / "b.csv").write_text("label,text\n" + "".join(f"{c},b {c} {n}\n" for c, n in other))
    folders = {}
    for name in ("a", "b"):
        given = {"train_file": str(tmp_path / f"{name}.csv"), "out": str(tmp_path / name)}
        folders[name] = run(source="csv", **given).folder
    files = {"train_file": str(folders["a"] / "train.tsv")}
    files["test_file"] = str(folders["b"] / "train.tsv")
    result = run(source="csv", **files, out=str(tmp_path / "out"))
    assert result.manifest["labels"] == ["bad", "fair", "good"]
    for label, text in pairs(read_tsv(result.folder / "test.tsv")):
        assert result.manifest["labels"][int(label)] == text.split()[1]
    train = folders["a"] / "train.tsv"
    train.write_text(train.read_text() + "3\tx\n")
    with pytest.raises(InputError, match=r"the label '3' is no class number of manifest.json"):
        run(source="csv", train_file=str(train), out=str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("task", "labels"),
    [("multi-label", ["joy|awe", "joy", "|"]), ("token-classification", ["B-X I-X", "O B-X"])],
)
def test_other_tasks_of_a_prepared_file_have_the_same_names(
    tmp_path: Path, task: str, labels: list[str]
) -> None:
    lines = [f"{labels[n % len(labels)]},text {n}\n" for n in range(60)]
    (tmp_path / "a.csv").write_text("label,text\n" + "".join(lines))
    first = run(
        source="csv", task=task, train_file=str(tmp_path / "a.csv"), out=str(tmp_path / "a")
    )
    train = first.folder / "train.tsv"
    again = run(source="csv", task=task, train_file=str(train), out=str(tmp_path / "b"))
    assert again.manifest["labels"] == first.manifest["labels"]
    assert again.manifest.get("label_format") == first.manifest.get("label_format")
    found = (read_tsv(again.folder / f"{split}.tsv") for split in ("train", "dev"))
    assert set().union(*map(pairs, found)) == pairs(read_tsv(train))


def test_missing_input_file_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.csv: there is no such file"):
        run(**options | {"train_file": str(tmp_path / "none.csv")})


def test_word_labels_with_long_empty_and_multi_line_texts(
    options: dict[str, Any], tmp_path: Path
) -> None:
    long = "x" * 1_000_000
    (tmp_path / "train.csv").write_text(f'label,text\n b ,"a\tb\nc"\n10,\n9,{long}\n10,e\n')
    result = run(**options | {"test_file": None})
    # Labels are sorted as strings, because "b" is not a number.
    assert result.manifest["labels"] == ["10", "9", "b"]
    train, dev = (read_tsv(result.folder / f"{name}.tsv") for name in ("train", "dev"))
    assert pairs(train) | pairs(dev) == {("2", "a b c"), ("0", ""), ("1", long), ("0", "e")}


def test_sample_vocabulary_is_learned_from_its_training_texts(tmp_path: Path) -> None:
    result = run(source="sample", out=str(tmp_path / "out"))
    assert "synthetic" in result.manifest["source"]
    assert result.manifest["labels"] == ["negative", "positive"]
    assert [counts["rows"] for counts in result.manifest["counts"].values()] == [3600, 400, 1000]
    vocabulary = (result.folder / "vocab.txt").read_bytes()
    assert vocabulary.decode().split("\n")[:-1] == words(
        read_tsv(result.folder / "train.tsv")["text"]
    )
    assert result.manifest["files"]["vocab.txt"] == hashlib.sha256(vocabulary).hexdigest()
    assert run(source="sample", out=str(tmp_path / "out")).unchanged


def test_default_output_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(source="sample").folder == Path("data/sample")
    assert (tmp_path / "data/sample/manifest.json").is_file()


def test_progress_ends_at_the_total(options: dict[str, Any]) -> None:
    seen: dict[str, tuple[int, int | None]] = {}
    prepare(PrepareConfig(**options), lambda *told: seen.update({told[0]: told[1:]}), words)
    assert seen["reading training texts"] == (300, 300)
    assert seen["writing train.tsv"] == (270, 270)


def test_pipes_are_read_as_files(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard input of a test may not be replaced, so `/dev/stdin` is a named pipe."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(own_files, "_DEVICE", str(tmp_path / "stdin"))
    expected = run(**options).manifest
    table = Path(options["train_file"]).read_bytes()
    options |= {"out": str(tmp_path / "piped"), "train_file": "-"}
    options["test_file"], test = str(tmp_path / "test"), Path(options["test_file"]).read_bytes()
    for path in (tmp_path / "stdin", tmp_path / "test"):
        os.mkfifo(path)

    def prepared(train: bytes) -> tuple[dict[str, Any], list[str]]:
        said: list[str] = []
        for name, data in (("stdin", train), ("test", test)):
            Thread(target=(tmp_path / name).write_bytes, args=(data,), daemon=True).start()
        config = PrepareConfig(**options, overwrite=True)
        return prepare(config, ignore, words, said.append).manifest, said

    manifest, said = prepared(table)
    assert manifest["files"] == expected["files"]
    assert manifest["options"]["train_file"] == "stdin"
    assert [line.split(":")[0] for line in said] == ["standard input", str(tmp_path / "test")]
    with pytest.raises(InputError, match=r"^standard input, row 302: has 1 column, but the first"):
        prepared(table + b"broken\n")
    assert not list(tmp_path.glob(".bertaccum-pipe*"))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("predict <&-", "no texts are given; pass texts as arguments"),
        ("predict --file - <&-", "no texts are given; pass texts as arguments"),
        ("prepare --train-file - <&-", "standard input: is closed; redirect a file or a pipe"),
        ("prepare --train-file - < /dev/null", "standard input: is empty; add at least one row"),
        ("prepare --train-file - --test-file - < a.csv", "are the same input, which can be read"),
        ("prepare --train-file fifo --test-file fifo", "are the same input, which can be read"),
    ],
)
def test_unusable_standard_input_is_named(tmp_path: Path, command: str, message: str) -> None:
    (tmp_path / "a.csv").write_text("label,text\npos,good\nneg,bad\n" * 9)
    os.mkfifo(tmp_path / "fifo")
    command = command.replace("prepare", "prepare --source csv --out out")
    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m bertaccum {command}",
        shell=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 2 and message in " ".join(done.stderr.split()), done.stderr
    assert not (tmp_path / "out").exists()
