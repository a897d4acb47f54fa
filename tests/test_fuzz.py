"""Damaged and hostile files: each gives one message that names the file, never a traceback.

A byte-level mutator damages valid files; Hypothesis chooses the edits, or draws random bytes. The
slow tests try more than 10,000 inputs, in every run the same. `make fuzz` tries other ones, so that
a fault that it finds does not fail an unrelated change.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small import write_google_checkpoint
from torch_writer import write_torch

from bertaccum.bert.download import unpack
from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.encoder_config import EncoderConfig, read_bert_config
from bertaccum.bert.google_checkpoint import GOOGLE
from bertaccum.bert.huggingface_folder import (
    HUGGINGFACE,
    read_huggingface_config,
    write_description,
)
from bertaccum.bert.pretrained_weights import load_encoder, save_huggingface
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer_files import read_tokenizer, read_vocabulary
from bertaccum.bert.torch_file import open_torch_file
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.cli.program import cli
from bertaccum.errors import BertAccumError
from bertaccum.options.prepare import PrepareConfig
from bertaccum.runs.record import read_run_config
from bertaccum.system.files import json_digest
from bertaccum.system.progress import silent
from bertaccum.tasks.head import build_classifier
from bertaccum.tasks.model_files import ModelFiles
from bertaccum.training.checkpoints import read_saved
from data_prep.preparation import prepare
from data_prep.tables.columns import ReadOptions
from data_prep.tables.corpus import find_corpus
from data_prep.tables.table import read_rows
from data_prep.tables.texts_to_classify import read_texts
from data_prep.tables.tsv import read_tsv

# Bytes that have a meaning in at least one file format.
TELLING = [b"\0", b"\t", b"\n", b"\r", b'"', b",", b"\xff", b"\xef\xbb\xbf", b"\xe2\x80\xa8"]
TELLING += [
    b";",
    b"|",
    b"{",
    b"[",
    b": ",
    b"- ",
    b"&a ",
    b"*a",
    b"%",
    b"../",
    b"-1",
    b"1e999",
    b"!!python/none",
    b"\\ud800",
]

# Cells and delimiters of tables, which are drawn in any order.
CELLS = ["text", "label", "review", "stars", "id", "a", "sentence1", "sentence2", "weight"]
CELLS += ["text_pair", "__label__1", "1", "0", "0.5", "good", "good, bad", "\\", "{", "é", " "]
CELLS += [",", "\t", ";", "|", '"', '""', "\n", "\n", "\r\n"]

EDIT = st.tuples(
    st.sampled_from(["flip", "cut", "insert", "double", "drop"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 255),
    st.sampled_from(TELLING),
)


def mutated(good: bytes, edits: list[tuple[str, float, int, bytes]]) -> bytes:
    """Return bytes after some edits.

    Args:
      good: The bytes of a valid file.
      edits: For each edit, its kind, its position as a fraction of the length, a number (the bits
        to flip or, modulo 32, the length to double or drop), and the bytes to insert.
    """
    for kind, position, number, telling in edits:
        at = int(position * len(good))
        end = at + number % 32
        if kind == "flip" and good:
            good = good[:at] + bytes([good[at] ^ number]) + good[at + 1 :]
        elif kind == "cut":
            good = good[:at]
        elif kind == "insert":
            good = good[:at] + telling + good[at:]
        elif kind == "double":
            good = good[:at] + good[at:end] + good[at:]
        elif kind == "drop":
            good = good[:at] + good[end:]
    return good


TEXT = "very good food\tand the 'service' was \"nice\", too"
SMALL = EncoderConfig(
    hidden_size=4,
    num_hidden_layers=1,
    num_attention_heads=1,
    intermediate_size=4,
    vocab_size=8,
    max_position_embeddings=4,
)
WORDS = [*SPECIAL_TOKENS, "a", "b", "c"]

Reader = Callable[[Path], object]


def csv_case(folder: Path) -> tuple[Path, Reader]:
    path, out = folder / "mine.csv", folder / "out"
    with path.open("w", newline="") as file:
        rows = [(i % 2, f"{TEXT} {i}") for i in range(6)]
        csv.writer(file).writerows([("label", "text"), *rows])

    return path, preparing(out, source="csv", train_file=str(path))


def tsv_case(folder: Path) -> tuple[Path, Reader]:
    path = folder / "train.tsv"
    path.write_text("label\ttext\n" + "1\tgood food\n0\tbad food\n" * 3)
    return path, read_tsv


def quoted_case(folder: Path) -> tuple[Path, Reader]:
    path = folder / "mine.tsv"
    path.write_text("label\ttext\n" + '1\t"good, ""very"" food"\n0\tbad\n' * 3)
    return path, read_user_table


def packed_case(folder: Path) -> tuple[Path, Reader]:
    path = folder / "mine.csv.gz"
    path.write_bytes(gzip.compress(b"label;text\n" + b"1;good food\n0;bad food\n" * 9))
    return path, read_user_table


def zipped_table_case(folder: Path) -> tuple[Path, Reader]:
    path = folder / "mine.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mine.csv", "label,text\n" + "1,good food\n0,bad food\n" * 9)
    return path, read_user_table


def json_lines_case(folder: Path) -> tuple[Path, Reader]:
    path = folder / "mine.jsonl"
    path.write_text('{"label": 1, "text": "good \\u00e9"}\n{"text": "bad", "label": 0}\n' * 3)
    return path, read_user_table


def utf_16_case(folder: Path) -> tuple[Path, Reader]:
    path = folder / "mine.csv"
    path.write_bytes(("label,text\n" + "1,good food\n0,bad 中\n" * 3).encode("utf-16"))
    return path, read_user_table


def parquet_case(folder: Path) -> tuple[Path, Reader]:
    path = folder / "mine.parquet"
    pd.DataFrame({"label": [1, 0] * 9, "text": ["good", "bad"] * 9}).to_parquet(path)
    return path, read_user_table


def weighted_case(folder: Path) -> tuple[Path, Reader]:
    path, out = folder / "mine.csv", folder / "out"
    rows = [f"{i % 2},{i // 2 % 2},{i}.5,good food {i}" for i in range(12)]
    path.write_text("\n".join(["joy,awe,weight,text", *rows]) + "\n")
    columns = {"label_columns": "joy,awe", "weight_column": "weight"}
    return path, preparing(out, source="csv", train_file=str(path), **columns)


def tagged_case(folder: Path, ending: str, sentence: str) -> tuple[Path, Reader]:
    path, out = folder / f"mine.{ending}", folder / "out"
    path.write_text(
        "text,label\n" * (ending == "csv") + "".join(f"{sentence % i}\n" for i in range(6))
    )
    options = {"source": "csv", "task": "token-classification"}
    return path, preparing(out, train_file=str(path), **options)


CONLL = "Ada%d\tB-PER\nlives\tO\n"
LISTS = '{"tokens": ["Ada%d", "lives"], "ner_tags": ["B-PER", "O"]}'
CELLS = """"['Ada%d', 'lives']","['B-PER', 'O']"\nb a,O B-PER"""
SPANS = '{"text": "Ada%d \\u00e9", "label": [{"start": 0, "end": 3, "label": "X", "text": "Ada"}]}'
PRODIGY = (
    '{"text": "Ada%d", "tokens": [{"text": "Ada"}], "answer": "accept",'
    ' "spans": [{"start": 0, "end": 3, "label": "X"}]}'
)
LABEL_STUDIO = (
    '{"data": {"text": "Ada%d is"}, "annotations": [{"was_cancelled": false, "result":'
    ' [{"value": {"start": 0, "end": 3, "labels": ["X"]}}]}]}'
)


def corpus_case(folder: Path, name: str, content: bytes) -> tuple[Path, Reader]:
    path = folder / name
    path.write_bytes(content)
    return path, lambda path: [text.encode() for _, text in find_corpus([path]).parts()]


DOCUMENTS = "Ünïcode text,\nmore of it\n\n" * 3


def glue_case(folder: Path) -> tuple[Path, Reader]:
    glue, out = folder / "RTE", folder / "out"
    glue.mkdir()
    names = "index\tsentence1\tsentence2"
    rows = [f"{i}\ta {i}\tb\t{'not_' * (i % 2)}entailment" for i in range(8)]
    for split in ("train", "dev"):
        (glue / f"{split}.tsv").write_text("\n".join([f"{names}\tlabel", *rows]) + "\n")
    (glue / "test.tsv").write_text(f"{names}\n0\ta\tb\n")
    return glue / "train.tsv", preparing(out, source="glue", dataset="rte", folder=str(glue))


def preparing(out: Path, **options: str) -> Reader:
    """Return a function that prepares data, and checks that an error leaves no folder."""

    def read(_: Path) -> object:
        fraction = None if options.get("source") == "glue" else 0.4
        try:
            prepare(PrepareConfig(out=str(out), dev_fraction=fraction, **options), silent, list)
        except BertAccumError:
            assert not out.exists(), "a partial output folder is left"
            raise
        return shutil.rmtree(out)

    return read


def classes_case(folder: Path) -> tuple[Path, Reader]:
    for name in ("pos", "neg"):
        (folder / name).mkdir()
        (folder / name / "1.txt").write_text(f"a {name} text\n")
    return folder / "pos/1.txt", lambda path: read_user_table(path.parent.parent)


def read_user_table(path: Path) -> object:
    """Read a table as `prepare`, `eval` and `predict` do, and check that they agree on its rows."""
    texts = [row.text for row in read_rows(path, ReadOptions())]
    try:
        kept = list(read_texts(path, ReadOptions(label_column=None)))
    except BertAccumError as error:
        raise AssertionError("only the labels make the file readable") from error
    # Rows without any content are skipped only if they should have a label.
    assert [*filter(str.strip, kept)] == [*filter(str.strip, texts)]
    return list(read_rows(path, ReadOptions("1", "2")))


def config_case(folder: Path) -> tuple[Path, Reader]:
    path = folder / "recipe.yaml"
    path.write_text('# recipe\ntarget_batch: 32\nlearning-rate: 2e-5\ndata: "review\\U00000073"\n')
    train = cli.commands["train"]
    return path, lambda path: train.make_context("train", ["--config", str(path)])


def vocabulary_case(folder: Path) -> tuple[Path, Reader]:
    path = folder / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, "good", "##ly", "ß", "中"]) + "\n")
    return path, read_vocabulary


def dimensions_case(folder: Path) -> tuple[Path, Reader]:
    path = folder / "bert_config.json"
    path.write_text(
        json.dumps(
            {
                "hidden_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 512,
                "vocab_size": 30522,
                "max_position_embeddings": 512,
                "type_vocab_size": 2,
                "hidden_act": "gelu",
                "initializer_range": 0.02,
                "hidden_dropout_prob": 0.1,
            }
        )
    )
    return path, read_bert_config


def zip_case(folder: Path) -> tuple[Path, Reader]:
    path, out = folder / "bert.zip", folder / "unpacked"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name in ("bert_config.json", "vocab.txt"):
            bundle.writestr(f"uncased/{name}", "something " * 9)
        for name in ("index", "data-00000-of-00001"):
            bundle.writestr(f"../../bert_model.ckpt.{name}", os.urandom(64))

    def read(path: Path) -> object:
        try:
            unpack(path, out)
        except BertAccumError:
            assert not out.exists()
            raise
        finally:
            assert {p.name for p in folder.iterdir()} <= {path.name, "unpacked"}
        for file in out.iterdir():
            file.unlink()
        return out.rmdir()

    return path, read


def huggingface_config_case(folder: Path) -> tuple[Path, Reader]:
    path = described(folder) / "config.json"

    def read(path: Path) -> object:
        HUGGINGFACE.check(path.parent, "", False)
        return read_huggingface_config(path)

    return path, read


def tokenizer_case(folder: Path) -> tuple[Path, Reader]:
    path = described(folder) / "tokenizer.json"
    words = {word: number for number, word in enumerate(WORDS)}
    added = [{"id": len(words), "content": "<url>", "normalized": True, "single_word": False}]
    values = {"model": {"vocab": words}, "normalizer": {"lowercase": True}, "added_tokens": added}
    path.write_text(json.dumps(values))
    return path, read_tokenizer


def tokenizer_settings_case(folder: Path) -> tuple[Path, Reader]:
    path = described(folder) / "tokenizer_config.json"
    added = {str(len(WORDS)): {"content": "<url>", "normalized": True}}
    edited = json.loads(path.read_text()) | {"added_tokens_decoder": added}
    path.write_text(json.dumps(edited))
    return path, lambda path: read_tokenizer(path.with_name("vocab.txt"))


def safetensors_case(folder: Path) -> tuple[Path, Reader]:
    encoder = build_encoder(SMALL)
    save_huggingface(build_classifier(encoder, SMALL, 2), described(folder))
    return folder / "model.safetensors", lambda path: load_encoder(encoder, HUGGINGFACE, path)


def torch_case(folder: Path, older: bool = False) -> tuple[Path, Reader]:
    path = folder / "pytorch_model.bin"
    tensors = {"bert.a": np.ones((2, 3), np.float32), "b": np.arange(5)}
    write_torch(path, tensors, pytest.MonkeyPatch(), older)
    return path, lambda path: [tensor.read() for tensor in open_torch_file(path).values()]


def described(folder: Path) -> Path:
    write_description(
        folder, SMALL, Tokenization(Vocabulary(WORDS), 4), ["bad", "good"], dropout=0.1
    )
    (folder / "model.safetensors").touch()
    return folder


def run_case(folder: Path) -> tuple[Path, Reader]:
    path = folder / "config.yaml"
    path.write_text("# a run\ntarget_batch: 32\nprecision: float32\nlearning_rate: 2.0e-05\n")
    return path, lambda path: read_run_config(path.parent)


def labels_case(folder: Path) -> tuple[Path, Reader]:
    from bertaccum.bert.encoder_config import write_bert_config

    path = folder / "labels.json"
    path.write_text(json.dumps({"values": ["0", "1"], "names": ["bad", "good"]}))
    write_bert_config(folder / "bert_config.json", SMALL)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return path, lambda path: ModelFiles.read(path.parent)


def state_case(folder: Path) -> tuple[Path, Reader]:
    state = folder / "update-3"
    state.mkdir()
    position = {"run": "mark", "micro_batch": 8, "recompute": "none", "update": 3}
    values = {"position": position | {"best": None, "last": None}, "files": {}}
    path = state / "position.json"
    path.write_text(json.dumps(values | {"digest": json_digest(values)}))
    return path, lambda path: read_saved(path.parent, "mark")


CASES = {
    "csv": csv_case,
    "tsv": tsv_case,
    "quoted": quoted_case,
    "packed": packed_case,
    "zipped table": zipped_table_case,
    "json lines": json_lines_case,
    "utf-16": utf_16_case,
    "parquet": parquet_case,
    "weighted": weighted_case,
    "conll": partial(tagged_case, ending="conll", sentence=CONLL),
    "lists of tags": partial(tagged_case, ending="jsonl", sentence=LISTS),
    "lists of tags in a table": partial(tagged_case, ending="csv", sentence=CELLS),
    "spans": partial(tagged_case, ending="jsonl", sentence=SPANS),
    "label studio": partial(tagged_case, ending="jsonl", sentence=LABEL_STUDIO),
    "prodigy": partial(tagged_case, ending="jsonl", sentence=PRODIGY),
    "corpus": partial(corpus_case, name="a.txt", content=DOCUMENTS.encode()),
    "packed corpus": partial(corpus_case, name="a.gz", content=gzip.compress(DOCUMENTS.encode())),
    "corpus of records": partial(corpus_case, name="a.jsonl", content=b'{"text": "\\u00e9"}\n' * 3),
    "glue": glue_case,
    "classes": classes_case,
    "config": config_case,
    "vocabulary": vocabulary_case,
    "bert_config": dimensions_case,
    "zip": zip_case,
    "huggingface_config": huggingface_config_case,
    "tokenizer": tokenizer_case,
    "tokenizer settings": tokenizer_settings_case,
    "safetensors": safetensors_case,
    "torch": torch_case,
    "older torch": partial(torch_case, older=True),
    "run": run_case,
    "labels": labels_case,
    "state": state_case,
}


def attempt(read: Reader, path: Path) -> None:
    """Read a file; any error must be one line that names the file, with exit code 2."""
    try:
        read(path)
    except BertAccumError as error:
        assert error.exit_code == 2
        assert "\n" not in str(error)
        assert path.name in str(error) or path.parent.name in str(error)
    except click.UsageError as error:
        assert error.exit_code == 2


# The inputs are always the same, unless `make fuzz` asks for other and more ones.
MANY = int(os.environ.get("BERTACCUM_FUZZ", "250"))


def searching(examples: int) -> settings:
    return settings(
        max_examples=examples,
        suppress_health_check=list(HealthCheck),
        derandomize="BERTACCUM_FUZZ" not in os.environ,
        database=None,
    )


def hammer(case: str, folder: Path, examples: int) -> None:
    path, read = CASES[case](folder)
    good = path.read_bytes()
    read(path)  # The undamaged file must be readable.

    @searching(examples)
    @given(st.one_of(st.lists(EDIT, min_size=1, max_size=6), st.binary(max_size=200)))
    def test(harm: list[tuple[str, float, int, bytes]] | bytes) -> None:
        path.write_bytes(harm if isinstance(harm, bytes) else mutated(good, harm))
        attempt(read, path)

    test()


@pytest.mark.parametrize("case", CASES)
def test_damaged_file_gives_one_error_line(case: str, tmp_path: Path) -> None:
    hammer(case, tmp_path, 60)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_many_damaged_files_give_one_error_line_each(case: str, tmp_path: Path) -> None:
    hammer(case, tmp_path, MANY)


@pytest.mark.parametrize("examples", [300, pytest.param(5 * MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_tables_of_any_cells_are_read_alike(examples: int, name: str, tmp_path: Path) -> None:
    @searching(examples)
    @given(st.lists(st.sampled_from(CELLS), max_size=40))
    def test(cells: list[str]) -> None:
        (tmp_path / name).write_bytes("".join(cells).encode())
        attempt(read_user_table, tmp_path / name)

    test()


@pytest.mark.parametrize("examples", [40, pytest.param(MANY, marks=pytest.mark.slow)])
def test_damaged_checkpoint_gives_one_error_line(examples: int, tmp_path: Path) -> None:
    """TensorFlow reads checkpoints in native code, so a crash would end the test process."""
    encoder = build_encoder(SMALL)
    prefix = tmp_path / "bert_model.ckpt"
    write_google_checkpoint(encoder, prefix)
    files = sorted(tmp_path.glob("bert_model.ckpt.*"))
    good = {path: path.read_bytes() for path in files}
    assert len(files) == 2

    @searching(examples)
    @given(st.sampled_from(files), st.lists(EDIT, min_size=1, max_size=4))
    def test(path: Path, edits: list[tuple[str, float, int, bytes]]) -> None:
        path.write_bytes(mutated(good[path], edits))
        before = [np.array(w) for w in encoder.get_weights()]
        try:
            load_encoder(encoder, GOOGLE, prefix)
        except BertAccumError as error:
            assert error.exit_code == 2 and "bert_model.ckpt" in str(error)
        finally:
            path.write_bytes(good[path])
            encoder.set_weights(before)

    test()
