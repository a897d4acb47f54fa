"""Folders of GLUE and XNLI in miniature: files, columns, classes, splits and errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from preparing import ignore, run, words

from bertaccum.errors import BertAccumError, ConfigError
from bertaccum.options.prepare import PrepareConfig
from data_prep.preparation import PrepareResult, prepare
from data_prep.tables.tsv import default_split, read_tsv

Lines = list[Sequence[object]]


def write(path: Path, *lines: Sequence[object], mark: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join("\t".join(map(str, line)) + "\n" for line in lines)
    path.write_text(mark + text, encoding="utf-8", newline="")


@pytest.fixture
def prepared(tmp_path: Path) -> Callable[..., PrepareResult]:
    """Return a function that prepares a data set from the folder `glue`."""

    def prepare(dataset: str, folder: str = "glue", **options: Any) -> PrepareResult:
        given = {"out": str(tmp_path / "out"), "folder": str(tmp_path / folder)} | options
        return run(source="glue", dataset=dataset, **given)

    return prepare


def pairs_of(result: PrepareResult, split: str) -> list[tuple[str, ...]]:
    """Return the label, if any, and the texts of each row of a split."""
    table = read_tsv(result.folder / f"{split}.tsv").drop(columns="row")
    return [tuple(row) for row in table.itertuples(index=False)]


def write_pairs(folder: Path, header: str, label: str, rows: Lines, test_header: str) -> None:
    """Write training, dev and test files whose last two or three columns are the given cells."""
    names = [*header.split(), label]
    blank = [""] * (len(names) - 3)
    for split in ("train", "dev"):
        lines = [[*blank, f"{split} {a}", b, c] for a, b, c in rows]
        write(folder / f"{split}.tsv", names, *lines)
    less = test_header.split()
    lines = [[n, *[""] * (len(less) - 3), f"test {a}", b] for n, (a, b, _) in enumerate(rows)]
    write(folder / "test.tsv", less, *lines)


SCORED = "index genre filename year old_index source1 source2 sentence1 sentence2"
PARSES = "sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"


@pytest.mark.parametrize(
    ("name", "folder", "header", "label", "test_header", "labels"),
    [
        ("qnli", "QNLI", "index question sentence", "label", "index question sentence",
         ["entailment", "not_entailment"]),
        ("RTE", "RTE", "index sentence1 sentence2", "label", "index sentence1 sentence2",
         ["entailment", "not_entailment"]),
        ("wnli", "WNLI", "index sentence1 sentence2", "label", "index sentence1 sentence2",
         ["0", "1"]),
        ("qqp", "QQP", "id qid1 qid2 question1 question2", "is_duplicate",
         "id question1 question2", ["0", "1"]),
    ],
)  # fmt: skip
def test_pairs_with_classes(
    prepared: Any, tmp_path: Path, name: str, folder: str, header: str, label: str,
    test_header: str, labels: list[str],
) -> None:  # fmt: skip
    # Quotes are ordinary characters, also an opening quote without a closing one.
    rows = [('a "boat"', '"no boat', labels[1]), ("a dog", "a cat", labels[0])] * 2
    write_pairs(tmp_path / "glue" / folder, header, label, rows, test_header)
    result = prepared(name)
    expected = [(str(labels.index(c)), f"train {a}", b) for a, b, c in rows]
    assert sorted(pairs_of(result, "train")) == sorted(expected)
    # The order of dev and test rows is that of GLUE.
    assert pairs_of(result, "dev") == [(n, a.replace("train", "dev"), b) for n, a, b in expected]
    assert pairs_of(result, "test") == [(f"test {a}", b) for a, b, _ in rows]
    manifest = result.manifest
    assert (manifest["task"], manifest["labels"]) == ("classification", labels)
    assert manifest["glue"] == {
        "dataset": folder,
        "submission": {"test": f"{folder}.tsv"},
        "labels": labels,
    }
    assert manifest["counts"]["test"] == {"rows": 4}
    assert manifest["counts"]["dev"]["classes"] == dict.fromkeys(labels, 2)
    assert default_split(result.folder) == "dev"


def test_scores_of_sts_b(prepared: Any, tmp_path: Path) -> None:
    rows: Lines = [("a", "b", "0.000"), ("c", "d", "5.000"), ("e", "f", "3.250")]
    write_pairs(tmp_path / "glue/STS-B", SCORED, "score", rows, SCORED)
    result = prepared("stsb")
    assert pairs_of(result, "dev") == [
        ("0.0", "dev a", "b"),
        ("5.0", "dev c", "d"),
        ("3.25", "dev e", "f"),
    ]
    manifest = result.manifest
    assert (manifest["task"], manifest["labels"]) == ("regression", [])
    assert manifest["glue"]["submission"] == {"test": "STS-B.tsv"}
    assert manifest["glue"]["labels"] == []
    (tmp_path / "glue/STS-B/dev.tsv").unlink()
    rows[2] = ("e", "f", "high")
    write_pairs(tmp_path / "glue/STS-B", SCORED, "score", rows, SCORED)
    check_refused("train.tsv, row 4: the label 'high' is not a finite", prepared, "STS-B", "new")


def check_refused(message: str, prepared: Any, name: str, out: str, **options: Any) -> None:
    """Check that a data set gives one line of error, and that nothing is written."""
    with pytest.raises(BertAccumError, match=message) as caught:
        prepared(name, out=out, **options)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)
    assert not Path(out).exists()


def write_mnli(folder: Path) -> None:
    start = f"index promptID pairID genre {PARSES} sentence1 sentence2".split()
    for name, columns in (
        ("train", ["label1"]),
        *(
            (f"dev_{kind}", [f"label{n}" for n in range(1, 6)])
            for kind in ("matched", "mismatched")
        ),
        *((f"test_{kind}", []) for kind in ("matched", "mismatched")),
    ):
        gold = [] if name.startswith("test") else ["gold_label"]
        lines = [
            [
                n,
                *["x"] * 7,
                f"{name} {n}",
                f"then {n}",
                *["neutral"] * len(columns),
                *[label][: len(gold)],
            ]
            for n, label in enumerate(["neutral", "entailment", "contradiction", "entailment"])
        ]
        write(folder / f"{name}.tsv", [*start, *columns, *gold], *lines)


def test_mnli_has_two_dev_and_two_test_sets(prepared: Any, tmp_path: Path) -> None:
    write_mnli(tmp_path / "glue/MNLI")
    result = prepared("MNLI", folder="glue/MNLI")
    assert result.manifest["labels"] == ["contradiction", "entailment", "neutral"]
    splits = ["train", "dev", "test", "dev-mismatched", "test-mismatched"]
    assert list(result.manifest["counts"]) == splits
    assert set(result.manifest["files"]) == {f"{split}.tsv" for split in splits}
    for split, name in (("dev", "dev_matched"), ("dev-mismatched", "dev_mismatched")):
        expected = [(label, f"{name} {n}", f"then {n}") for n, label in enumerate("2101")]
        assert pairs_of(result, split) == expected
    assert pairs_of(result, "test-mismatched")[3] == ("test_mismatched 3", "then 3")
    assert result.manifest["glue"]["submission"] == {
        "test": "MNLI-m.tsv",
        "test-mismatched": "MNLI-mm.tsv",
    }
    assert default_split(result.folder) == "dev"


def test_class_without_training_rows_keeps_its_number(prepared: Any, tmp_path: Path) -> None:
    write_xnli(tmp_path / "glue")
    train = tmp_path / "glue/XNLI-MT-1.0/multinli/multinli.train.en.tsv"
    lines = [("a", "b", "neutral"), ("c", "d", "contradictory")]
    write(train, ("premise", "hypo", "label"), *lines)
    result = prepared("xnli")
    assert result.manifest["labels"] == ["contradiction", "entailment", "neutral"]
    assert sorted(pairs_of(result, "train")) == [("0", "c", "d"), ("2", "a", "b")]


@pytest.mark.parametrize("folder", ["glue", "glue/CoLA"])
def test_cola_and_sst_2_are_single_texts(prepared: Any, tmp_path: Path, folder: str) -> None:
    for split in ("train", "dev"):
        lines = [("gj04", n % 2, "*" * (n % 2), f"{split} {n}") for n in range(4)]
        write(tmp_path / f"glue/CoLA/{split}.tsv", *lines)
        lines = [(f"{split} {n} ", n % 2) for n in range(4)]
        write(tmp_path / f"glue/SST-2/{split}.tsv", ("sentence", "label"), *lines)
    for name in ("CoLA", "SST-2"):
        write(tmp_path / f"glue/{name}/test.tsv", ("index", "sentence"), (0, "t 0"), (1, "t 1"))
    result = prepared("cola", folder=folder)
    assert pairs_of(result, "dev") == [(str(n % 2), f"dev {n}") for n in range(4)]
    assert pairs_of(result, "test") == [("t 0",), ("t 1",)]
    result = prepared("sst2", folder="glue", overwrite=True)
    assert pairs_of(result, "dev") == [(str(n % 2), f"dev {n} ") for n in range(4)]
    assert result.manifest["glue"]["dataset"] == "SST-2"
    result = prepared("sst-2", overwrite=True, layout="cola")
    assert (result.folder / "test.tsv").read_text() == "index\tsentence\n0\tt 0\n1\tt 1\n"


def test_corpus_of_cola_has_the_rows_of_glue(prepared: Any, shared: Path) -> None:
    result = prepared("CoLA", folder=str(shared / "data/cola"))
    assert {split: counts["rows"] for split, counts in result.manifest["counts"].items()} == {
        "train": 8551,
        "dev": 1043,
    }


QUALITY = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")


def write_microsoft(folder: Path) -> None:
    lines = [(n % 2, 10 + n, 20 + n, f"one {n}", f'"two {n}') for n in range(10)]
    write(folder / "msr_paraphrase_train.txt", QUALITY, *lines, mark="\ufeff")
    lines = [(1, 30 + n, 40 + n, f"test {n}", f"other {n}") for n in range(3)]
    write(folder / "msr_paraphrase_test.txt", QUALITY, *lines, mark="\ufeff")


@pytest.mark.parametrize("ids", ["dev_ids.tsv", "mrpc_dev_ids.tsv"])
def test_mrpc_of_microsoft_with_the_dev_ids(prepared: Any, tmp_path: Path, ids: str) -> None:
    write_microsoft(tmp_path / "glue/MRPC")
    # The second line has the identifiers of two different pairs.
    write(tmp_path / "glue/MRPC" / ids, (13, 23), (11, 22), (18, 28))
    result = prepared("mrpc")
    assert pairs_of(result, "dev") == [("1", "one 3", '"two 3'), ("0", "one 8", '"two 8')]
    assert len(pairs_of(result, "train")) == 8
    assert pairs_of(result, "test") == [(f"test {n}", f"other {n}") for n in range(3)]
    (tmp_path / "glue/MRPC" / ids).write_text("13\t23\n")
    with pytest.raises(ConfigError, match=f"the contents of `{ids}` differ"):
        prepared("mrpc")


def test_mrpc_of_microsoft_without_the_dev_ids(prepared: Any, tmp_path: Path) -> None:
    write_microsoft(tmp_path / "glue/MRPC")
    result = prepared("mrpc", dev_fraction=0.2)
    assert [counts["rows"] for counts in result.manifest["counts"].values()] == [8, 2, 3]


def test_mrpc_of_glue(prepared: Any, tmp_path: Path) -> None:
    for split in ("train", "dev"):
        lines = [(n % 2, n, n, f"{split} {n}", f"two {n}") for n in range(4)]
        write(tmp_path / f"glue/mrpc/{split}.tsv", QUALITY, *lines)
    write(tmp_path / "glue/mrpc/test.tsv", ("index", *QUALITY[1:]), (0, 1, 2, "t", "u"))
    with pytest.raises(ConfigError, match=r"`dev_fraction` 0.2 cannot be used with MRPC, which al"):
        prepared("MRPC", dev_fraction=0.2)
    result = prepared("MRPC")
    assert pairs_of(result, "dev") == [(str(n % 2), f"dev {n}", f"two {n}") for n in range(4)]
    assert pairs_of(result, "test") == [("t", "u")]


def write_xnli(folder: Path, dev: str = "XNLI-1.0", train: str = "XNLI-MT-1.0") -> None:
    header = f"language gold_label {PARSES} sentence1 sentence2 promptID".split()
    for split in ("dev", "test"):
        lines = [
            (language, label, *"wxyz", f"{split} {language} {n}", f"then {n}", n)
            for n, label in enumerate(["neutral", "contradiction", "entailment"])
            for language in ("de", "en")
        ]
        write(folder / dev / f"xnli.{split}.tsv", header, *lines)
    for language in ("de", "en"):
        labels = ["contradictory", "neutral", "entailment"]
        lines = [(f"{language} {n}", "then", label) for n, label in enumerate(labels)]
        name = f"multinli/multinli.train.{language}.tsv"
        write(folder / train / name, ("premise", "hypo", "label"), *lines)


@pytest.mark.parametrize("folders", [("XNLI-1.0", "XNLI-MT-1.0"), ("", "")])
def test_xnli_in_one_language(prepared: Any, tmp_path: Path, folders: tuple[str, str]) -> None:
    write_xnli(tmp_path / "glue", *folders)
    result = prepared("xnli", language="de")
    assert sorted(pairs_of(result, "train")) == [
        ("0", "de 0", "then"),
        ("1", "de 2", "then"),
        ("2", "de 1", "then"),
    ]
    assert pairs_of(result, "dev") == [(c, f"dev de {n}", f"then {n}") for n, c in enumerate("201")]
    assert default_split(result.folder) == "test" and "glue" not in result.manifest
    with pytest.raises(ConfigError, match="`language` was 'de', is now 'en'"):
        prepared("xnli")
    assert len(pairs_of(prepared("xnli", overwrite=True), "test")) == 3


def test_broken_rows_of_qqp_are_skipped_but_not_in_the_test_set(
    prepared: Any, tmp_path: Path
) -> None:
    rows: Lines = [("a", "b", 0), ("c", "d", 1)]
    header = "id qid1 qid2 question1 question2"
    write_pairs(tmp_path / "glue/QQP", header, "is_duplicate", rows, "id question1 question2")
    with (tmp_path / "glue/QQP/train.tsv").open("a") as file:
        # A question with a line break, and one that is missing.
        file.write("7\t8\t9\tWhy\nnot?\tso\t0\n7\t8\t9\twhy?\t\t1\n")
    said: list[str] = []
    options = {"folder": str(tmp_path / "glue"), "out": str(tmp_path / "out")}
    result = prepare(
        PrepareConfig(source="glue", dataset="qqp", **options), ignore, words, said.append
    )
    assert len(pairs_of(result, "train")) == 2
    path = tmp_path / "glue/QQP/train.tsv"
    assert said == [
        f"{path}: skipped 3 rows with missing columns (first: row 4), as GLUE's baselines do"
    ]
    with (tmp_path / "glue/QQP/test.tsv").open("a") as file:
        file.write("2\twhy\n")
    new = str(tmp_path / "new")
    check_refused("test.tsv, row 4: has 2 columns, but should have 3", prepared, "qqp", new)


def test_empty_second_texts_are_kept(prepared: Any, tmp_path: Path) -> None:
    """The rows of a submission are counted, so a test row without a second text must stay."""
    rows: Lines = [("a", "", 0), ("c", "d", 1)]
    header = "index sentence1 sentence2"
    write_pairs(tmp_path / "glue/WNLI", header, "label", rows, header)
    result = prepared("wnli")
    assert pairs_of(result, "test") == [("test a", ""), ("test c", "d")]
    assert pairs_of(result, "dev") == [("0", "dev a", ""), ("1", "dev c", "d")]


def test_published_splits_are_kept_unless_duplicates_are_dropped(
    prepared: Any, tmp_path: Path
) -> None:
    header = ["index", "sentence1", "sentence2"]
    rows = [(n, f"a {n}", "b", n % 2) for n in range(6)]
    write(tmp_path / "glue/WNLI/train.tsv", [*header, "label"], *rows, rows[5])
    write(tmp_path / "glue/WNLI/dev.tsv", [*header, "label"], *rows[:2])
    write(tmp_path / "glue/WNLI/test.tsv", header, rows[2][:3])
    result = prepared("wnli")
    assert len(pairs_of(result, "train")) == 7
    found = result.manifest["findings"]
    assert (found["also_in_dev"]["rows"], found["also_in_test"]["rows"]) == (2, 1)
    assert result.manifest["options"]["drop_duplicates"] is False
    result = prepared("wnli", drop_duplicates=True, overwrite=True)
    assert sorted(text for _, text, _ in pairs_of(result, "train")) == ["a 3", "a 4", "a 5"]


def test_unusable_folders_give_one_line(prepared: Any, tmp_path: Path) -> None:
    rows: Lines = [("a", "b", "entailment"), ("c", "d", "not_entailment")]
    header = "index sentence1 sentence2"
    folder = tmp_path / "glue/RTE"
    write_pairs(folder, header, "label", rows, header)
    write_xnli(tmp_path / "glue")
    new = str(tmp_path / "new")
    for name, options, message in (
        ("cola2", {}, "`dataset` cola2 is unknown; choose one of cola, sst-2, mrpc, qqp, sts-b"),
        ("rte", {"folder": "none"}, "none: there is no such folder; check `folder`"),
        ("rte", {"language": "de"}, "`language` cannot be used with `dataset` RTE"),
        (
            "mnli",
            {},
            r"glue/train.tsv: there is no such file; download MNLI from gluebenchmark.com",
        ),
        ("qnli", {"folder": "glue/RTE"}, "train.tsv: has no column 'question'; its first row is"),
        (
            "wnli",
            {"folder": "glue/RTE"},
            "train.tsv, row 2: the label 'entailment' is not one of 0",
        ),
        ("xnli", {"language": "zh"}, "multinli.train.zh.tsv: there is no such file; download XNLI"),
    ):
        check_refused(message, prepared, name, new, **options)
    header_line = ("premise", "hypo", "label")
    name = "XNLI-MT-1.0/multinli/multinli.train.zh.tsv"
    write(tmp_path / "glue" / name, header_line, ("a", "b", "neutral"), ("a", "c", "entailment"))
    message = "xnli.dev.tsv: has no rows in the `language` 'zh'; choose one of de, en"
    check_refused(message, prepared, "xnli", new, language="zh")
    with (folder / "train.tsv").open("a") as file:
        file.write("3\te\tentailment\n")
    message = r"RTE/train.tsv, row 4: has 3 columns, but should have 4; download the data set again"
    check_refused(message, prepared, "rte", new)
    (folder / "dev.tsv").unlink()
    message = "RTE/dev.tsv: there is no such file; download RTE from gluebenchmark.com and pass"
    check_refused(message, prepared, "rte", new)


def test_options_that_do_not_suit_the_source_are_refused() -> None:
    for options, message in (
        ({"source": "glue", "folder": "x"}, "`source` glue needs `dataset`"),
        ({"source": "glue", "dataset": "mrpc"}, "`source` glue needs `folder`"),
        (
            {"dataset": "mrpc"},
            "`dataset` cannot be used with `source` yelp; set `source` to glue or",
        ),
        ({"source": "sample", "folder": "x"}, "`folder` cannot be used with `source` sample"),
        (
            {"source": "glue", "dataset": "a", "folder": "b", "task": "regression"},
            "`task` cannot be used with `source` glue",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            PrepareConfig(**options)
    assert PrepareConfig(source="glue", dataset="SST-2", folder="x").data_folder == "data/sst-2"
    assert PrepareConfig(source="tfds", dataset="glue/mrpc").data_folder == "data/glue_mrpc"
