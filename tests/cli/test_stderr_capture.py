"""Output of TensorFlow's C++ runtime and of Python warnings on stderr while a view is shown."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from small import write_small_task

from bertaccum.cli.options import make_view
from bertaccum.errors import InputError, RunError

# The view writes two lines; C++ code and a Python warning write to stderr in between.
PROGRAM = """
import os, sys, warnings
from bertaccum.cli.options import make_view
with make_view({quiet}, "{form}", 0, {verbose}) as view:
    view.note("from the view")
    os.write(2, b"W0000 from C++\\n")
    warnings.warn("from Python")
    {then}
    view.note("from the view again")
print("result")
"""
OWN = ["from the view", "from the view again"]


def program(then: str = "", form: str = "text", verbose: bool = False, quiet: bool = False) -> str:
    return PROGRAM.format(then=then, form=form, verbose=verbose, quiet=quiet)


def run(code: str) -> tuple[int, list[str]]:
    """Run a program until its stderr closes; return the exit code and the lines on stderr."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode or done.stdout == "result\n"
    return done.returncode, done.stderr.splitlines()


def test_successful_run_shows_only_the_view() -> None:
    assert run(program()) == (0, OWN)
    assert run(program(quiet=True)) == (0, [])
    records = [json.loads(line) for line in run(program(form="json"))[1]]
    assert [record["text"] for record in records] == OWN


def test_verbose_shows_all_output_at_once_in_the_format_of_the_view() -> None:
    wait = "import time; time.sleep(1)"  # Longer than the polling interval of the capture.
    _, lines = run(program(wait, verbose=True))
    assert (lines[0], lines[1], lines[-1]) == (OWN[0], "W0000 from C++", OWN[1])
    assert any("UserWarning: from Python" in line for line in lines)
    records = [json.loads(line) for line in run(program(wait, "json", verbose=True))[1]]
    assert [r["event"] for r in records[:2]] == ["note", "log"]
    assert records[-1]["text"] == OWN[1]


# Each end without --verbose, which shows output only at the end, and two with it.
@pytest.mark.parametrize(
    ("end", "verbose"),
    [
        ("os.write(2, b'F0000 Check failed: x > 0'); os.abort()", False),
        ("os.write(2, b'F0000 Check failed: x > 0'); os.abort()", True),
        ("os._exit(3)", False),
        ("os.kill(os.getpid(), 9)", False),
        ("os.kill(os.getpid(), 9)", True),
        ("import ctypes; ctypes.string_at(0)", False),
    ],
)
def test_process_that_dies_shows_captured_output_once(end: str, verbose: bool) -> None:
    code, lines = run(program(end, verbose=verbose))
    assert code
    assert lines[:2] == [OWN[0], "W0000 from C++"]
    assert sum("UserWarning: from Python" in line for line in lines) == 1
    assert ("F0000 Check failed: x > 0" in lines) == ("abort" in end)


@pytest.mark.slow
def test_failed_check_in_tensorflow_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--no_such_flag")
    compiled = "import tensorflow as tf; tf.function(lambda x: x, jit_compile=True)(tf.constant(1))"
    code, lines = run(program(compiled))
    assert code < 0
    assert "Unknown flag in XLA_FLAGS: --no_such_flag" in lines[-1]


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (RunError("it failed"), True),
        (ValueError("a fault"), True),
        (InputError("a wrong file"), False),
        (KeyboardInterrupt(), False),
    ],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_failed_run_shows_captured_output(
    form: str, error: BaseException, shown: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(error)), make_view(False, form, 0) as view:
        os.write(2, b"W0000 from C++\nand half a line")
        raise error
    view.error("the last line", 1)
    *held, last = capfd.readouterr().err.splitlines()
    assert "the last line" in last
    assert len(held) == (2 if shown else 0)
    assert all((line[0] == "{") == (form == "json") for line in held)


def test_stderr_is_restored_afterwards(capfd: pytest.CaptureFixture[str]) -> None:
    open_files = Path("/proc/self/fd")
    before = len(list(open_files.glob("*")))
    with make_view(False, "text", 0):
        os.write(2, b"held back\n")
    os.write(2, b"shown\n")
    assert capfd.readouterr().err == "shown\n"
    assert len(list(open_files.glob("*"))) == before


def test_process_without_stderr_captures_nothing() -> None:
    code = "import os; os.close(2)\nfrom bertaccum.cli.options import make_view\n"
    assert run(code + "with make_view(True, 'text', 0): print('result')") == (0, [])


def on_a_terminal(code: str, stdout: Path) -> str:
    """Run a program whose stderr is a terminal, and return its output there.

    Args:
      code: The program.
      stdout: The file for its stdout.
    """
    ours, theirs = pty.openpty()
    with stdout.open("w") as file, Path(os.devnull).open() as nothing:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=nothing, stdout=file, stderr=theirs
        )
    os.close(theirs)
    seen = b""
    while True:
        try:
            seen += (chunk := os.read(ours, 4096))
        except OSError:  # Linux reports the end of a terminal as an error.
            break
        if not chunk:
            break
    os.close(ours)
    assert process.wait() == 0
    return seen.decode()


def test_terminal_shows_only_the_view_and_results_go_to_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    then = "view('tokenizing', 1, 2); print('a result'); print(view._console.width)"
    seen = on_a_terminal(
        "import fcntl, struct, termios\n"
        "fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack('HHHH', 20, 57, 0, 0))\n" + program(then),
        tmp_path / "out",
    )
    assert "from the view" in seen and "tokenizing" in seen
    assert "C++" not in seen and "Python" not in seen and "a result" not in seen
    assert (tmp_path / "out").read_text() == "a result\n57\nresult\n"


def test_errors_and_checks_on_a_terminal_wrap_between_words(tmp_path: Path) -> None:
    size = "fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack('HHHH', 20, 40, 0, 0))\n"
    code = f"import fcntl, os, struct, termios\n{size}from bertaccum.cli.program import main\n"
    error = f"{code}try: main(['train', '--batch-size', '8'])\nexcept SystemExit: pass\n"
    lines = on_a_terminal(error, tmp_path / "out").splitlines()
    assert len(lines) > 1 and max(map(len, lines)) <= 40
    said = "error: No such option '--batch-size': bertaccum calls this --target-batch; see `"
    assert " ".join(lines).startswith(said)
    checks = (
        f"{code}from bertaccum.cli.display import sentences\n"
        "os.dup2(2, 1)\nsentences.result('ok   memory   ' + 'enough of it ' * 9, 14)\n"
        "sentences.result('a table row ' * 9)\n"
    )
    first, *rest, row = on_a_terminal(checks, tmp_path / "out").splitlines()
    assert first == "ok   memory   enough of it enough of it"
    assert len(row) == 108 and rest
    assert all(line.startswith(" " * 14) and len(line) <= 40 for line in rest)


@pytest.mark.slow
def test_training_with_json_log_writes_only_json(tmp_path: Path) -> None:
    bert_config = write_small_task(tmp_path / "data", train=16, dev=8)
    options = ["--data", "data", "--bert-config", bert_config, "--vocab", "data/vocab.txt"]
    options += ["--init-checkpoint", "none", "--max-seq-length", 16, "--max-updates", 1]
    options += ["--target-batch", 8, "--micro-batch", 4, "--log-format", "json"]
    for out, verbose in (("quiet", []), ("loud", ["--verbose"])):
        command = [sys.executable, "-m", "bertaccum", "train", *map(str, options), *verbose]
        command += ["--out", out]
        environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        records = [json.loads(line) for line in done.stderr.splitlines()]
        logged = [r["text"] for r in records if r["event"] == "log"]
        assert any("loop_optimizer" in line for line in logged) == bool(verbose)
