"""Data sets of the Hugging Face Hub, read from a stand-in on the loopback interface."""

from __future__ import annotations

import gzip
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hub_client import HubClient

pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow, of the extra parquet")

from pyarrow import parquet  # noqa: E402

from data_prep.sources.hub_files import configurations, readable  # noqa: E402

NAMES = ["negative", "positive"]
CLASSES = {"names": NAMES, "_type": "ClassLabel"}


def table(features: dict[str, Any] | None = None, **columns: list[Any]) -> bytes:
    """Return a Parquet file, as datasets writes it if `features` are given."""
    rows = pyarrow.table(columns)
    if features is not None:
        about = json.dumps({"info": {"features": features}})
        rows = rows.replace_schema_metadata({"huggingface": about})
    file = io.BytesIO()
    parquet.write_table(rows, file)
    return file.getvalue()


def sst2(labels: list[int], name: str) -> bytes:
    features = {"idx": {"dtype": "int32", "_type": "Value"}, "label": CLASSES}
    texts = [f"{name} {number}" for number in range(len(labels))]
    return table(features, idx=list(range(len(labels))), sentence=texts, label=labels)


CARD = b"""---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: validation
    path: data/validation-*
  - split: test
    path: data/test-*
---
# A data set
"""
SST2 = {
    "README.md": CARD,
    "data/train-00000-of-00002.parquet": sst2([0, 1, 1, 0], "train"),
    "data/train-00001-of-00002.parquet": sst2([1, 0], "more"),
    "data/validation-00000-of-00001.parquet": sst2([1, 0, -1], "dev"),
    "data/test-00000-of-00001.parquet": sst2([-1, -1], "test"),
    "sst2.py": b"raise SystemExit('executed')",
}


def prepared(client: HubClient, *options: str, name: str = "stanfordnlp/sst2") -> tuple[str, Path]:
    """Prepare a data set; return what the program wrote to stderr, and the data folder."""
    arguments = ("prepare", "--source", "hub", "--dataset", name, "--out", "data", *options)
    done = client.program(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stderr, client.folder / "data"


def error(client: HubClient, *options: str, name: str = "stanfordnlp/sst2") -> str:
    done = client.program("prepare", "--source", "hub", "--dataset", name, *options)
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert "Traceback" not in done.stderr
    return lines[-1]


def rows(folder: Path, split: str) -> list[list[str]]:
    lines = (folder / f"{split}.tsv").read_text().splitlines()[1:]
    return sorted(line.split("\t") for line in lines)


def test_splits_and_class_names_of_a_data_set(client: HubClient) -> None:
    repository = client.hub.add("stanfordnlp/sst2", SST2, "dataset")
    told, folder = prepared(client)
    commit = repository.revisions["main"]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["labels"] == NAMES
    assert manifest["options"]["commit"] == commit
    assert f"stanfordnlp/sst2 of the Hugging Face Hub, commit {commit}" == manifest["source"]
    assert rows(folder, "train") == [
        *(["0", "more 1"], ["0", "train 0"], ["0", "train 3"]),
        *(["1", "more 0"], ["1", "train 1"], ["1", "train 2"]),
    ]
    assert rows(folder, "dev") == [["0", "dev 1"], ["1", "dev 0"]]
    assert not (folder / "test.tsv").exists()
    assert "stanfordnlp/sst2 test: has no labels, so it is not used" in told
    assert "stanfordnlp/sst2 validation: skipped 1 row without a label" in told
    assert commit in told
    assert "sst2.py" not in client.hub.fetched()


def test_branch_that_moved_is_another_input(client: HubClient) -> None:
    repository = client.hub.add("stanfordnlp/sst2", SST2, "dataset")
    first = repository.revisions["main"]
    prepared(client)
    repository.commit({**SST2, "new": b""})
    assert "`commit` was" in error(client, "--out", "data")
    _, folder = prepared(client, "--overwrite", name=f"stanfordnlp/sst2@{first}")
    assert json.loads((folder / "manifest.json").read_text())["options"]["commit"] == first


def test_downloaded_data_set_needs_no_network(client: HubClient) -> None:
    client.hub.add("stanfordnlp/sst2", SST2, "dataset")
    _, folder = prepared(client)
    before = (folder / "train.tsv").read_bytes()
    arguments = ("prepare", "--source", "hub", "--dataset", "stanfordnlp/sst2", "--out", "again")
    done = client.program(*arguments, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert client.hub.requests == []
    assert (client.folder / "again/train.tsv").read_bytes() == before


def test_configuration_is_chosen(client: HubClient) -> None:
    card = "configs:\n" + "".join(
        f"- config_name: {name}\n  data_files: {{train: {name}/train.jsonl, test: {name}/u*}}\n"
        for name in ("en", "de")
    )
    files = {"README.md": f"---\n{card}---\n".encode()}
    for name in ("en", "de"):
        lines = [json.dumps({"text": f"{name} {n}", "label": "ab"[n % 2]}) for n in range(6)]
        files[f"{name}/train.jsonl"] = files[f"{name}/u-x.jsonl"] = "\n".join(lines).encode()
    client.hub.add("owner/texts", files, "dataset")
    line = error(client, name="owner/texts")
    assert "several configurations; choose one with --dataset-config: en, de" in line
    line = error(client, "--dataset-config", "fr", name="owner/texts")
    assert "--dataset-config fr is no configuration of owner/texts; choose one of en, de" in line
    _, folder = prepared(client, "--dataset-config", "de", name="owner/texts")
    assert all(text.startswith("de ") for _, text in rows(folder, "train"))
    assert len(rows(folder, "test")) == 6
    assert all("en/" not in name for name in client.hub.fetched())


def test_files_without_a_card_are_found_by_name(client: HubClient) -> None:
    lines = "text,label\n" + "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(20))
    files = {"data/my_train.csv": lines.encode(), "data/validation.csv": lines.encode()}
    client.hub.add("owner/texts", files | {"dataset_infos.json": b"{}"}, "dataset")
    _, folder = prepared(client, name="owner/texts")
    assert (len(rows(folder, "train")), len(rows(folder, "dev"))) == (20, 20)


LINES = b"text,label\n" + b"".join(b"text %d,%c\n" % (n, b"ab"[n % 2]) for n in range(20))
OBJECTS = b"".join(b'{"text": "object %d", "label": "%c"}\n' % (n, b"ab"[n % 2]) for n in range(10))


def test_rows_that_are_there_in_several_formats_are_read_once(client: HubClient) -> None:
    files = {"train.csv": LINES, "train.jsonl": OBJECTS, "test.csv": LINES}
    client.hub.add("owner/texts", files, "dataset")
    told, folder = prepared(client, name="owner/texts")
    found = rows(folder, "train") + rows(folder, "dev")
    assert len(found) == 10 and all(text.startswith("object") for _, text in found)
    assert len(rows(folder, "test")) == 20
    assert "these files are not read: train.csv" in told
    assert "train.csv" not in client.hub.fetched()


def test_files_of_no_split_are_noted(client: HubClient) -> None:
    files = {"data/extra.csv": LINES, "train.tsv.gz": gzip.compress(LINES.replace(b",", b"\t"))}
    client.hub.add("owner/texts", files, "dataset")
    told, folder = prepared(client, name="owner/texts")
    assert len(rows(folder, "train") + rows(folder, "dev")) == 20
    assert "these files are not read: data/extra.csv" in told


def test_test_rows_may_lack_labels(client: HubClient) -> None:
    """Then the test set is held out of the training rows, if that is asked for."""
    texts = [f"text {n}" for n in range(20)]
    files = {"train.parquet": table(text=texts, label=["a", "b"] * 9 + ["a", None])}
    files["test.parquet"] = table(text=texts, label=pyarrow.nulls(20, pyarrow.string()))
    client.hub.add("owner/texts", files, "dataset")
    told, folder = prepared(client, "--test-fraction", "0.2", name="owner/texts")
    assert "owner/texts test: has no labels, so it is not used" in told
    assert "owner/texts train: skipped 1 row without a label" in told
    assert len(rows(folder, "test")) in (3, 4)
    files["test.parquet"] = table(text=texts, label=["a", "b"] * 10)
    client.hub.add("owner/more", files, "dataset")
    line = error(client, "--overwrite", "--test-fraction", "0.2", name="owner/more")
    assert "cannot be used with owner/more, which already has test rows" in line


def test_dev_rows_need_no_weights_but_the_other_columns(client: HubClient) -> None:
    lines = b"text,label,w\n" + b"".join(b"text %d,%c,2\n" % (n, b"ab"[n % 2]) for n in range(20))
    files = {"train.csv": lines, "validation.csv": LINES}
    client.hub.add("owner/weighted", files, "dataset")
    _, folder = prepared(client, "--weight-column", "w", name="owner/weighted")
    assert (len(rows(folder, "train")), len(rows(folder, "dev"))) == (20, 20)
    files["train.csv"] = LINES.replace(b"text,", b"body,")
    client.hub.add("owner/other", files, "dataset")
    line = error(client, "--text-column", "body", "--overwrite", name="owner/other")
    assert "the column 'body' of --text-column does not occur" in line


def test_columns_may_be_numbers(client: HubClient) -> None:
    columns = ("--text-column", "1", "--label-column", "2")
    train = table({"label": CLASSES}, text=[f"text {n}" for n in range(12)], label=[0, 1, -1] * 4)
    client.hub.add("owner/numbers", {"train.parquet": train}, "dataset")
    told, folder = prepared(client, *columns, name="owner/numbers")
    assert json.loads((folder / "manifest.json").read_text())["labels"] == NAMES
    assert "owner/numbers train: skipped 4 rows without a label" in told


@pytest.mark.parametrize(
    ("configs", "names", "found"),
    [
        (
            [{"config_name": "en", "data_dir": "en/"}, {"config_name": "de", "data_dir": "de"}],
            ["de/train.csv", "en/train.csv", "en/dev.csv"],
            {
                "en": {"validation": ["en/dev.csv"], "train": ["en/train.csv"]},
                "de": {"train": ["de/train.csv"]},
            },
        ),
        # A star matches no slash, but two do.
        ([{"data_files": "*.csv"}], ["a.csv", "b/c.csv"], {"default": {"train": ["a.csv"]}}),
        (
            [{"data_files": "./**/*.csv"}],
            ["a.csv", "b/c.csv"],
            {"default": {"train": ["a.csv", "b/c.csv"]}},
        ),
        # Other files do not replace those that a card describes.
        ([{"data_files": "*.arrow"}], ["about.csv"], {}),
        ([{"config_name": "x"}], ["train.csv"], {"x": {"train": ["train.csv"]}}),
        # Shards have the names of their splits.
        (
            [],
            ["data/a_test-00000-of-00001.parquet", "data/test-00000-of-00001-0a.csv", "train.csv"],
            {
                "default": {
                    "a_test": ["data/a_test-00000-of-00001.parquet"],
                    "test": ["data/test-00000-of-00001-0a.csv"],
                }
            },
        ),
        (
            [],
            ["train/test_cases.csv", "eval/a.csv", "b.csv"],
            {"default": {"test": ["eval/a.csv"], "train": ["train/test_cases.csv"]}},
        ),
        ([], ["a.csv", "b.csv"], {"default": {"train": ["a.csv", "b.csv"]}}),
    ],
)
def test_files_of_splits(configs: Any, names: list[str], found: Any) -> None:
    assert configurations({"configs": configs}, names) == found


def test_which_files_are_tables() -> None:
    names = ["a.CSV", "a.tsv.gz", "a.json.zip", "a.ndjson", "b.parquet"]
    others = ["b.parquet.gz", "c.txt", "c.gz", "dataset_infos.json", "x/state.json", "csv"]
    assert readable(names + others) == names


def test_splits_that_are_not_read_are_noted(client: HubClient) -> None:
    lines = "text,label\n" + "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(20))
    card = "data_files: {train: a.csv, unsupervised: b.csv}"
    card = f"---\nconfigs: [{{config_name: default, {card}}}]\n---\n"
    files = {"README.md": card.encode(), "a.csv": lines.encode(), "b.csv": lines.encode()}
    client.hub.add("owner/texts", files, "dataset")
    told, _ = prepared(client, name="owner/texts")
    assert "owner/texts: these splits are not read: unsupervised" in told


def test_converted_files_are_used_where_a_repository_has_code(client: HubClient) -> None:
    repository = client.hub.add("owner/code", {"code.py": b"raise SystemExit"}, "dataset")
    converted = {
        "default/train/0000.parquet": sst2([0, 1, 0, 1] * 5, "train"),
        "default/validation/0000.parquet": sst2([0, 1], "dev"),
    }
    assert "has no Parquet, CSV or JSON Lines files of a split, only code.py" in error(
        client, name="owner/code"
    )
    repository.commit(converted, "refs/convert/parquet")
    _, folder = prepared(client, name="owner/code")
    assert (len(rows(folder, "train")), len(rows(folder, "dev"))) == (20, 2)


def test_lists_of_classes_and_scores(client: HubClient) -> None:
    emotions = {"labels": {"feature": {**CLASSES, "names": ["a", "b", "c"]}, "_type": "List"}}
    texts = [f"text {n}" for n in range(12)]
    lists = [[0], [1, 2], [], [2]] * 3
    files = {"train.parquet": table(emotions, text=texts, labels=lists)}
    client.hub.add("owner/emotions", files, "dataset")
    _, folder = prepared(client, name="owner/emotions")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["task"], manifest["labels"]) == ("multi-label", ["a", "b", "c"])
    found = {text: label for part in ("train", "dev") for label, text in rows(folder, part)}
    assert [found[f"text {n}"] for n in range(4)] == ["0", "1|2", "|", "2"]

    stsb = {"label": {"dtype": "float32", "_type": "Value"}}
    numbers = [n / 2 for n in range(12)]
    train = table(stsb, sentence1=texts, sentence2=texts, label=numbers)
    test = table(stsb, sentence1=texts, sentence2=texts, label=[-1.0] * 12)
    client.hub.add("owner/stsb", {"train.parquet": train, "test.parquet": test}, "dataset")
    told, folder = prepared(client, "--overwrite", name="owner/stsb")
    assert json.loads((folder / "manifest.json").read_text())["task"] == "regression"
    assert "owner/stsb test: has no labels" in told


def test_number_below_0_is_a_class_unless_classes_have_names(client: HubClient) -> None:
    texts, labels = [f"text {n}" for n in range(12)], [-1, 0, 1] * 4
    files = {"train.parquet": table(text=texts, label=labels)}
    files["test.parquet"] = table(text=texts, label=[-1] * 12)
    client.hub.add("owner/polarity", files, "dataset")
    told, folder = prepared(client, name="owner/polarity")
    assert json.loads((folder / "manifest.json").read_text())["labels"] == ["-1", "0", "1"]
    assert len(rows(folder, "train") + rows(folder, "dev")) == 12
    assert "owner/polarity test: has no labels" in told


def test_classes_may_be_named_by_other_numbers(client: HubClient) -> None:
    """The classes of Yelp Polarity on the Hub, 0 and 1, are named 1 and 2."""
    texts, labels = [f"text {n}" for n in range(12)], [0, 1] * 6
    features = {"label": CLASSES | {"names": ["1", "2"]}}
    files = {"train.parquet": table(features, text=texts, label=labels)}
    client.hub.add("owner/yelp", files, "dataset")
    _, folder = prepared(client, name="owner/yelp")
    assert json.loads((folder / "manifest.json").read_text())["labels"] == ["1", "2"]
    found = dict(reversed(pair) for part in ("train", "dev") for pair in rows(folder, part))
    assert [found[f"text {n}"] for n in range(4)] == ["0", "1", "0", "1"]
    # In a CSV file, 1 may be a name or a number.
    card = "dataset_info: {features: [{name: text, dtype: string}, {name: label, dtype:"
    card += " {class_label: {names: {'0': '1', '1': '2'}}}}]}"
    lines = "text,label\n" + "".join(f"text {n},{n % 2}\n" for n in range(12))
    files = {"README.md": f"---\n{card}\n---\n".encode(), "train.csv": lines.encode()}
    client.hub.add("owner/csv", files, "dataset")
    assert "the label 1 may be the name of a class or its number" in error(client, name="owner/csv")


def test_lists_of_classes_in_csv_are_those_of_pandas(client: HubClient) -> None:
    card = "dataset_info: {features: [{name: text, dtype: string}, {name: labels, sequence:"
    card += " {class_label: {names: {'0': x, '1': y}}}}]}"
    cells = ["['x', 'y']", "[0]", "[]", "['y' 'x']"] * 4
    lines = "text,labels\n" + "".join(f'text {n},"{cell}"\n' for n, cell in enumerate(cells))
    files = {"README.md": f"---\n{card}\n---\n".encode(), "train.csv": lines.encode()}
    client.hub.add("owner/lists", files, "dataset")
    _, folder = prepared(client, name="owner/lists")
    found = dict(reversed(pair) for part in ("train", "dev") for pair in rows(folder, part))
    assert [found[f"text {n}"] for n in range(4)] == ["0|1", "0", "|", "0|1"]


def test_other_kinds_of_labels(client: HubClient) -> None:
    texts, lists = [f"text {n}" for n in range(12)], [["a"], ["b", "a|c"], []] * 4
    strings = {"labels": {"feature": {"dtype": "string", "_type": "Value"}, "_type": "Sequence"}}
    files = {"train.parquet": table(strings, text=texts, labels=lists)}
    client.hub.add("owner/strings", files, "dataset")
    _, folder = prepared(client, name="owner/strings")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["task"], manifest["labels"]) == ("multi-label", ["a", "a|c", "b"])

    flags = {"toxic": CLASSES, "insult": CLASSES}
    files = {"train.parquet": table(flags, text=texts, toxic=[0, 1] * 6, insult=[1] * 12)}
    client.hub.add("owner/flags", files, "dataset")
    columns = ("--overwrite", "--label-columns", "toxic,insult")
    _, folder = prepared(client, *columns, name="owner/flags")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["task"], manifest["labels"]) == ("multi-label", ["insult", "toxic"])
    columns = ("--overwrite", "--label-column", "toxic", "--task", "regression")
    _, folder = prepared(client, *columns, name="owner/flags")
    assert {label for label, _ in rows(folder, "train")} == {"0.0", "1.0"}
    _, folder = prepared(client, "--overwrite", "--label-column", "toxic", name="owner/flags")
    assert json.loads((folder / "manifest.json").read_text())["labels"] == NAMES


def test_class_names_of_a_card(client: HubClient) -> None:
    card = """---
dataset_info:
  features:
  - name: text
    dtype: string
  - name: label
    dtype:
      class_label:
        names:
          '0': World
          '1': Sports
---
"""
    lines = "text,label\n" + "".join(f"text {n},{n % 2}\n" for n in range(20))
    files = {"README.md": card.encode(), "train.csv": lines.encode()}
    client.hub.add("owner/news", files, "dataset")
    _, folder = prepared(client, name="owner/news")
    assert json.loads((folder / "manifest.json").read_text())["labels"] == ["World", "Sports"]


@pytest.mark.parametrize(
    ("files", "name", "line"),
    [
        ({}, "sst2", "--dataset sst2 is no name of a data set .*; pass OWNER/NAME"),
        ({}, "owner/absent", "owner/absent: 127.0.0.1:[0-9]+ has no such data set; check the name"),
        ({"test.csv": b"text,label\na,b\n"}, "owner/texts", "has no split train, only test"),
        (
            {"train.parquet": table(first=["x"], second=["y"], third=[1])},
            "owner/texts",
            "which is: first, second, third; name another one with --text-column",
        ),
        (
            {"train.parquet": sst2([0, 7], "train")},
            "owner/texts",
            "owner/texts train, row 2: the label '7' is no class from 0 to 1",
        ),
        ({"README.md": b"---\n- [\n---\n", "train.csv": b"a"}, "owner/texts", "its YAML cannot be"),
        ({"../train.csv": b"a,b\n", "x.py": b""}, "owner/texts", "no Parquet, .*, only x.py"),
    ],
)
def test_unusable_data_sets_give_one_line(
    client: HubClient, files: dict[str, bytes], name: str, line: str
) -> None:
    if files:
        client.hub.add("owner/texts", files, "dataset")
    assert re.search(line, error(client, name=name))


def test_tags_of_words_have_the_names_of_the_metadata(client: HubClient) -> None:
    names = {"names": ["O", "B-PER", "B-LOC"], "_type": "ClassLabel"}
    features = {"ner_tags": {"feature": names, "_type": "Sequence"}}
    sentences = [[f"Ada{n}", "in", "Rome"] for n in range(6)]
    train = table(features, tokens=sentences, ner_tags=[[1, 0, 2]] * 6)
    dev = table(features, tokens=[["in", "Oslo"]], ner_tags=[[0, 2]])
    files = {"data/train-0.parquet": train, "data/validation-0.parquet": dev}
    client.hub.add("eriktks/conll", files, "dataset")
    words = ("--task", "token-classification", "--overwrite")
    _, folder = prepared(client, *words, name="eriktks/conll")
    assert rows(folder, "dev") == [["0 2", "in Oslo"]]
    assert json.loads((folder / "manifest.json").read_text())["labels"] == names["names"]
    # The class of a sentence does not name the tags of its words.
    of_sentence = features | {"label": {"names": ["x", "y", "z"], "_type": "ClassLabel"}}
    both = table(of_sentence, tokens=sentences, ner_tags=[[1, 0, 2]] * 6, label=[0] * 6)
    client.hub.add("owner/both", {"train.parquet": both}, "dataset")
    _, folder = prepared(client, *words, name="owner/both")
    assert json.loads((folder / "manifest.json").read_text())["labels"] == names["names"]
    given = (*words, "--tag-names", "O,B-A,B-B")
    _, folder = prepared(client, *given, name="owner/both")
    assert json.loads((folder / "manifest.json").read_text())["labels"] == ["O", "B-A", "B-B"]


@pytest.mark.parametrize("tags", [[[-1, -1]], [None]])
def test_test_sentences_may_lack_tags(client: HubClient, tags: list[Any]) -> None:
    names = {"names": ["O", "B-PER "], "_type": "ClassLabel"}
    features = {"ner_tags": {"feature": names, "_type": "Sequence"}}
    train = table(features, tokens=[[f"Ada{n}", "in"] for n in range(20)], ner_tags=[[1, 0]] * 20)
    test = table(features, tokens=[["in", "Oslo"]], ner_tags=tags)
    files = {"data/train-0.parquet": train, "data/test-0.parquet": test}
    client.hub.add("owner/words", files, "dataset")
    told, folder = prepared(client, "--task", "token-classification", name="owner/words")
    assert "owner/words test: has no labels, so it is not used" in told
    assert not (folder / "test.tsv").exists()
    assert json.loads((folder / "manifest.json").read_text())["labels"] == ["O", "B-PER"]


def test_number_of_a_csv_column_counts_those_of_the_file(client: HubClient) -> None:
    card = b"---\ndataset_info:\n  features:\n  - name: label\n    dtype: string\n"
    card += b"  - name: text\n    dtype: string\n---\n"
    lines = b"text,label\n" + b"".join(b"text %d,%c\n" % (n, b"ab"[n % 2]) for n in range(20))
    client.hub.add("owner/order", {"README.md": card, "train.csv": lines}, "dataset")
    numbers = ("--text-column", "1", "--label-column", "2")
    _, folder = prepared(client, *numbers, name="owner/order")
    assert json.loads((folder / "manifest.json").read_text())["labels"] == ["a", "b"]
