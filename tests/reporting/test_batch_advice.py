"""`bertaccum advise`: the noise scale of a run, its error, and what it says about batch sizes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from writing import write_lines, write_run

from bertaccum.cli.display.sentences import batch_advice
from bertaccum.options.commands import TrainConfig
from bertaccum.reporting.batch_advice import noise_scale, relative
from bertaccum.runs.record import whole_lines


def write_noisy_run(
    updates: int = 300, signal: float = 1.0, batch: int = 32, noise: float = 100
) -> Path:
    """Write a run whose noise is `noise` in its last third and 10 before, with a noisy signal."""
    folder, rng = write_run(Path("run"), [0.5] * updates, batch=batch), np.random.default_rng(0)
    lines = whole_lines(folder / "metrics.jsonl")
    for line in lines[1:]:
        late = line["update"] > updates * 2 / 3
        line["gradient_noise"] = (noise if late else 10) * rng.normal(1, 0.1)
        line["gradient_signal"] = signal + rng.normal(0, 0.3)
    write_lines(folder / "metrics.jsonl", lines)
    return folder


def test_advice_uses_the_last_third_of_the_run(run) -> None:
    write_noisy_run()
    found = json.loads(run("advise", "run", "--json").out)
    assert found["noise_scale"] == pytest.approx(100, rel=0.1)
    assert (found["first_update"], found["last_update"]) == (201, 300)
    # The standard error of the mean of 100 signals is 3%.
    assert 1 < found["standard_error"] < 6
    assert not found["is_bound"] and found["lowest"] < found["noise_scale"]
    shown = run("advise", "run")
    assert (shown.code, shown.err) == (0, "")
    assert "32 takes 3" in shown.out and "64 would take about 0.6" in shown.out
    assert "(updates 201 to 300)" in run("show", "run").out
    assert run("report", "run").code == 0
    assert "(updates 201 to 300)" in Path("run/report.html").read_text(encoding="utf-8")


def test_predictions_follow_the_theory() -> None:
    config = TrainConfig(target_batch=32, learning_rate=4e-5)
    same, double = (relative(config, 210, batch) for batch in (32, 64))
    assert same == {"target_batch": 32, "updates": 1, "examples": 1, "learning_rate": 4e-5}
    assert double["updates"] == pytest.approx((1 + 210 / 64) / (1 + 210 / 32))
    assert double["examples"] == pytest.approx(2 * double["updates"])
    # Far below the noise scale, the rate grows with the square root of the batch; above, it stops.
    below, above = (relative(config, scale, 128)["learning_rate"] for scale in (1e9, 1e-9))
    assert (below, above) == (pytest.approx(8e-5), pytest.approx(4e-5))


def test_a_signal_that_may_be_zero_gives_a_lower_bound(run) -> None:
    write_noisy_run(signal=0.02)
    found = json.loads(run("advise", "run", "--json").out)
    assert found["is_bound"] and found["noise_scale"] is None and found["lowest"] > 500
    assert "noise scale above" in run("advise", "run").out


@pytest.mark.parametrize("updates", [1, 20])
def test_short_runs_are_an_error(run, updates: int) -> None:
    write_noisy_run(updates)
    outcome = run("advise", "run")
    assert (outcome.code, outcome.out) == (2, "")
    counted = "0 updates" if updates == 1 else "19 updates"
    assert f"only {counted}" in outcome.err and "--noise-scale none" in outcome.err
    assert "noise scale" not in run("show", "run").out


def test_updates_that_read_all_examples_have_no_noise(run) -> None:
    write_run(Path("run"), [0.5] * 30, batch=1200)  # As many as the rows in train.tsv.
    said = run("advise", "run").err
    assert "reads all examples in each update" in said and "--target-batch" in said


@pytest.mark.parametrize("values", [{"noise": -100}, {"signal": -10}])
def test_noise_or_signal_below_zero_gives_no_advice(run, values: dict[str, float]) -> None:
    """Estimates may be negative, because they are differences."""
    write_noisy_run(**values)
    outcome = run("advise", "run")
    assert (outcome.code, outcome.out) == (2, "")
    assert "noise or signal that is not above zero" in outcome.err
    assert outcome.err.count("\n") == 1
    assert "noise scale" not in run("show", "run").out
    assert run("report", "run").code == 0


def test_standard_error_covers_the_truth() -> None:
    rng, hits = np.random.default_rng(0), 0
    for _ in range(200):
        # Neighboring signals share their noise, as products with the same earlier gradients do.
        shared = np.convolve(rng.normal(size=129), np.ones(10) / 10**0.5, "valid")
        pairs = zip(rng.normal(50, 5, size=120), 1 + 0.3 * shared, strict=True)
        lines = [
            {"update": n, "gradient_noise": t, "gradient_signal": s}
            for n, (t, s) in enumerate(pairs, 1)
        ]
        found = noise_scale(lines * 3)
        hits += abs(found.noise_scale - 50) < 2 * found.standard_error
    assert hits > 150


@pytest.mark.parametrize(
    ("scale", "said"),
    [(8.0, "8 would take about 0.40 of the examples"), (0.1, "1 would take"), (32.0, None)],
)
def test_smaller_batch_is_advised_below_the_target_batch(scale: float, said: str | None) -> None:
    """With scale 8, a batch of 32 takes 5 times the fewest examples, and a batch of 8 twice."""
    batches = [{"target_batch": 64, "updates": 0.5}]
    known = {"noise_scale": scale, "lowest": scale / 2, "standard_error": 1.0, "is_bound": False}
    known |= {"first_update": 1, "last_update": 9, "target_batch": 32, "batches": batches}
    sentence = batch_advice(known)
    assert said in sentence if said else "better choice" not in sentence
    unknown = batch_advice(known | {"noise_scale": None, "is_bound": True})
    assert "better choice" not in unknown
