"""Token stores are created once per input and refuse rows without a known label."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from full_disk import full_disk
from small import DAMAGES, Notes

from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.data import tokenizing
from bertaccum.data.token_store import TokenStore, save_array, store_digest, unlabelled_digest
from bertaccum.data.tokenizing import open_store, open_unlabelled, store_of, store_of_table
from bertaccum.data.truncation import Truncation
from bertaccum.errors import ConfigError, InputError
from bertaccum.options.prepare import PrepareConfig
from bertaccum.options.task_names import TOKEN_CLASSIFICATION
from bertaccum.system.cache import DIGESTS
from bertaccum.system.files import sha256
from bertaccum.system.progress import silent
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.prepared_labels import read_labels
from data_prep.preparation import prepare
from data_prep.tables.manifest import original_of
from data_prep.tables.rows import clean
from data_prep.tables.tsv import read_tsv

WORDS = [*SPECIAL_TOKENS, "good", "bad", "food"]
LABELS = Labels(["0", "1"], ["negative", "positive"])


def write(path: Path, *rows: str) -> Path:
    path.write_text("label\ttext\n" + "".join(row + "\n" for row in rows))
    return path


def open_tsv(tsv: Path, reports: list[str] | None = None, length: int = 8) -> TokenStore:
    def progress(what: str, done: int, total: int | None) -> None:
        if reports is not None:
            reports.append(what)

    return open_store(tsv, make_task(LABELS), Tokenization(Vocabulary(WORDS), length), progress)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_store_contains_every_row_in_order(tmp_path: Path) -> None:
    store = open_tsv(write(tmp_path / "a.tsv", "1\tgood food", "0\tbad", "1\t"))
    assert store.token_ids.tolist() == [2, 5, 7, 3, 2, 6, 3, 2, 3]
    assert store.offsets.tolist() == [0, 4, 7, 9]
    assert store.labels.tolist() == [1, 0, 1]
    assert store.lengths(np.array([2, 0])).tolist() == [2, 4]


def test_texts_have_the_tokens_that_they_have_after_prepare(tmp_path: Path) -> None:
    """The tokenizer drops these characters, which `prepare` replaces with spaces."""
    text, tokenizer = "good\x85food\x0bbad", Tokenizer(Tokenization(Vocabulary(WORDS), 8))
    prepared = tokenizer([clean(text)]).flat_values.numpy().tolist()
    assert prepared == [2, 5, 7, 6, 3]
    assert store_of([[text]], tokenizer).token_ids.tolist() == prepared
    assert open_tsv(write(tmp_path / "a.tsv", f"1\t{text}")).token_ids.tolist() == prepared


def test_store_records_lengths_before_truncation(tmp_path: Path) -> None:
    texts = ["good " * 20, "bad", "", "food " * 1500, "good " * 6]
    rows = [f"{i % 2}\t{text}" for i, text in enumerate(texts * 300)]  # More than one batch.
    tsv = write(tmp_path / "a.tsv", *rows)
    total = 22 + 3 + 2 + 1502 + 8
    fixed = 22 + 3 + 2 + 8
    kept = {str(length): (fixed + length) / total for length in (128, 256, 512)}
    kept = {"8": (8 + 3 + 2 + 8 + 8) / total, **kept}
    counted = Truncation(max_seq_length=8, texts=1500, longer=600, median=8, longest=1502)
    made, opened = open_tsv(tsv), open_tsv(tsv)
    assert made.truncation is not None and opened.truncation == made.truncation
    assert dataclasses.replace(made.truncation, kept={}, kept_by_windows={}) == counted
    assert made.truncation.kept == pytest.approx(kept)
    assert made.largest == (1, 8)
    longer = open_tsv(tsv, length=9).truncation
    longer_counted = dataclasses.replace(longer, max_seq_length=8, kept={}, kept_by_windows={})
    assert longer_counted == counted
    assert list(longer.kept) == ["9", "128", "256", "512"]


@pytest.mark.parametrize(("length", "weights"), [(8, [7.5, 0.5, 0.0]), (4, [5.0, 0.5, 0.0])])
def test_weight_of_a_row_with_tags_is_multiplied_by_the_words_that_are_read(
    tmp_path: Path, length: int, weights: list[float]
) -> None:
    rows = ["label\ttext\tweight", "0 1 0\tgood bad food\t2.5", "1\tbad\t0.5", "1 0\tbad bad\t0"]
    tsv = tmp_path / "tags.tsv"
    tsv.write_text("\n".join(rows) + "\n")
    task = make_task(dataclasses.replace(Labels.numbered(2), task=TOKEN_CLASSIFICATION))
    tokenization = Tokenization(Vocabulary(WORDS), length, words="first")
    assert open_store(tsv, task, tokenization, silent).weights.tolist() == weights


@pytest.mark.parametrize(
    ("longer", "said"),
    [
        (0, "no text is longer than `max_seq_length` 128 (median 210, longest 2,400 tokens)"),
        (4, "less than 1% of the texts are longer than `max_seq_length` 128 (median 210, "),
        (630, "63% of the texts are longer than `max_seq_length` 128 (median 210, longest 2,4"),
        (996, "more than 99% of the texts are longer than"),
        (1000, "100% of the texts are longer"),
    ],
)
def test_truncation_is_described_in_a_sentence(longer: int, said: str) -> None:
    assert str(Truncation(128, 1000, longer, 210, 2400)).startswith(said)


def test_advice_names_what_larger_lengths_keep() -> None:
    kept = {"128": 0.524, "256": 0.9}
    advice = Truncation(128, 1000, 600, 210, 300, kept).advice()
    assert advice.startswith("`max_seq_length` 128 keeps 52%, 256 keeps 90% of all tokens; ")
    assert Truncation(128, 1000, 0, 100, 120).advice() == ""


def test_advice_about_windows_is_for_single_texts_only(tmp_path: Path) -> None:
    single = open_tsv(write(tmp_path / "a.tsv", "1\t" + "good " * 20)).truncation
    assert single
    assert single.advice().startswith(
        "`max_seq_length` 8 keeps 36%, 128 keeps 100%; `windows` 2 keeps 59%, 4 keeps 100% of all"
    )
    tsv = tmp_path / "pairs.tsv"
    tsv.write_text("label\ttext\ttext_pair\n1\t" + "good " * 20 + "\tbad\n")
    task = make_task(dataclasses.replace(LABELS, pairs=True))
    pairs = open_store(tsv, task, Tokenization(Vocabulary(WORDS), 8), silent).truncation
    assert pairs and pairs.kept and "windows" not in pairs.advice()


def test_store_is_created_once_for_the_same_inputs(tmp_path: Path, cache: Path) -> None:
    tsv = write(tmp_path / "a.tsv", "1\tgood", "0\tbad")
    for rows, length, made in (
        (["1\tgood", "0\tbad"], 8, True),
        (["1\tgood", "0\tbad"], 8, False),
        (["1\tgood", "0\tbad"], 4, True),
        (["1\tgood", "0\tbad bad"], 8, True),
    ):
        reports: list[str] = []
        write(tsv, *rows)
        open_tsv(tsv, reports, length)
        assert bool(reports) == made
    assert len(list((cache / "tokens").iterdir())) == 3


def test_interrupted_store_leaves_no_files(tmp_path: Path, cache: Path) -> None:
    tsv = write(tmp_path / "a.tsv", "1\tgood", "0\tbad")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_store(tsv, make_task(LABELS), Tokenization(Vocabulary(WORDS), 8), interrupt)
    assert list((cache / "tokens").iterdir()) == []
    assert len(open_tsv(tsv)) == 2


@pytest.mark.parametrize(
    ("named", "opened"), [(store_digest, open_store), (unlabelled_digest, open_unlabelled)]
)
def test_file_that_changes_before_it_is_read_gets_no_store(
    tmp_path: Path, cache: Path, named: Callable[..., str], opened: Callable[..., TokenStore]
) -> None:
    """Otherwise, later runs would find the tokens of the new file under the name of the old one."""
    tsv, tokenization = write(tmp_path / "a.tsv", "1\tgood"), Tokenization(Vocabulary(WORDS), 8)
    digest = named(tsv, sha256(tsv), LABELS, tokenization)
    asked = tsv, make_task(LABELS), tokenization, silent, digest
    write(tsv, "1\tbad")
    with pytest.raises(InputError, match=r"a\.tsv: changed meanwhile; run the command again$"):
        opened(*asked)
    assert list((cache / "tokens").iterdir()) == []
    write(tsv, "1\tgood")
    assert opened(*asked).token_ids.tolist() == [2, 5, 3]
    write(tsv, "1\tbad")  # The store of the old file remains.
    assert opened(*asked).token_ids.tolist() == [2, 5, 3]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_store_is_made_again(
    tmp_path: Path, cache: Path, damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tsv = write(tmp_path / "a.tsv", "1\tgood food", "0\tbad")
    task, tokenization = make_task(LABELS), Tokenization(Vocabulary(WORDS), 8)
    # The tokenizer is built once, because this test is about the files.
    tokenizer = Tokenizer(tokenization)
    monkeypatch.setattr(tokenizing, "Tokenizer", lambda _: tokenizer)
    whole = open_store(tsv, task, tokenization, silent)
    whole = dataclasses.replace(whole, token_ids=np.array(whole.token_ids))
    (folder,) = (cache / "tokens").iterdir()
    names = sorted(path.name for path in folder.iterdir())
    for name in names:
        damage(folder / name)
        progress = Notes()
        found = open_store(tsv, task, tokenization, progress)
        for field in dataclasses.fields(TokenStore):
            expected = getattr(whole, field.name)
            np.testing.assert_equal(getattr(found, field.name), expected, field.name)
        gone = (name, damage) == (DIGESTS, Path.unlink)
        why = "has no recorded digest" if gone else "does not match its recorded digest"
        assert progress.lines == [f"{folder} {why}, so it is not used"], name
        assert sorted(path.name for path in folder.iterdir()) == names
        assert list((cache / "tokens").iterdir()) == [folder]
    progress = Notes()
    open_store(tsv, task, tokenization, progress)
    assert progress.lines == []


def test_store_of_other_texts_is_not_used(tmp_path: Path, cache: Path) -> None:
    """The files of a store are whole, but under the name of another store."""
    tsv = write(tmp_path / "a.tsv", "1\tgood", "0\tbad")
    open_tsv(tsv)
    (folder,) = (cache / "tokens").iterdir()
    other = write(tmp_path / "b.tsv", "1\tfood", "0\tfood")
    open_tsv(other)
    (wrong,) = (path for path in (cache / "tokens").iterdir() if path != folder)
    shutil.rmtree(folder)
    shutil.copytree(wrong, folder)
    assert open_tsv(tsv).token_ids.tolist() == [2, 5, 3, 2, 6, 3]


def test_error_names_unknown_label_and_row(tmp_path: Path) -> None:
    tsv = write(tmp_path / "a.tsv", "1\tgood", "neutral\tfood")
    with pytest.raises(InputError, match=r"a.tsv, row 3: label 'neutral' is unknown.* 0, 1"):
        open_tsv(tsv)


def test_file_without_labels_is_refused(tmp_path: Path) -> None:
    tsv = tmp_path / "test.tsv"
    tsv.write_text("index\tsentence\n0\tgood food\n")
    with pytest.raises(InputError, match="has no labels"):
        open_tsv(tsv)


def test_classes_come_from_the_rows_without_a_manifest(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", "10\ta", "9\tb", "9\tc")
    assert read_labels(tmp_path).values == ["9", "10"]
    write(tmp_path / "train.tsv", "no\ta", "no\tb")
    with pytest.raises(InputError, match=r"train.tsv: has only one class \(no\)"):
        read_labels(tmp_path)


def test_other_vocabulary_or_classes_create_another_store(tmp_path: Path) -> None:
    tsv = write(tmp_path / "a.tsv", "1\tgood", "0\tbad")
    first = open_tsv(tsv)
    turned = Labels(["1", "0"], ["positive", "negative"])
    other = open_store(tsv, make_task(turned), Tokenization(Vocabulary(WORDS), 8), silent)
    assert (first.labels.tolist(), other.labels.tolist()) == ([1, 0], [0, 1])
    swapped = [*SPECIAL_TOKENS, "bad", "good", "food"]
    again = open_store(tsv, make_task(LABELS), Tokenization(Vocabulary(swapped), 8), silent)
    assert again.token_ids.tolist() != first.token_ids.tolist()


def test_class_names_come_from_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text("text,label\na,yes\nb,no\nc,no\n")
    config = PrepareConfig(
        source="csv", train_file=str(tmp_path / "raw.csv"), out=str(tmp_path / "out")
    )
    prepare(config, silent, lambda _: [])
    assert read_labels(tmp_path / "out") == Labels(["0", "1"], ["no", "yes"])


STARS = Labels(["0", "1", "2"], ["1", "2", "3"])


def numbers(path: Path, labels: Labels, said: list[str] | None = None, **options: Any) -> list[int]:
    note = (said if said is not None else []).append
    task, tokenizer = make_task(labels), Tokenizer(Tokenization(Vocabulary(WORDS), 8))
    store = store_of_table(read_tsv(path), path, task, tokenizer, note, **options)
    return store.labels.tolist()


def test_labels_of_user_tables_are_names_or_numbers(tmp_path: Path) -> None:
    names = write(tmp_path / "names.tsv", "positive\tgood", "negative\tbad")
    assert numbers(names, LABELS) == [1, 0]
    assert numbers(write(tmp_path / "numbers.tsv", "1\tgood", "0\tbad"), LABELS) == [1, 0]
    mixed = write(tmp_path / "mixed.tsv", "1\tgood", "negative\tbad")
    with pytest.raises(
        InputError, match=r"row 3: label 'negative' is unknown; use one of 0, 1 \(n"
    ):
        numbers(mixed, LABELS)


def test_unknown_label_among_names_is_an_error_that_lists_names(tmp_path: Path) -> None:
    table = write(tmp_path / "a.tsv", "positive\tgood", "neutral\tfood", "negative\tbad")
    with pytest.raises(
        InputError, match=r"row 3: label 'neutral' is unknown; use one of negative, positive$"
    ):
        numbers(table, LABELS)


def test_class_numbers_of_prepared_files_are_those_of_their_manifest(tmp_path: Path) -> None:
    """Other data can number the same classes differently, or have more or fewer of them."""
    stars = {"good": "3", "bad": "2", "food": "3", "good food": "3"}
    lines = [f"{text},{label}\n" for text, label in stars.items()]
    (tmp_path / "raw.csv").write_text("text,label\n" + "".join(lines))
    out = str(tmp_path / "out")
    config = PrepareConfig(source="csv", train_file=str(tmp_path / "raw.csv"), out=out)
    prepare(config, silent, lambda _: [])
    tsv = tmp_path / "out/train.tsv"
    texts = read_tsv(tsv)["text"].tolist()
    assert {stars[text] for text in texts} == {"2", "3"}

    def both(labels: Labels) -> list[list[str]]:
        """Return the names that the class numbers in both kinds of token stores stand for."""
        store = open_store(tsv, make_task(labels), Tokenization(Vocabulary(WORDS), 8), silent)
        found = [store.labels.tolist(), numbers(tsv, labels)]
        return [[labels.names[number] for number in own] for own in found]

    for names in (["2", "3"], ["3", "2"], ["1", "2", "3"], ["3", "1", "0", "2"]):
        for values in (names, [str(number) for number in range(len(names))]):
            assert both(Labels(values, names)) == [[stars[text] for text in texts]] * 2
    assert both(Labels(["0", "1"], ["3.0", "2.0"])) == [[f"{stars[text]}.0" for text in texts]] * 2
    message = r"manifest.json: the run has no class '3'; prepare the file with the .*: 1, 2$"
    with pytest.raises(InputError, match=message):
        both(Labels(["0", "1"], ["1", "2"]))
    with pytest.raises(InputError, match=message):
        numbers(tsv, Labels(["0", "1"], ["1", "2"]))


def test_labels_that_look_like_scores_are_an_error_without_a_task(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", "1\tgood", "4.5\tfood", "2\tbad")
    with pytest.raises(
        ConfigError,
        match=r"train.tsv: labels such as '4.5' look like scores; pass `task` regression, or",
    ):
        read_labels(tmp_path)
    assert read_labels(tmp_path, "classification").values == ["1", "2", "4.5"]
    assert read_labels(tmp_path, "regression").mean == 2.5
    write(tmp_path / "train.tsv", "1\tgood", "4.5\tfood", "inf\tbad")
    with pytest.raises(InputError, match=r"train.tsv, row 4: the label 'inf' is not a finite num"):
        read_labels(tmp_path)
    for labels in (("1.0", "2.0"), ("1.5", "good"), ("eng", "nan")):
        write(tmp_path / "train.tsv", *(f"{label}\tfood" for label in labels))
        assert read_labels(tmp_path).values == [*labels]


def test_ambiguous_labels_are_names_whatever_rows_a_table_has(tmp_path: Path) -> None:
    """Class 1 of the names is class 0 of the numbers."""
    for lines, classes in (("12", [0, 1]), ("32", [2, 1]), ("22", [1, 1])):
        said: list[str] = []
        table = write(tmp_path / "a.tsv", *(f"{label}\tgood" for label in lines))
        assert numbers(table, STARS, said) == classes
        (line,) = said
        assert line.endswith(
            "a.tsv: its labels are read as class names, which are also class numbers; pass"
            " `label_form` numbers if they are class numbers"
        )
        said.clear()
        assert numbers(table, STARS, said, form="names") == classes
        assert said == []
    table = write(tmp_path / "a.tsv", "0\tgood", "2\tbad")
    with pytest.raises(InputError, match=r"row 2: .* 1, 2, 3; or pass `label_form` numbers"):
        numbers(table, STARS)
    assert numbers(table, STARS, form="numbers") == [0, 2]
    sets = Labels(STARS.values, STARS.names, task="multi-label")
    table = write(tmp_path / "a.tsv", "1|2\tgood", "|\tbad")
    assert numbers(table, sets) == [[1, 1, 0], [0, 0, 0]]
    assert numbers(table, sets, form="numbers") == [[0, 1, 1], [0, 0, 0]]


def test_names_that_spell_numbers_of_other_classes_are_ambiguous(tmp_path: Path) -> None:
    floats = Labels(["0", "1"], ["1.0", "2.0"])
    said: list[str] = []
    assert numbers(write(tmp_path / "a.tsv", "1\tgood", "2\tbad"), floats, said) == [0, 1]
    assert "are read as class names" in said[0] and "reads the labels '1' as '1.0'" in said[1]
    table = write(tmp_path / "b.tsv", "0\tgood", "1\tbad")
    with pytest.raises(InputError, match=r"row 2: label '0' is unknown; .* `label_form` numbers"):
        numbers(table, floats)
    said.clear()
    assert numbers(table, floats, said, form="numbers") == [0, 1]
    assert said == []


def test_names_that_are_their_own_numbers_are_not_ambiguous(tmp_path: Path) -> None:
    labels, said = Labels(["0", "1", "2"], ["0", "1", "other"]), list[str]()
    assert numbers(write(tmp_path / "a.tsv", "0\tgood", "2\tbad"), labels, said) == [0, 2]
    assert numbers(write(tmp_path / "b.tsv", "1\tgood", "other\tbad"), labels, said) == [1, 2]
    assert said == []


def test_cell_that_is_the_name_of_a_class_is_no_list(tmp_path: Path) -> None:
    one = Labels(["0", "1"], ["0|1", "[a, b]"])
    table = write(tmp_path / "a.tsv", "0|1\tgood", "[a, b]\tbad")
    assert numbers(table, one) == [0, 1]
    several = dataclasses.replace(one, task="multi-label")
    assert numbers(table, several, separator=";") == [[1, 0], [0, 1]]


def test_files_of_prepare_and_their_copies_have_class_numbers(tmp_path: Path) -> None:
    lines = [f"text {number},{number % 3 + 1}\n" for number in range(9)]
    (tmp_path / "raw.csv").write_text("text,label\n" + "".join(lines))
    folder, copy = tmp_path / "out", tmp_path / "copy.tsv"
    prepare(
        PrepareConfig(source="csv", train_file=str(tmp_path / "raw.csv"), out=str(folder)),
        silent,
        lambda _: [],
    )
    tsv, said = folder / "dev.tsv", list[str]()
    expected = numbers(tsv, STARS, said)
    assert expected == [int(read_tsv(tsv)["label"][0])] and said == []
    copy.write_bytes(tsv.read_bytes())
    assert original_of(copy, folder) == tsv
    assert numbers(copy, STARS, said, original=tsv) == expected
    assert said == [f"{copy}: is a copy of {tsv}, so its labels are class numbers"]
    # The numbers are those of the folder, even if the run has the classes in another order.
    turned = Labels(["0", "1", "2"], ["3", "2", "1"])
    assert numbers(copy, turned, original=tsv) == [2 - expected[0]]
    said.clear()
    scores = numbers(copy, Labels([], [], task="regression"), said, original=tsv)
    assert scores == expected and said == []
    copy.write_bytes(tsv.read_bytes() * 2)
    assert original_of(copy, folder) is None
    assert original_of(copy, tmp_path) is None


def test_other_spellings_of_a_class_are_read_with_a_note(tmp_path: Path) -> None:
    said: list[str] = []
    spelled = write(tmp_path / "a.tsv", "Positive\tgood", "negative\u200b\tbad", "negative\tbad")
    assert numbers(spelled, LABELS, said) == [1, 0, 0]
    assert said == [
        rf"{spelled}: reads the labels 'Positive' as 'positive', 'negative\u200b' as 'negative'"
    ]
    assert numbers(write(tmp_path / "b.tsv", "2.0\tgood", "3.00\tbad"), STARS) == [1, 2]
    assert numbers(write(tmp_path / "c.tsv", "1.0\tgood", "0.0\tbad"), LABELS) == [1, 0]


def test_spellings_in_a_folder_without_manifest_are_one_class(tmp_path: Path) -> None:
    said: list[str] = []
    train = write(tmp_path / "train.tsv", "1\tgood", "1.0\tgood", "1\tfood", "2\tbad")
    labels = read_labels(tmp_path, None, said.append)
    assert labels.values == ["1", "2"]
    keep = "bertaccum prepare can keep them apart"
    assert said == [f"{train}: reads the labels '1.0' as '1'; {keep}"]
    store = open_store(train, make_task(labels), Tokenization(Vocabulary(WORDS), 8), silent)
    assert store.labels.tolist() == [0, 0, 0, 1]


def test_token_store_depends_on_the_format_of_the_labels(tmp_path: Path) -> None:
    dev, numbered = write(tmp_path / "dev.tsv", "[0, 1]\tgood"), ["0", "1"]
    labels = Labels(numbered, numbered, task="multi-label")
    flags = dataclasses.replace(labels, format={"lists": True, "flags": 2})
    for own, expected in ((labels, [[1, 1]]), (flags, [[0, 1]])):
        store = open_store(dev, make_task(own), Tokenization(Vocabulary(WORDS), 8), silent)
        assert store.labels.tolist() == expected


def test_token_store_depends_on_the_names_of_tags() -> None:
    """With `label_pieces` all, they decide the tag of the pieces after the first one."""
    tokenization, numbered = Tokenization(Vocabulary(WORDS), 8, words="all"), ["0", "1", "2"]
    names = (["O", "B-PER", "I-PER"], ["O", "I-PER", "B-PER"])
    tags = (Labels(numbered, own, task="token-classification") for own in names)
    assert len({store_digest(Path("a.tsv"), "", own, tokenization) for own in tags}) == 2


def test_store_of_unlabeled_texts_depends_on_the_ending_of_the_file() -> None:
    """Each line of a .txt file is a text, but the first line of a .csv file is a header."""
    tokenization, paths = Tokenization(Vocabulary(WORDS), 8), map(Path, ("a.txt", "a.csv", "b.csv"))
    digests = [unlabelled_digest(path, "", LABELS, tokenization) for path in paths]
    assert digests[0] != digests[1] == digests[2]


EMOTIONS = Labels(["0", "1", "2"], ["anger", "fear", "joy"], task="multi-label")


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["['joy', 'Anger']", "[]", "[fear]"], [[1, 0, 1], [0, 0, 0], [0, 1, 0]]),
        (["joy, anger", "fear", "joy"], [[1, 0, 1], [0, 1, 0], [0, 0, 1]]),
        (["[0, 2]", "[1]"], [[1, 0, 1], [0, 1, 0]]),
        (["[0, 1]", "[1, 0]"], [[1, 1, 0], [1, 1, 0]]),
        (["[1, 0, 1]", "[0 1 0]"], [[1, 0, 1], [0, 1, 0]]),
        (["2|0", "|"], [[1, 0, 1], [0, 0, 0]]),
    ],
)
def test_lists_of_labels_in_user_tables_are_read(
    tmp_path: Path, cells: list[str], expected: list[list[int]]
) -> None:
    table = write(tmp_path / "a.tsv", *(f"{cell}\tgood" for cell in cells))
    assert numbers(table, EMOTIONS) == expected


def test_lists_of_one_label_in_user_tables_are_classes(tmp_path: Path) -> None:
    names = write(tmp_path / "a.tsv", "['positive']\tgood", "negative\tbad")
    assert numbers(names, LABELS) == [1, 0]
    assert numbers(write(tmp_path / "b.tsv", "[0, 1]\tgood", "[1, 0]\tbad"), LABELS) == [1, 0]
    several = write(tmp_path / "c.tsv", "['positive', 'negative']\tgood")
    with pytest.raises(InputError, match=r"row 2: label \"\['positive', 'negative'\]\" is unknown"):
        numbers(several, LABELS)


def test_scores_in_lists_of_one_are_scores(tmp_path: Path) -> None:
    table = write(tmp_path / "a.tsv", "[1.5]\tgood", "2\tbad")
    assert numbers(table, Labels([], [], task="regression")) == [1.5, 2]


@pytest.mark.parametrize(
    ("cells", "values", "expected"),
    [
        (["['a', 'b']", "['b']"], ["a", "b"], [[1, 1], [0, 1]]),
        (["[0, 1, 1, 0]", "[1, 0, 0, 0]"], ["0", "1", "2"], [[0, 1, 1], [1, 0, 0]]),
    ],
)
def test_lists_in_a_folder_without_manifest_are_several_labels(
    tmp_path: Path, cells: list[str], values: list[str], expected: list[list[int]]
) -> None:
    train = write(tmp_path / "train.tsv", *(f"{cell}\tgood" for cell in cells))
    said: list[str] = []
    labels = read_labels(tmp_path, None, said.append)
    assert (labels.task, labels.values) == ("multi-label", values)
    assert said[0] == f"{train}: some rows have several labels, so the task is multi-label"
    assert ("named by position, from 0" in said[-1]) == (values[0] == "0")
    store = open_store(train, make_task(labels), Tokenization(Vocabulary(WORDS), 8), silent)
    assert store.labels.tolist() == expected
    write(tmp_path / "train.tsv", "a|b\tgood", "a\tbad", "b\tfood")
    with pytest.raises(ConfigError, match=r"train.tsv: labels such as 'a\|b' look like several"):
        read_labels(tmp_path)


def test_array_that_does_not_fit_on_the_disk_is_an_error(tmp_path: Path) -> None:
    path, array = tmp_path / "a.npy", np.arange(400)
    save_array(path, array)
    np.testing.assert_array_equal(np.load(path), array)
    for name, size in (("small", 400), ("large", 40_000)):
        with full_disk(200), pytest.raises(OSError, match="File too large"):
            save_array(tmp_path / name, np.arange(size))
