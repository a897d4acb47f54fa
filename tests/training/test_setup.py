"""Options reach what a run is made of: its tokens, its objective, its masks and its updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from teaching import Here, make_student
from test_pretraining import options_of as pretraining_options
from test_pretraining import write_texts
from test_task_updates import CASES, options_of, write_case

from bertaccum.bert.tokenization import tokenization_of
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.data.run_inputs import tokenizations
from bertaccum.options.commands import TrainConfig
from bertaccum.options.pretraining import PretrainConfig
from bertaccum.options.task_names import TOKEN_CLASSIFICATION
from bertaccum.system.progress import silent
from bertaccum.tasks.distilled import Distilled
from bertaccum.training import teacher_logits
from bertaccum.training.events import Updated
from bertaccum.training.setup import Setup, connect, set_up
from bertaccum.training.updater import Updater

VOCABULARY = Vocabulary([*SPECIAL_TOKENS])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))


def setup_of(config: TrainConfig) -> Setup:
    return set_up(config, connect(config, None, silent))


@pytest.mark.parametrize(
    ("options", "fraction"),
    [
        ({"truncate": "head"}, 1.0),
        ({"truncate": "tail"}, 0.0),
        ({"truncate": "head-tail", "head_fraction": 0.75}, 0.75),
    ],
)
def test_truncate_decides_which_tokens_are_kept(options: dict[str, Any], fraction: float) -> None:
    assert tokenization_of(VOCABULARY, TrainConfig(**options)).head_fraction == fraction


@pytest.mark.parametrize("pieces", ["first", "all"])
def test_label_pieces_apply_to_train_tsv_but_not_to_dev_tsv(pieces: str) -> None:
    config = TrainConfig(task=TOKEN_CLASSIFICATION, label_pieces=pieces)
    assert [one.words for one in tokenizations(VOCABULARY, config)] == [pieces, "first"]


def test_objective_has_the_values_of_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher_logits, "ChildProcess", Here)
    options = {"label_smoothing": 0.2, "teacher_weight": 0.25, "temperature": 4.0}
    objective = setup_of(TrainConfig(**make_student(tmp_path, "single", **options))).objective
    assert isinstance(objective, Distilled)
    found = objective.task.smoothing, objective.weight, objective.temperature
    assert found == (0.2, 0.25, 4.0)


def test_whole_words_are_masked_only_if_asked_for(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts")
    for whole in (True, False):
        options = pretraining_options(texts, tmp_path / "run", whole_words=whole)
        masking = setup_of(PretrainConfig(**options)).masking
        assert masking is not None and masking.whole_words == whole


def test_dropout_stream_decides_the_masks_of_updates(tmp_path: Path) -> None:
    data, losses = write_case(tmp_path / "data", CASES["single"]), []
    for stream in ("example", "micro-batch"):
        options = options_of(CASES["single"], data, tmp_path / "run", dropout_stream=stream)
        updater = Updater(setup_of(TrainConfig(**options)))
        updater.start(0)
        event = updater.wait()
        updater.close()
        assert isinstance(event, Updated)
        losses.append(event.loss)
    assert losses[0] != losses[1]
