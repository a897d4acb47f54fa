"""The result of one check of the installation."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, FAILED = "ok", "warning", "failed"


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    subject: str  # Subject of the check, such as a package.
    status: str  # One of `OK`, `WARNING` and `FAILED`.
    detail: str  # Result of the check.
    remedy: str = ""  # Advice; empty if the status is `OK`.
