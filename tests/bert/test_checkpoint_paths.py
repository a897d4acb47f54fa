"""A checkpoint is found by each path that people pass for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf
from small import TINY, Notes

from bertaccum.bert.checkpoint_files import is_run, plain_path
from bertaccum.bert.encoder_config import write_bert_config
from bertaccum.bert.google_checkpoint import GOOGLE, plain_variables
from bertaccum.bert.model_finder import find_model
from bertaccum.bert.tensor_files import plain_names
from bertaccum.bert.vocabulary import SPECIAL_TOKENS
from bertaccum.errors import InputError
from bertaccum.options.commands import TrainConfig
from bertaccum.training.resume import resolved_config

DATA = "data-00000-of-00001"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Return a folder with the files of two checkpoints; these tests do not read the weights."""
    folder = tmp_path / "release"
    folder.mkdir()
    for prefix in ("bert_model.ckpt", "model.ckpt-9"):
        for suffix in ("index", "meta", DATA):
            (folder / f"{prefix}.{suffix}").touch()
    write_bert_config(folder / "bert_config.json", TINY)
    words = [*SPECIAL_TOKENS, *(f"word{number}" for number in range(TINY.vocab_size - 5))]
    (folder / "vocab.txt").write_text("\n".join(words))
    return folder


def found(path: Path) -> Path | None:
    config = TrainConfig(init_checkpoint=str(path), max_seq_length=8)
    source = find_model(config, Notes())
    if source.format is GOOGLE:  # A resumed run names the same checkpoint.
        again = resolved_config(config, "any").init_checkpoint
        resumed = TrainConfig(init_checkpoint=again, max_seq_length=8)
        assert find_model(resumed, Notes()).checkpoint == source.checkpoint
    return source.checkpoint


@pytest.mark.parametrize(
    ("named", "prefix"),
    [
        *((f"bert_model.ckpt.{suffix}", "bert_model.ckpt") for suffix in ("index", "meta", DATA)),
        *((f"model.ckpt-9.{suffix}", "model.ckpt-9") for suffix in ("index", "meta", DATA)),
        ("model.ckpt-9", "model.ckpt-9"),
        ("bert_config.json", "bert_model.ckpt"),
        ("vocab.txt", "bert_model.ckpt"),
        ("bert_model.ckpt.data-00001-of-00002", "bert_model.ckpt"),
    ],
)
def test_files_of_a_checkpoint_select_it(release: Path, named: str, prefix: str) -> None:
    assert found(release / named) == release / prefix
    if named.startswith(prefix):
        config = TrainConfig(init_checkpoint=str(release / named))
        assert resolved_config(config, "any").init_checkpoint == str(release / prefix)


@pytest.mark.parametrize(
    ("named", "others"),
    [
        ("pytorch_model.bin", ["model.safetensors"]),
        ("pytorch_model.bin", ["model.safetensors.index.json"]),
        ("model.safetensors.index.json", ["model.safetensors"]),
        ("pytorch_model-00001-of-00002.bin", ["model.safetensors", "pytorch_model.bin.index.json"]),
    ],
)
def test_weights_beside_those_that_are_read_are_refused(
    tmp_path: Path, named: str, others: list[str]
) -> None:
    for name in (named, *others):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=f"{named}.* is not read, because {others[0]} is in the"):
        plain_path(str(tmp_path / named))
    for name in (tmp_path, tmp_path / others[0]):
        assert plain_path(str(name)) == str(tmp_path)
    (tmp_path / others[0]).unlink()
    assert plain_path(str(tmp_path / named)) == str(tmp_path)


@pytest.mark.parametrize("told", ["model.ckpt-7", "/there/on another machine/model.ckpt-7"])
def test_output_folder_of_run_classifier_has_its_latest_checkpoint(
    release: Path, told: str
) -> None:
    (release / "bert_model.ckpt.index").unlink()
    assert found(release) == release / "model.ckpt-9"  # The only one.
    (release / "model.ckpt-7.index").touch()
    with pytest.raises(InputError, match=r"has the checkpoints model.ckpt-7, model.ckpt-9; pass"):
        found(release)
    (release / "checkpoint").write_text(
        f'model_checkpoint_path: "{told}"\nall_model_checkpoint_paths: "model.ckpt-9"\n'
    )
    assert found(release) == found(release / "checkpoint") == release / "model.ckpt-7"
    (release / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-5"\n')
    with pytest.raises(InputError, match="has the checkpoints"):
        found(release)


def test_configuration_of_transformers_is_no_checkpoint(release: Path) -> None:
    """Beside Google's files, it does not make a folder one of Hugging Face."""
    (release / "config.json").write_text("{}")
    (release / "bert_model.ckpt.index").unlink()
    assert found(release) == release / "model.ckpt-9"


def test_files_of_a_run_and_of_a_folder_select_it(tmp_path: Path) -> None:
    run, folder = tmp_path / "run", tmp_path / "theirs"
    (run / "best").mkdir(parents=True)
    folder.mkdir()
    files = ["model.ckpt.index", f"model.ckpt.{DATA}", "labels.json", "vocab.txt"]
    for path in (run / "config.yaml", *(run / "best" / name for name in files)):
        path.touch()
    for path in (run, run / "config.yaml", run / "best", run / "best/model.ckpt"):
        assert plain_path(str(path)) == str(run)
    assert {plain_path(str(run / "best" / name)) for name in files} == {str(run)}
    names = ["config.json", "model.safetensors", "pytorch_model.bin", "tf_model.h5"]
    names += ["model.safetensors.index.json", "model-00001-of-00002.safetensors", "tokenizer.json"]
    for name in names:
        (folder / name).touch()
        assert plain_path(str(folder / name)) == str(folder)
        (folder / name).unlink()
    for name in ("bert-small", "none", "absent/model", str(folder), "."):
        assert plain_path(name) == name


@pytest.mark.parametrize(
    ("names", "plain"),
    [
        (["module/bert/x", "module/output_bias", "step"], ["bert/x", "output_bias", "step"]),
        (["bert/x", "output_bias"], ["bert/x", "output_bias"]),
        (["a/bert/x", "b/bert/x"], ["a/bert/x", "b/bert/x"]),  # Two encoders.
        (["bert/x", "ema/bert/x"], ["bert/x", "ema/bert/x"]),
    ],
)
def test_prefixes_of_variables_are_stripped_if_one_encoder_is_found(
    tmp_path: Path, names: list[str], plain: list[str]
) -> None:
    full = [name.replace("bert/x", "bert/embeddings/word_embeddings") for name in names]
    expected = [name.replace("bert/x", "bert/embeddings/word_embeddings") for name in plain]
    assert list(plain_variables([*full, f"{full[0]}/adam_m"]).values())[:-1] == expected
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "model.ckpt"),
        tensor_names=full,
        shape_and_slices=[""] * len(full),
        tensors=[tf.ones([2, 3])] * len(full),
    )
    tensors = GOOGLE.tensors(tmp_path / "model.ckpt")
    assert ("word_embeddings/embeddings" in tensors) == (expected[0].startswith("bert/"))


def test_names_that_would_coincide_are_kept() -> None:
    names = ["bert.embeddings.word_embeddings.weight", "a.w", "_orig_mod.a.w"]
    assert plain_names(names) == {name: name.removeprefix("bert.") for name in names}


def test_folders_of_other_programs_are_not_taken_for_runs(tmp_path: Path) -> None:
    best = tmp_path / "experiment/best"
    best.mkdir(parents=True)
    (best.parent / "config.yaml").write_text("lr: 1\n")
    assert plain_path(str(best)) == str(best)
    (best / "model.ckpt.index").touch()
    assert plain_path(str(best)) == str(best.parent)


@pytest.mark.parametrize("name", ["config.json", "bert_config.json", "adapter_config.json"])
def test_model_with_a_config_of_another_program_is_no_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.yaml").write_text("lr: 1\n")
    assert is_run(tmp_path)
    (tmp_path / name).write_text("{}")
    assert not is_run(tmp_path)
