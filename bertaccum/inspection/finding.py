"""The result of one check of the installation."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, FAILED = "ok", "warning", "failed"


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Args:
      subject: What was checked, such as a package.
      status: One of `OK`, `WARNING` and `FAILED`.
      detail: What was found.
      remedy: What to do about it; empty if the status is `OK`.
    """

    subject: str
    status: str
    detail: str
    remedy: str = ""
