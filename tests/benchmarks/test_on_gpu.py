"""`benchmarks/peers/on_gpu.py` records each failure with its reason, and measures the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PEERS = Path(__file__).resolve().parents[2] / "benchmarks/peers"
SMALL, BASE = "bert-small, 128, 4 x 8, bfloat16", "bert-base, 128, 1 x 32, bfloat16"
LOOP, COMPILED, TRAINER = "PyTorch loop", "PyTorch loop, grouped, compiled", "Trainer, grouped"
# A Python that trains 2 updates a second, without PyTorch.
FAKE = """#!{python}
import json, sys, time

if sys.argv[1] == "-c":
    print(json.dumps({{"torch": "2.0"}}))
elif sys.argv[1].endswith("tool"):
    if "adamw" in sys.argv[2]:
        sys.exit("not a program")
    print("CPU: compiled in 1.5 s, 3 inputs")
    print("median 0.250 ms, least 0.200 ms of 50 runs")
elif sys.argv[1].endswith("hf_trainer.py"):
    sys.exit("no module named transformers")
else:
    task = json.loads(sys.argv[2])
    for line in sys.stdin:
        updates = json.loads(line)["updates"]
        if updates and task.get("compiled"):
            sys.exit("torch.OutOfMemoryError: out of memory\\nSet TORCH_LOGS for more.")
        if task.get("backend"):
            time.sleep(1000)
        answer = {{"seconds": updates / 2, "at": time.time(), "peak_bytes": 2**30}}
        print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    path = tmp_path / "python"
    path.write_text(FAKE.format(python=sys.executable))
    path.chmod(0o755)
    dimensions = {"bert-small": {"hidden_size": 512}, "bert-base": {"hidden_size": 768}}
    (tmp_path / "encoders.json").write_text(json.dumps(dimensions))
    return path


def results(python: Path, *options: Any) -> dict[str, Any]:
    """Run the program without packages (-S), as on a machine that has none, and read its file."""
    out = python.parent / "results.json"
    command = [sys.executable, "-S", PEERS / "on_gpu.py", "--data", python.parent, "--out", out]
    command += ["--python", python, *options]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    return json.loads(out.read_text())


def test_a_failure_does_not_end_the_rest(python: Path) -> None:
    programs = (LOOP, COMPILED, TRAINER)
    found = results(python, "--only", SMALL, BASE, "--programs", *programs)
    assert found["versions"] == {"torch": "2.0"}
    cells = {(r["case"], r["program"]): r for r in found["training"]}
    assert list(cells) == [(case, name) for case in (SMALL, BASE) for name in programs]
    for case in (SMALL, BASE):
        assert cells[case, LOOP]["examples_per_second"] == 64
        assert cells[case, LOOP]["seconds_to_first_update"] > 0.5
        assert cells[case, LOOP]["peak_bytes"] == 2**30
        assert cells[case, COMPILED]["failed"] == "torch.OutOfMemoryError: out of memory"
        assert cells[case, TRAINER]["failed"] == "no module named transformers"


def test_a_peer_that_hangs_is_ended(python: Path) -> None:
    found = results(
        python, "--only", SMALL, BASE, "--programs", "Keras 3 on JAX", "--minutes", 0.02
    )
    assert [r["case"] for r in found["training"]] == [SMALL, BASE]
    assert all("failed" in r for r in found["training"])


def test_cases_for_which_no_time_is_left_are_named(python: Path) -> None:
    found = results(python, "--minutes", 0)
    assert found["training"][0]["case"] == SMALL
    assert len({r["case"] for r in found["training"]}) == 16
    assert {r["failed"] for r in found["training"]} == {"no time left"}
    assert not list((python.parent / "results").iterdir())  # no log: no process was started


def test_a_wrong_path_is_named(python: Path) -> None:
    command = [sys.executable, PEERS / "on_gpu.py", "--out", python.parent / "results.json"]
    wrong = [
        (["--data", python.parent / "none"], "none was not written by"),
        (["--data", python.parent, "--python", "none/python"], "none/python is no Python"),
        (["--data", python.parent, "--programs", "bertaccum"], "needs --our-python"),
    ]
    for options, message in wrong:
        done = subprocess.run([*command, *options], capture_output=True, text=True)
        assert done.returncode == 2
        assert message in done.stderr.splitlines()[-1]


def test_compiled_steps_are_timed_in_order_of_importance(python: Path) -> None:
    small, base = "bert-small-bfloat16-gradients-8x128", "bert-base-bfloat16-gradients-8x128"
    for name in (base, small, "bert-base-float32-gradients-8x128", "bert-base-adamw"):
        (python.parent / f"{name}.stablehlo").touch()
    found = results(python, "--programs", "--stablehlo", python.parent / "tool")
    timed = {"compile_seconds": 1.5, "median_ms": 0.25}
    assert found["compiled_steps"] == [
        {"step": small} | timed,
        {"step": "bert-base-adamw", "failed": "not a program"},
        {"step": base} | timed,
        {"step": "bert-base-float32-gradients-8x128"} | timed,
    ]
    assert not found["training"]


def test_a_peer_is_ready_before_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PEERS)
    from peer_process import PeerError, PeerProcess

    script = tmp_path / "peer.py"
    script.write_text(
        "import sys; sys.path.append(sys.argv[1]); print('loading')\n"
        "from turns import Turns\n"
        "turns = Turns(lambda: 7); turns.wait()\n"
        "for _ in range(3): print('an update'); turns.updated()\n"
        "sys.exit('no more data')\n"
    )
    process = PeerProcess([sys.executable, str(script), str(PEERS)], tmp_path / "log")
    # The first line that the script prints is no answer, because `Turns` did not exist yet.
    assert process._process.stdout.readline() == "loading\n"
    assert process.turn(0)["peak_bytes"] is None
    assert process.turn(1)["peak_bytes"] == 7
    assert process.turn(2)["seconds"] > 0
    with pytest.raises(PeerError, match="no more data"):
        process.turn(1)
    process.close()
