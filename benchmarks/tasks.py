"""Compares every kind of task with Hugging Face Trainer: test scores, calibration and updates.

    make build/peers/environments/huggingface
    python benchmarks/tasks.py scores        # 100 minutes on 2 cores
    python benchmarks/tasks.py calibration   # 30 minutes
    python benchmarks/tasks.py updates       # 5 minutes

All parts train BERT-Tiny from a pretrained checkpoint on real data with target batch 32. Both
programs start from the same weights, head included, and take the same rows, in the same order.
`scores` trains with three seeds, or with more where the scores vary much, and reports the test
scores after the last update. `calibration` evaluates our models before and after
`eval --calibrate`. `updates` trains for ten updates without dropout, and compares the weights that
the programs have trained. Finished trainings are kept in the output folder and not repeated. Each
part writes tasks-<part>.json and prints a Markdown table.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

from task_data import EMOTIONS, FEW_POSITIVES, IMDB, NCBI, RELATEDNESS, SICK, WNUT, YELP
from task_scores import FITTED
from task_trainings import (
    CALIBRATED,
    Case,
    Place,
    few_of_ours,
    few_of_peer,
    our_result,
    peer_result,
)
from task_weights import difference, trained_weights
from tools import Results, run_part, spread, table

HF, OURS = "Hugging Face Trainer", "bertaccum"
SINGLE = ("accuracy", "macro_f1")
F1 = ("micro_f1", "macro_f1")
FITTED_F1 = tuple(name + FITTED for name in F1)
ECE = "expected_calibration_error"

SICK_CASE = Case("SICK entailment", SICK, SINGLE, 4)
SCORES = Case("SICK relatedness", RELATEDNESS, ("pearson", "spearman", "mse"), 4, seeds=12)
NO_DROPOUT = replace(SCORES, name=f"{SCORES.name}, no dropout", seeds=3, dropout=0.0)
TAGS = Case("GoEmotions", EMOTIONS, (*F1, "average_precision", *FITTED_F1), 8, 1e-3, seeds=6)
RARE = Case("Yelp, 5 % positive", FEW_POSITIVES, SINGLE, 6)
WEIGHTED = replace(RARE, name=f"{RARE.name}, balanced weights", weighted=True)
ENTITIES = ("entity_f1", "accuracy")
NAMES = Case("WNUT-17, names", WNUT, ENTITIES, 6, 1e-3, seeds=6)
DISEASES = Case("NCBI disease", NCBI, ENTITIES, 4, 1e-3)
CASES = [SICK_CASE, SCORES, NO_DROPOUT, TAGS, RARE, WEIGHTED, NAMES, DISEASES]
FITTED_TO_DEV = [
    SICK_CASE,
    TAGS,
    RARE,
    Case("Yelp", YELP, SINGLE, 3),
    Case("IMDB, 2,000 rows", IMDB, SINGLE, 3),
]


def scores(shared: Path, out: Path) -> tuple[Results, str]:
    """Train both programs with every seed, and compare their test scores."""
    results, rows = [], []
    for case in CASES:
        place = Place(shared, out, case)
        found = {
            side: [result(place, seed) for seed in range(case.seeds)]
            for side, result in ((HF, peer_result), (OURS, our_result))
        }
        for metric in case.metrics:
            values = {side: [r[metric] for r in runs] for side, runs in found.items()}
            results.append({"case": case.name, "metric": metric, **values})
            rows.append(
                [case.name, metric, case.seeds, *map(spread, values.values()), apart(values)]
            )
    return results, table(["data", "metric", "seeds", HF, OURS, "difference"], rows)


def apart(values: dict[str, list[float]]) -> str:
    """Return the difference of the means, and how many standard errors of Trainer's mean it is."""
    ours, theirs = (statistics.mean(values[side]) for side in (OURS, HF))
    error = statistics.stdev(values[HF]) / len(values[HF]) ** 0.5
    return f"{ours - theirs:+.4f} ({(ours - theirs) / error:+.1f} SE)"


def calibration(shared: Path, out: Path) -> tuple[Results, str]:
    """Compare the calibration error and the other scores before and after `--calibrate`."""
    results, rows = [], []
    for case in FITTED_TO_DEV:
        place = Place(shared, out, case)
        names = [name for name in case.metrics if name not in FITTED_F1]
        for seed in range(3):
            found = our_result(place, seed)
            before, after = found[ECE], found[ECE + CALIBRATED]
            same = all(found[name] == found[name + CALIBRATED] for name in names)
            results.append({"case": case.name, "seed": seed, "same": same, ECE: [before, after]})
            cells = [f"{before:.4f}", f"{after:.4f}", "same" if same else "changed"]
            rows.append([case.name, seed, *cells])
    heads = ["data", "seed", "calibration error", "after `--calibrate`", "other scores"]
    return results, table(heads, rows)


# Trainings of ten updates with Trainer; the first is the reference. Like Keras, they add epsilon
# before the bias correction, unless the name says otherwise.
KERAS = {"keras_epsilon": True}
REFERENCE = "Trainer 1 x 32"
PEERS = {
    REFERENCE: KERAS,
    "Trainer 4 x 8": KERAS | {"steps": 4},
    "Trainer 4 x 8, divided": KERAS | {"steps": 4, "divide": True},
    "Trainer 1 x 32, PyTorch's epsilon": {},
}
BY_ITEMS = {
    "Trainer 1 x 32, by items": KERAS | {"loss": "function"},
    "Trainer 4 x 8, by items": KERAS | {"loss": "function", "steps": 4},
}
COMPARED = [
    *((case, PEERS) for case in (SICK_CASE, SCORES, TAGS, NAMES)),
    (WEIGHTED, PEERS | BY_ITEMS),
]
CUTS = {"bertaccum 1 x 32": 32, "bertaccum 4 x 8": 8}


def updates(shared: Path, out: Path) -> tuple[Results, str]:
    """Compare the weights after ten updates with those of Trainer and one whole micro-batch."""
    results, rows = [], []
    for case, trainings in COMPARED:
        place = Place(shared, out, replace(case, dropout=0.0))
        run = place.run("updates")
        weights = {name: few_of_ours(place, run / name, size) for name, size in CUTS.items()}
        weights |= {name: few_of_peer(place, run / name, told) for name, told in trainings.items()}
        initial, reference = trained_weights(run / REFERENCE / "initial"), weights.pop(REFERENCE)
        for name, own in weights.items():
            apart = difference(own, reference, initial)
            results.append({"case": case.name, "training": name, **apart})
            rows.append([case.name, name, f"{apart['largest']:.1e}", f"{apart['relative']:.1e}"])
    return results, table(
        ["data", "training", "largest difference", "relative to the change"], rows
    )


if __name__ == "__main__":
    parts = {"scores": scores, "calibration": calibration, "updates": updates}
    run_part(__doc__.splitlines()[0], "tasks", parts)
