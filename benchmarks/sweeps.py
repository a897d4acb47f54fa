"""Compares successive halving with a plain grid search.

    python benchmarks/sweeps.py cola --shared ../shared        # 15 minutes on 2 cores

`cola` trains a pretrained BERT-Tiny on CoLA with all combinations of two target batches, three
learning rates and two numbers of epochs, with three seeds each: once in full, once by halving. The
same seeds give the same runs, so the two differ only in the runs that halving ends early.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tools import Results, run_part, table

# A model this small needs higher rates than those of the BERT paper.
GRID = {"target_batch": [16, 32], "learning_rate": [1e-3, 3e-4, 1e-4], "epochs": [2, 4]}
SEEDS = 3


def cola(shared: Path, out: Path) -> tuple[Results, str]:
    data, grid = out / "cola", out / "grid.yaml"
    data.mkdir(exist_ok=True)
    for split, name in (("train", "in_domain_train"), ("dev", "in_domain_dev")):
        shutil.copyfile(shared / f"data/cola/{name}.tsv", data / f"{split}.tsv")
    grid.write_text(json.dumps(GRID))
    found = {}
    for name, more in (("grid", []), ("halving", ["--halving"])):
        runs = out / f"runs-{name}"
        shutil.rmtree(runs, ignore_errors=True)
        command = [sys.executable, "-m", "bertaccum", "sweep", "--grid", grid, "--out", runs]
        command += ["--config", Path(__file__).parents[1] / "configs/cola.yaml", "--data", data]
        command += ["--init-checkpoint", shared / "pretrained/bert_tiny_reviews"]
        command += ["--model", "bert-tiny", "--micro-batch", "16", "--seeds", SEEDS]
        begin = time.perf_counter()
        done = subprocess.run(
            [*map(str, command), "--json", *more], check=True, stdout=subprocess.PIPE
        )
        found[name] = json.loads(done.stdout) | {"wall": time.perf_counter() - begin}
    return [{"name": name, **values} for name, values in found.items()], shown(found)


def shown(found: dict[str, Any]) -> str:
    cells = {
        name: {json.dumps(c["options"]): c for c in values["cells"]}
        for name, values in found.items()
    }
    rows = []
    for key, cell in cells["grid"].items():
        halved = cells["halving"][key]
        rows.append(
            [
                *cell["options"].values(),
                f"{cell['mean']:.3f} ± {cell['std']:.3f}",
                f"{halved['mean']:.3f}",
                f"{halved['fraction']:.0%}",
            ]
        )
    text = table([*GRID, "grid", "halving", "trained to"], rows)
    for name, values in found.items():
        text += (
            f"\n\n{name}: best {values['best']}, {values['updates']:,} of"
            f" {values['grid_updates']:,} updates, {values['wall']:.0f} s"
        )
    return text


if __name__ == "__main__":
    run_part(__doc__.partition("\n")[0], "sweeps", {"cola": cola})
