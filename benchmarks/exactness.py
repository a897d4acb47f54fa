"""Measures how far accumulation is from one large batch, with every tf_keras optimizer.

    python benchmarks/exactness.py --out build/exactness           # about 10 minutes on 2 cores
    python benchmarks/exactness.py --out build/exactness --peers   # about 35 minutes, 6 GB on disk
    python benchmarks/exactness.py --out build/exactness3 --keras3 # about 30 minutes on 2 cores

Writes exactness.json and exactness.md, and prints the first table of exactness.md.

`--keras3` measures `bertaccum.keras3` and Keras' own accumulation instead, on TensorFlow, JAX and
PyTorch. `--peers` also measures Keras 3, gradient-accumulator, and Hugging Face's Trainer and
Accelerate. Each has its own environment in the folder `peers` of --out. A missing environment is
installed from `benchmarks/peers`, which requires Python 3.11 and a package index. `--only TEXT`
measures only the columns with this text in their title, and `--rows TEXT` only such rows. A crash
is recorded as a result and does not stop the benchmark. The *.log files contain the output of the
trainings.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from exactness_cases import tables
from exactness_cases.cases import Case, all_cases
from exactness_cases.columns import ENVIRONMENTS, KERAS_3, OWN, PEERS, Column, Job
from exactness_cases.compare import Trained, cell
from exactness_cases.processes import environment_python, run_jobs


def train(
    columns: list[Column],
    cases: list[Case],
    numbers: list[int],
    pythons: dict[str, str],
    folder: Path,
) -> Trained:
    """Run all trainings that the columns need, one process at a time, and return the results.

    Args:
      numbers: Numbers of the cases to train.
    """
    trained: Trained = {}
    for framework, dtype in tables.unique((c.framework, c.dtype) for c in columns):
        chosen = [c for c in columns if (c.framework, c.dtype) == (framework, dtype)]
        wanted = tables.unique(job for c in chosen for job in c.jobs(cases))
        jobs: list[Job] = [job for job in wanted if job.case in numbers]
        begin = time.monotonic()
        results = run_jobs(pythons[framework], framework, dtype, jobs, folder)
        for count, (job, result) in enumerate(results, 1):
            trained[framework, dtype, job.training, job.case] = result
            if count % 50 == 0 or count == len(jobs):
                seconds = time.monotonic() - begin
                progress = f"{count} of {len(jobs)} trainings, {seconds:.0f} s"
                print(f"{framework}, {dtype}: {progress}", file=sys.stderr)
    return trained


def write(cells: list[tables.Cell], out: Path) -> None:
    """Write both files, and print the summary."""
    (out / "exactness.json").write_text(json.dumps(cells, indent=1) + "\n")
    peers = {c["column"] for c in cells} & {p.title for p in PEERS}
    notes = f"{tables.NOTES}\n{tables.PEER_NOTES}" if peers else tables.NOTES
    if cells[0]["column"] in {c.title for c in KERAS_3}:
        notes = tables.KERAS_3_NOTES
    summary = tables.summary(cells)
    parts = [
        tables.TITLE,
        summary,
        notes,
        tables.controls(cells),
        "## All cases",
        tables.grid(cells),
    ]
    (out / "exactness.md").write_text("\n\n".join(parts) + "\n")
    print(summary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/exactness"))
    parser.add_argument("--peers", action="store_true", help="also measure other packages")
    parser.add_argument("--keras3", action="store_true", help="measure Keras 3 and its backends")
    parser.add_argument(
        "--peers-python", default=sys.executable, help="Python 3.11 for their environments"
    )
    parser.add_argument(
        "--only", default="", help="measure only columns with this text in their title"
    )
    parser.add_argument(
        "--rows", default="", help="measure only rows with this text in their title"
    )
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for log in out.glob("*.log"):
        log.unlink()
    all_columns = KERAS_3 if arguments.keras3 else [*OWN, *(PEERS if arguments.peers else ())]
    columns = [c for c in all_columns if arguments.only in c.title]
    own = ("with_bertaccum", "with_keras.tensorflow", "with_keras3.tensorflow")
    pythons = dict.fromkeys(own, sys.executable)
    for framework in {c.framework for c in columns} & ENVIRONMENTS.keys():
        name = ENVIRONMENTS[framework]
        pythons[framework] = environment_python(name, arguments.peers_python, out / "peers")
    cases = all_cases(arguments.keras3)
    numbers = [number for number, case in enumerate(cases) if arguments.rows in case.row]
    trained = train(columns, cases, numbers, pythons, out)
    write([cell(trained, c, cases, n) for n in numbers for c in columns], out)


if __name__ == "__main__":
    main()
