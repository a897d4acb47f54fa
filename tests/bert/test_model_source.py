"""Options select the right model, and contradictory options are refused."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from small import Notes

from bertaccum.bert.download import MEMBERS
from bertaccum.bert.encoder_config import read_bert_config, write_bert_config
from bertaccum.bert.model_finder import find_dimensions, find_model
from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.errors import BertAccumError, ConfigError, InputError
from bertaccum.options.commands import TrainConfig
from bertaccum.training.resume import resolved_config

WORDS = [*SPECIAL_TOKENS, "good", "bad"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a folder that looks like a release; these tests do not read its weights."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    config = PRESET_CONFIGS["bert-tiny"].__dict__ | {"vocab_size": len(WORDS), "extra": 1}
    (folder / "bert_config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    for name in MEMBERS[2:]:
        (folder / name).touch()
    return folder


def find(**options: object) -> ModelSource:
    return find_model(TrainConfig(**options), lambda *_: None)  # type: ignore[arg-type]


def test_folder_provides_dimensions_and_vocabulary(checkpoint: Path) -> None:
    source = find(init_checkpoint=str(checkpoint))
    assert source.encoder.num_hidden_layers == 2
    assert source.vocabulary == Vocabulary(WORDS)
    assert source.checkpoint == checkpoint / "bert_model.ckpt"
    assert source.identity_file == checkpoint / "bert_model.ckpt.index"
    # Weights in Hugging Face's format do not take precedence over Google's checkpoint.
    (checkpoint / "model.safetensors").touch()
    assert find(init_checkpoint=str(checkpoint)) == source
    # A named prefix takes precedence over both.
    (checkpoint / "model.ckpt-9.index").touch()
    (checkpoint / "bert_model.ckpt.index").unlink()
    named = find(init_checkpoint=str(checkpoint / "model.ckpt-9"))
    assert named.checkpoint == checkpoint / "model.ckpt-9"


def test_checkpoint_prefix_selects_its_folder(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = find(init_checkpoint=str(checkpoint))
    assert find(init_checkpoint=str(checkpoint / "bert_model.ckpt")) == whole
    monkeypatch.chdir(checkpoint.parent)
    config = TrainConfig(init_checkpoint="./checkpoint/bert_model.ckpt")
    prefix = str(checkpoint / "bert_model.ckpt")
    assert resolved_config(config, "any").init_checkpoint == prefix
    (checkpoint / "bert_model.ckpt.index").unlink()
    check(
        InputError,
        "checkpoint: has no bert_model.ckpt.index",
        init_checkpoint=config.init_checkpoint,
    )


def test_zip_equals_its_folder(checkpoint: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as bundle:
        for name in MEMBERS:
            bundle.write(checkpoint / name, name)
    source = find(init_checkpoint=str(tmp_path / "model.zip"))
    assert source.encoder == find(init_checkpoint=str(checkpoint)).encoder


def test_damaged_files_of_a_zip_are_unpacked_again(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as bundle:
        for name in MEMBERS:
            bundle.write(checkpoint / name, name)
    source = find(init_checkpoint=str(tmp_path / "model.zip"))
    assert source.checkpoint is not None
    vocabulary = source.checkpoint.parent / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("good", "gold"))
    assert find(init_checkpoint=str(tmp_path / "model.zip")) == source
    assert "good" in vocabulary.read_text()


def test_plan_does_not_download_a_damaged_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BERTACCUM_CHECKPOINT_URL", "http://127.0.0.1:9/none")
    (tmp_path / "cache/checkpoints/bert-tiny").mkdir(parents=True)
    progress = Notes()
    source = find_dimensions(TrainConfig(model="bert-tiny"), progress)
    assert (source.name, source.vocabulary) == ("bert-tiny", None)
    assert "checkpoints/bert-tiny has no recorded digest" in progress.lines[0]


@pytest.mark.parametrize(
    ("released", "preset"),
    [
        ("uncased_L-4_H-512_A-8", "bert-small"),
        ("uncased_L-6_H-512_A-8", "uncased_L-6_H-512_A-8"),
        ("cased_L-12_H-768_A-12", "bert-base-cased"),
    ],
)
def test_names_of_googles_files_select_presets(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, released: str, preset: str
) -> None:
    monkeypatch.chdir(checkpoint.parent)
    for option in ("model", "init_checkpoint"):
        config = TrainConfig(**{option: released})  # type: ignore[arg-type]
        assert find_dimensions(config, lambda *_: None).name == preset
        assert resolved_config(config, "any").init_checkpoint == preset
    if preset != released:  # A folder of that name takes precedence.
        assert find(init_checkpoint=str(checkpoint.rename(released))).checkpoint is not None


def test_random_weights_have_the_size_of_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    source = find(init_checkpoint="none", model="bert-mini", data=str(tmp_path))
    assert (source.checkpoint, source.encoder.vocab_size) == (None, len(WORDS))
    assert source.encoder.hidden_size == 256


def test_default_model_is_bert_small(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    source = find(init_checkpoint="none", data=str(tmp_path))
    assert (source.name, source.encoder.hidden_size) == ("bert-small", 512)


def test_configuration_file_sets_the_dimensions(checkpoint: Path, tmp_path: Path) -> None:
    config = json.loads((checkpoint / "bert_config.json").read_text()) | {"num_hidden_layers": 5}
    (tmp_path / "mine.json").write_text(json.dumps(config))
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    source = find(
        bert_config=str(tmp_path / "mine.json"), init_checkpoint="none", data=str(tmp_path)
    )
    assert source.encoder.num_hidden_layers == 5


def test_vocabulary_is_that_of_the_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    others = [*SPECIAL_TOKENS, "bad", "good"]
    (tmp_path / "vocab.txt").write_text("\n".join(others))
    assert find(init_checkpoint=str(checkpoint), data=str(tmp_path)).vocabulary == Vocabulary(WORDS)
    (checkpoint / "vocab.txt").unlink()
    check(
        ConfigError,
        "no vocab.txt in .*checkpoint",
        init_checkpoint=str(checkpoint),
        data=str(tmp_path),
    )


def check(error: type[BertAccumError], match: str, **options: object) -> None:
    with pytest.raises(error, match=match):
        find(**options)


def test_contradictory_options_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    folder = str(checkpoint)
    check(
        ConfigError,
        "hidden_size 512 versus 128, num_hidden_layers 4 versus 2",
        model="bert-small",
        init_checkpoint=folder,
    )
    (tmp_path / "short.txt").write_text("\n".join(WORDS[:-1]))
    check(
        InputError,
        "has 6 entries, but the model's vocab_size is 7",
        init_checkpoint=folder,
        vocab=str(tmp_path / "short.txt"),
    )
    check(ConfigError, "600 is above the model's 512", init_checkpoint=folder, max_seq_length=600)
    check(ConfigError, "a configuration has no weights", bert_config=folder + "/bert_config.json")
    check(InputError, "no such file or folder", init_checkpoint=str(tmp_path / "absent"))
    check(ConfigError, "pass one with `vocab`", init_checkpoint="none", data=str(tmp_path / "x"))
    other = json.loads((checkpoint / "bert_config.json").read_text()) | {"num_attention_heads": 8}
    (tmp_path / "other.json").write_text(json.dumps(other))
    check(
        ConfigError,
        "`bert_config` .* num_attention_heads 8 versus 2",
        init_checkpoint=folder,
        bert_config=str(tmp_path / "other.json"),
    )
    (checkpoint / "bert_model.ckpt.index").unlink()
    check(InputError, "has no bert_model.ckpt.index", init_checkpoint=folder)


@pytest.mark.parametrize(
    ("contents", "match"),
    [
        ("{", "not valid JSON"),
        ("[1]", "does not contain a JSON object"),
        ("{}", "has no hidden_size"),
        ({"hidden_size": "512"}, "hidden_size is '512', not a positive whole number"),
        ({"hidden_size": -1}, "not a positive whole number"),
        ({"hidden_size": True}, "not a positive whole number"),
        ({"hidden_act": "swish"}, "hidden_act is 'swish'; use one of gelu"),
        ({"num_attention_heads": 3}, "not a multiple of num_attention_heads 3"),
        ({"initializer_range": float("nan")}, r"not valid JSON \(NaN is not a finite number"),
        ({"initializer_range": 10**400}, "initializer_range is 1000.*, not a positive number"),
        ({"initializer_range": 1e300}, r"initializer_range is 1e\+300, not a positive number"),
        ('{"initializer_range": 1e999}', r"not valid JSON \(1e999 is not a finite number\)"),
        ({"hidden_size": 1_000_000}, "describes a model of .* parameters"),
        ({"num_hidden_layers": 1000}, "describes a model of 1,000 layers, more than any BERT"),
    ],
)
def test_error_names_the_invalid_key(
    tmp_path: Path, contents: str | dict[str, object], match: str
) -> None:
    path = tmp_path / "bert_config.json"
    if isinstance(contents, dict):
        write_bert_config(path, PRESET_CONFIGS["bert-tiny"])
        contents = json.dumps(json.loads(path.read_text()) | contents)
    path.write_text(contents)
    with pytest.raises(InputError, match=match):
        read_bert_config(path)
