"""The entry point of the program, which Ctrl-C ends with one line even before it is imported."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Import the program and run it."""
    try:
        from bertaccum.cli.program import main as run
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    run()
