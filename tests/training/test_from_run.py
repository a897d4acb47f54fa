"""`--init-checkpoint RUN`: training that starts from the best checkpoint of another run."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tf_keras
from small import scatter, write_small_task

from bertaccum.bert.model_finder import find_model
from bertaccum.bert.model_source import HeadMapping, ModelSource
from bertaccum.data.run_inputs import RunInputs, read_inputs
from bertaccum.errors import ConfigError, InputError
from bertaccum.inference.trained_model import load_trained
from bertaccum.options.commands import TrainConfig
from bertaccum.runs.folder import RunFolder
from bertaccum.system.files import sha256
from bertaccum.system.progress import silent
from bertaccum.tasks.head import load_run
from bertaccum.tasks.head_mapping import head_difference
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.model_files import ModelFiles
from bertaccum.training import recipe
from bertaccum.training.checkpoints import save_best
from bertaccum.training.events import Evaluated, Started
from bertaccum.training.recipe import build_model
from bertaccum.training.resume import inputs_of, resolved_config
from bertaccum.training.train import resume, train

LABELS = Labels(["0", "1"], ["bad", "good"])
BETTER = Evaluated(5, True, {"accuracy": 0.6, "loss": 0.5})


@dataclasses.dataclass
class Begun:
    """A run folder with a best checkpoint, and the model in it."""

    path: Path
    model: tf_keras.Model


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Begun:
    place = tmp_path_factory.mktemp("original")
    bert_config = write_small_task(place / "reviews", train=16, dev=4)
    folder = RunFolder(place / "runs/first.v2")
    config = TrainConfig(
        data=str(place / "reviews"),
        bert_config=str(bert_config),
        init_checkpoint="none",
        max_seq_length=16,
    )
    source = find_model(config, silent)
    folder.path.parent.mkdir()
    folder.create(config, {})
    model = scatter(build_model(config, source, 2))
    files = ModelFiles(source.encoder, source.vocabulary, LABELS)
    save_best(model, files, Evaluated(3, True, {"accuracy": 0.5, "loss": 0.6}), folder)
    return Begun(folder.path, model)


@pytest.fixture
def begun(original: Begun, tmp_path: Path) -> Begun:
    """Return a copy of the run, which a test may change, and the same model."""
    shutil.copytree(original.path.parents[1], tmp_path, dirs_exist_ok=True)
    return Begun(tmp_path / "runs" / original.path.name, original.model)


def config_of(begun: Begun, **options: Any) -> TrainConfig:
    data = str(begun.path.parents[1] / "reviews")
    return TrainConfig(data=data, init_checkpoint=str(begun.path), max_seq_length=16, **options)


def run_inputs(config: TrainConfig, labels: Labels) -> tuple[ModelSource, RunInputs]:
    source = find_model(config, silent)
    tsvs = [Path(config.data) / name for name in ("train.tsv", "dev.tsv")]
    return source, read_inputs(source, make_task(labels), tsvs, config)


def test_weights_of_a_run_that_are_not_finite_are_refused(begun: Begun) -> None:
    files = ModelFiles.read(begun.path / "best")
    evaluated = Evaluated(3, True, {"accuracy": 0.5, "loss": 0.6})
    bias = begun.model.weights[-1]
    kept = bias.numpy()
    bias.assign([0.0, np.nan])
    save_best(begun.model, files, evaluated, RunFolder(begun.path))
    bias.assign(kept)
    config = config_of(begun)
    source, inputs = run_inputs(config, LABELS)
    for load in (
        lambda: build_model(config, source, 2, inputs.head),
        lambda: load_trained(begun.path),
    ):
        with pytest.raises(InputError, match=r"model.ckpt: .*/bias contains a number that is N"):
            load()


def test_weights_that_a_run_replaces_while_they_are_loaded_are_refused(
    begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(begun)
    source, inputs = run_inputs(config, LABELS)
    bias = begun.model.weights[-1]

    def load_and_replace(*args: Any) -> None:
        load_run(*args)
        kept = bias.numpy()
        bias.assign(kept + 1)
        save_best(begun.model, ModelFiles.read(begun.path / "best"), BETTER, RunFolder(begun.path))
        bias.assign(kept)

    monkeypatch.setattr(recipe, "load_run", load_and_replace)
    with pytest.raises(InputError, match=r"model.ckpt: the run saved a better model meanwhile"):
        build_model(config, source, 2, inputs.head)


@pytest.mark.parametrize("recompute", ["none", "layer"])
def test_same_classes_load_encoder_and_head(begun: Begun, recompute: str) -> None:
    config = config_of(begun, recompute=recompute)
    source, what = run_inputs(config, LABELS)
    assert (source.name, source.of_run, what.head) == ("first.v2", True, HeadMapping([0, 1]))
    model = build_model(config, source, 2, what.head)
    for ours, theirs in zip(model.weights, begun.model.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "labels", [Labels(["0", "1"], ["ham", "spam"]), Labels(["0", "1", "2"], ["a", "b", "c"])]
)
def test_other_classes_load_the_encoder_only(begun: Begun, labels: Labels) -> None:
    config = config_of(begun)
    source, what = run_inputs(config, labels)
    assert what.head is None
    with pytest.raises(ConfigError, match=r"head of `init_checkpoint` has .* \(bad, good\), but"):
        run_inputs(dataclasses.replace(config, keep_head=True), labels)
    model = build_model(config, source, len(labels.values), what.head)
    for ours, theirs in zip(model.weights[:-2], begun.model.weights[:-2], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert np.abs(model.weights[-2]).max() < 0.1 < np.abs(begun.model.weights[-2]).max()


@pytest.mark.parametrize(
    ("labels", "rows", "differs"),
    [
        (Labels(["0", "1"], ["Good", "bad"]), [1, 0], "the order of the classes"),
        (Labels(["bad", "good"], ["bad", "good"]), [0, 1], "the spelling of the classes"),
        (dataclasses.replace(LABELS, pairs=True), [0, 1], "the number of texts of an example"),
    ],
)
def test_head_of_the_same_classes_is_kept_on_request(
    begun: Begun, labels: Labels, rows: list[int], differs: str
) -> None:
    config = config_of(begun, keep_head=True)
    source, what = run_inputs(config, labels)
    model = build_model(config, source, 2, what.head)
    *encoder, kernel, bias = (weight.numpy() for weight in begun.model.weights)
    expected = [*encoder, kernel[:, rows], bias[rows]]
    for ours, theirs in zip(model.weights, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert run_inputs(config_of(begun), labels)[1].head is None
    assert head_difference(source, labels) == differs


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"values": ["0"], "names": [], "colour": 1}',
        '{"values": [], "names": [], "task": "regression", "mean": "3"}',
        '{"values": [], "names": [], "task": "regression", "std": 0}',
    ],
)
def test_error_names_damaged_labels(begun: Begun, text: str) -> None:
    (begun.path / "best/labels.json").write_text(text)
    with pytest.raises(InputError, match=r"first\.v2: labels.json is damaged \("):
        run_inputs(config_of(begun), LABELS)


def test_inputs_include_the_digest_of_the_weights(begun: Begun) -> None:
    _, what = run_inputs(config_of(begun), LABELS)
    assert inputs_of(what)["pretrained weights"] == sha256(begun.path / "best/model.ckpt.index")


def test_link_is_resolved_when_training_starts(begun: Begun) -> None:
    latest = begun.path.parent / "latest"
    latest.symlink_to(begun.path.name)
    config = dataclasses.replace(config_of(begun), init_checkpoint=str(latest))
    source, _ = run_inputs(config, LABELS)
    latest.unlink()
    assert source.checkpoint == begun.path / "best/model.ckpt"
    latest.symlink_to(begun.path.name)
    assert resolved_config(config, source.name).init_checkpoint == str(begun.path)
    assert source.name == "first.v2"


def test_run_without_best_checkpoint_is_an_error(begun: Begun) -> None:
    (begun.path / "best").rename(begun.path / "gone")
    with pytest.raises(InputError, match=r"first.v2: this run has no best checkpoint yet; wait"):
        find_model(config_of(begun), silent)


@pytest.mark.slow
def test_training_from_a_run_can_be_resumed(begun: Begun) -> None:
    options = {"target_batch": 8, "micro_batch": 8, "max_updates": 1, "save_every": "1"}
    config = config_of(begun, out=str(begun.path.parent / "second"), **options)
    (begun.path / "best/labels.json").write_text('{"values": ["0", "1"], "names": ["0", "1"]}')
    events = list(train(config, silent))
    start = events[0]
    assert isinstance(start, Started)
    assert (start.pretrained_run, start.pretrained_head) == ("first.v2", True)
    *_, last = resume(Path(str(config.out)), {"max_updates": 2}, silent)
    assert last.summary["updates"] == 2
