"""`train --find-lr`: the suggestion, its curve, and what it leaves untouched."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import write_small_task

import bertaccum
from bertaccum.cli.program import main
from bertaccum.errors import ConfigError, RunError
from bertaccum.options.commands import TrainConfig
from bertaccum.system.progress import silent
from bertaccum.training import rate_finder
from bertaccum.training.events import Updated
from bertaccum.training.rate_finder import HIGHEST, LOWEST, find_rate, suggested


def curve(low: float, high: float, noise: float = 0.02) -> tuple[np.ndarray, np.ndarray]:
    """Return rates and losses that fall from rate `low` on, and rise from rate `high` on."""
    rates = np.geomspace(LOWEST, HIGHEST, 100)
    falls = 0.5 * np.clip(np.log(rates / low) / np.log(high / low), 0, 1)
    rises = 2 * np.clip(np.log10(rates / high), 0, None)
    # The loss of an update is measured before its rate has had any effect.
    losses = np.append(0.7, (0.7 - falls + rises)[:-1])
    return rates, losses + np.random.default_rng(0).normal(0, noise, 100)


@pytest.mark.parametrize(("low", "high"), [(1e-5, 1e-3), (1e-4, 1e-2)])
def test_suggestion_is_a_third_of_the_rate_with_the_lowest_loss(low: float, high: float) -> None:
    found = suggested(*curve(low, high))
    assert found["lowest_loss_at"] == pytest.approx(high, rel=0.5)
    assert found["learning_rate"] == pytest.approx(found["lowest_loss_at"] / 3)
    assert found["has_risen"]


def test_no_suggestion_if_the_loss_never_falls() -> None:
    rates, losses = curve(1, 2)
    assert suggested(rates, losses)["learning_rate"] is None
    assert suggested(rates, np.append(losses[:40], [np.nan] * 60))["learning_rate"] is None


def test_loss_that_only_falls_is_said_to_do_so() -> None:
    found = suggested(*curve(1e-4, HIGHEST))
    assert found["learning_rate"] == pytest.approx(HIGHEST / 3, rel=0.5) and not found["has_risen"]


def test_rise_in_the_last_updates_is_seen() -> None:
    rates, losses = curve(1e-4, HIGHEST)
    losses[-4:] += [1, 2, 3, 4]
    assert suggested(rates, losses)["has_risen"]


def test_divergence_ends_the_curve() -> None:
    rates, losses = curve(1e-5, 1e-3)
    losses[70:] = np.nan
    assert suggested(rates, losses)["lowest_loss_at"] == pytest.approx(1e-3, rel=0.5)


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    encoder = write_small_task(tmp_path / "data", train=64, dev=8)
    shape = {"target_batch": 8, "max_seq_length": 16, "max_updates": 30, "dropout": 0.0}
    places = {"data": str(tmp_path / "data"), "out": str(tmp_path / "found")}
    return places | shape | {"bert_config": str(encoder), "init_checkpoint": "none"}


def test_rates_rise_and_the_losses_do_not_depend_on_the_micro_batch_and_no_run_starts(
    options: dict[str, Any],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command prints the suggestion."""
    whole = bertaccum.find_learning_rate(**options, micro_batch=8)
    folder = tmp_path / "found"
    assert sorted(p.name for p in folder.iterdir()) == [
        f"learning_rate.{kind}" for kind in ("json", "png", "svg")
    ]
    assert whole["figures"] == [str(folder / f"learning_rate.{kind}") for kind in ("png", "svg")]
    updates = len(whole["rates"])
    np.testing.assert_allclose(
        whole["rates"], np.geomspace(LOWEST, HIGHEST, 30)[:updates], rtol=1e-5
    )
    monkeypatch.chdir(Path(options["data"]).parent)
    flags = [
        part
        for name, value in options.items()
        if name != "out"
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    with pytest.raises(SystemExit) as done:
        main(["train", "--find-lr", "--micro-batch", "3", *flags])
    assert not done.value.code
    printed = capfd.readouterr().out
    assert "learning rate" in printed and "1.0e-06" in printed
    (folder,) = Path("runs").iterdir()
    assert folder.name.endswith("-learning-rate")
    cut = json.loads((folder / "learning_rate.json").read_text())
    assert cut["target_batch"] == 8
    np.testing.assert_allclose(cut["losses"], whole["losses"], atol=1e-4)
    assert cut["learning_rate"] == whole["learning_rate"]
    with pytest.raises(SystemExit) as done:
        main(["train", "--find-lr", "--seeds", "2", *flags])
    assert done.value.code == 2
    assert "--find-lr and --seeds contradict each other" in capfd.readouterr().err


def test_losses_that_are_never_finite_are_an_error(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: Any) -> Iterator[Updated]:
        for number in itertools.count(1):
            fields = {field.name: 1 for field in dataclasses.fields(Updated)}
            yield Updated(**fields | {"update": number, "loss": math.nan, "learning_rate": 1e-6})

    monkeypatch.setattr(rate_finder, "_updates", train)
    with pytest.raises(RunError, match="not finite in any update"):
        find_rate(TrainConfig(**options), None, silent)
    assert not Path(options["out"]).exists()


def test_too_few_updates_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="`max_updates` 10 are too few"):
        bertaccum.find_learning_rate(**options | {"max_updates": 10})
    assert not Path(options["out"]).exists()
