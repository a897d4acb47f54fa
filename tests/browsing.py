"""Pages in a headless browser."""

from __future__ import annotations

import subprocess
from pathlib import Path


def browse(browser: str, address: str, profile: Path, *arguments: str) -> tuple[str, str]:
    """Open a page, and return the browser's stdout and the messages of the page's console.

    Args:
      browser: Path of the browser.
      address: Address of the page.
      profile: Folder for the browser's files.
      *arguments: Further arguments, such as `--dump-dom`.
    """
    command = [browser, "--headless", "--disable-gpu", "--no-sandbox", "--hide-scrollbars"]
    command += [f"--user-data-dir={profile}", "--enable-logging=stderr", "--v=0"]
    command += ["--virtual-time-budget=5000", *arguments, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
