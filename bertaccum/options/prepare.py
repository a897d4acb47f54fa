"""Options of `bertaccum prepare`, as a frozen dataclass; see `bertaccum.options.commands`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from bertaccum.errors import ConfigError
from bertaccum.options import fields
from bertaccum.options.commands import MAX_SEED, SOURCE, SPLIT, TABLES, output_option
from bertaccum.options.fields import TEST_COLUMNS, Numbers, Options, setting
from bertaccum.options.task_names import MULTI_LABEL, TASKS, TOKEN_CLASSIFICATION

# The smallest fraction of the training rows that is held out as dev.tsv by default.
MIN_DEV_FRACTION = 0.01

source_option = partial(setting, group=SOURCE)
table_option = partial(setting, group=TABLES)
split_option = partial(setting, group=SPLIT)
# The sources of `prepare` that some of its options belong to.
_SOURCES_OF_OPTIONS = {
    "archive": ("yelp",),
    **dict.fromkeys(("train_file", "test_file"), ("csv",)),
    "dataset": ("glue", "tfds", "hub"),
    "dataset_config": ("hub",),
    **dict.fromkeys(("folder", "language"), ("glue",)),
    **dict.fromkeys(("text_column", "text_pair_column", "label_column"), ("csv", "tfds", "hub")),
    **dict.fromkeys(("task", "label_columns", "labels_as_written"), ("csv", "tfds", "hub")),
    **dict.fromkeys(("label_separator", "weight_column", "delimiter", "encoding"), ("csv", "hub")),
}


@dataclass(frozen=True)
class PrepareConfig(Options):
    """Options of `bertaccum prepare`: the source of the texts, their split and the data folder."""

    source: str = source_option(
        "yelp",
        "Source of the texts. yelp: Yelp Polarity from tensorflow-datasets; sample: generated"
        " reviews; csv: your own tables or folders; glue: a data set of GLUE, or XNLI, as"
        " downloaded; tfds: a data set of tensorflow-datasets; hub: a data set of the Hugging Face"
        " Hub.",
        choices=("yelp", "sample", "csv", "glue", "tfds", "hub"),
    )
    dataset: str | None = source_option(
        None,
        "Name of the data set for `source` glue (cola, sst-2, mrpc, qqp, sts-b, mnli, qnli, rte,"
        " wnli or xnli), `source` tfds (such as imdb_reviews or glue/mrpc) or `source` hub (such as"
        " stanfordnlp/sst2, or OWNER/NAME@REVISION).",
    )
    dataset_config: str | None = source_option(
        None,
        "Configuration of the `dataset` for `source` hub. [default: the data set's own default, or"
        " the only one]",
    )
    folder: str | None = source_option(
        None, "Folder of the data set for `source` glue, or the folder that contains it.", path=True
    )
    language: str | None = source_option(
        None, "Language for `dataset` xnli, such as de. [default: en]"
    )
    archive: str | None = source_option(
        None,
        "Existing copy of yelp_review_polarity_csv.tgz to read instead of downloading it.",
        path=True,
    )
    allow_unverified_archive: bool = source_option(
        False,
        "Accept an `archive` whose checksum differs from the one that tensorflow-datasets records.",
    )
    task: str | None = source_option(
        None,
        "Kind of task. classification: one class for each text; regression: a score; multi-label:"
        " any number of labels; token-classification: a tag for each word. [default: multi-label"
        " with `label_columns` and for lists of several labels; the task of the data set for"
        " `source` glue, tfds and hub; else classification]",
        choices=TASKS,
    )
    train_file: str | None = table_option(
        None,
        "Training rows for `source` csv: a CSV, TSV, JSON Lines or Parquet file, or a folder that"
        " contains, for each class, a subfolder of texts or a .txt file with one text per line. A"
        " table or folder may be in a zip archive. For token-classification, also a CoNLL file, or"
        " a folder with files named train, dev and test. Use - for stdin.",
        path=True,
    )
    test_file: str | None = table_option(
        None, "Test rows for `source` csv, in any format that `train_file` accepts.", path=True
    )
    text_column: str = table_option(
        "text",
        "Name or 1-based number of the text column; for `source` tfds, the name of a feature.",
    )
    text_pair_column: str | None = table_option(
        None,
        "Name or 1-based number of the column with the second text of each pair. [default:"
        " text_pair if there is such a column]",
    )
    label_column: str = table_option(
        "label",
        "Name or 1-based number of the label column; for `source` tfds, the name of a feature.",
    )
    label_columns: str | None = fields.label_columns_setting(group=TABLES)
    label_separator: str | None = fields.label_separator_setting(group=TABLES)
    labels_as_written: bool = table_option(
        False,
        "Use each label as written, even if labels differ only in case, in Unicode form, in"
        " invisible characters, or as 1 and 1.0 do. [default: they are one class]",
    )
    weight_column: str | None = table_option(
        None,
        "Name or 1-based number of the column with the weight of each row in the training loss, a"
        " number of at least 0. [default: all rows have the same weight]",
    )
    test_text_column: str | None = table_option(
        None, "Name or 1-based number of the text column of `test_file`. [default: `text_column`]"
    )
    test_text_pair_column: str | None = table_option(
        None,
        "Name or 1-based number of the column of `test_file` with the second text of each pair."
        " [default: `text_pair_column`]",
    )
    test_label_column: str | None = table_option(
        None, "Name or 1-based number of the label column of `test_file`. [default: `label_column`]"
    )
    tag_names: str | None = table_option(
        None,
        "Names of numbered tags, from 0, separated by commas, such as O,B-PER,I-PER, for `task`"
        " token-classification.",
        check=fields.tag_names,
    )
    delimiter: str | None = fields.delimiter_setting(group=TABLES)
    encoding: str | None = fields.encoding_setting(group=TABLES)
    dev_fraction: float | None = split_option(
        None,
        "Fraction of the training rows held out as dev.tsv; each class contributes in proportion"
        " to its size. [default: 0.01; if that gives fewer than 500 rows, 500 rows or a tenth of"
        " the rows, whichever is smaller, except for `source` yelp]",
        numbers=Numbers(0, 1, exclusive=True, real=True),
    )
    test_fraction: float = split_option(
        0.0,
        "Fraction of the training rows held out as test.tsv if there is no `test_file`; with 0, no"
        " rows are held out.",
        numbers=Numbers(0, 0.99),
    )
    drop_duplicates: bool | None = split_option(
        None,
        "Drop each training row whose text occurs in an earlier training row or in the test set."
        " `drop_duplicates=False` keeps all rows. [default: drop only rows whose text is in the"
        " test set, but keep all rows for `source` glue, tfds and hub]",
        switch=True,
    )
    seed: int = split_option(
        0, "Seed of the split and of the generated reviews.", numbers=Numbers(0, MAX_SEED)
    )
    out: str | None = output_option(
        None,
        "Data folder to write. [default: data/yelp_polarity, data/sample, data/csv or data/NAME,"
        " depending on `source` and `dataset`]",
        path=True,
    )
    layout: str = output_option(
        "plain",
        "Layout of the TSV files. plain: a header, then label and text; cola: the layout that"
        " run_classifier.py of google-research/bert reads (test.tsv has no labels).",
        choices=("plain", "cola"),
    )
    overwrite: bool = output_option(
        False, "Replace a data folder that was prepared with other options."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source == "csv" and self.train_file is None:
            raise ConfigError("`source` csv needs `train_file`", "pass the file or folder to read")
        self._check_dataset()
        self._check_task()
        if self.test_fraction:
            self._check_test_fraction()

    def _check_dataset(self) -> None:
        """Check the options that only some sources have."""
        for name, sources in _SOURCES_OF_OPTIONS.items():
            if self.source not in sources and getattr(self, name) != getattr(PrepareConfig, name):
                what = f"`{name}` cannot be used with `source` {self.source}"
                raise ConfigError(what, f"set `source` to {' or '.join(sources)}, or omit `{name}`")
        if self.allow_unverified_archive and self.archive is None:
            what = "`allow_unverified_archive` has no effect without `archive`"
            raise ConfigError(what, "omit it, or pass the archive")
        for name in TEST_COLUMNS:
            if getattr(self, name) is not None and self.test_file is None:
                raise ConfigError(f"`{name}` applies only to `test_file`", "omit one of the two")
        if self.source in ("glue", "tfds", "hub") and self.dataset is None:
            what = f"`source` {self.source} needs `dataset`"
            raise ConfigError(what, "pass the name of the data set")
        if self.source == "glue" and self.folder is None:
            raise ConfigError("`source` glue needs `folder`", "pass the folder of the data set")

    def _check_task(self) -> None:
        if self.label_columns and self.task not in (None, MULTI_LABEL):
            what = f"`label_columns` and `task` {self.task} contradict each other"
            raise ConfigError(what, "omit one of the two")
        fields.refuse_single_label_column(self, "label_column", "test_label_column")
        if self.text_pair_column and self.task == TOKEN_CLASSIFICATION:
            what = "`text_pair_column` and `task` token-classification contradict each other"
            raise ConfigError(what, "omit one of the two")
        if self.tag_names and self.task != TOKEN_CLASSIFICATION:
            what = "`tag_names` applies only to `task` token-classification"
            raise ConfigError(what, "omit one of the two")
        if self.source == "tfds" and self.task == TOKEN_CLASSIFICATION:
            what = "`task` token-classification cannot be used with `source` tfds"
            raise ConfigError(what, "set `source` to hub or csv, or choose another `task`")
        several = self.label_columns or self.task == MULTI_LABEL
        if self.label_separator is not None and not several:
            what = "`label_separator` applies only to `task` multi-label"
            raise ConfigError(what, "omit one of the two")

    def _check_test_fraction(self) -> None:
        fraction = f"`test_fraction` {self.test_fraction}"
        given = f"`test_file` {self.test_file}" if self.test_file else f"`source` {self.source}"
        if self.test_file or self.source not in ("csv", "tfds", "hub"):
            what = f"{fraction} cannot be used with {given}, which already has test rows"
            raise ConfigError(what, "omit `test_fraction`")
        if self.test_fraction + (self.dev_fraction or 0) >= 1:
            both = f"{fraction} and `dev_fraction` {self.dev_fraction}"
            raise ConfigError(f"{both} leave no rows for train.tsv", "lower one of the two")

    @property
    def data_folder(self) -> str:
        """The data folder to write: `out`, or the default folder of the source."""
        named = "yelp_polarity" if self.source == "yelp" else self.dataset or self.source
        named += f"/{self.dataset_config}" if self.dataset_config else ""
        return self.out or f"data/{re.sub('[/:@]', '_', named.lower().removeprefix('hf://'))}"
