"""Errors of huggingface_hub and hf_xet become one line with a remedy."""

from __future__ import annotations

import errno
import re

import pytest

from bertaccum.errors import BertAccumError, InputError, RunError
from bertaccum.system.hub_errors import UnreachableError, explained
from bertaccum.system.hub_names import Repository

FULL = "I/O error: No space left on device (os error 28)"


@pytest.mark.parametrize(
    ("error", "expected", "line"),
    [
        (ConnectionError("reset"), UnreachableError, r"cannot reach .* \(reset\); check the"),
        (TimeoutError("late"), UnreachableError, r"cannot reach .* \(late\); check the network"),
        (OSError(FULL), RunError, r"cannot be written \(I/O .*; free disk space"),
        (RuntimeError(FULL), RunError, r"cannot be written \(I/O .*; free disk space"),
        (OSError("Not found: x"), InputError, r"the transfer failed \(Not found: x\); try again"),
        (RuntimeError("x\ny"), InputError, r"the transfer failed \(x\); .* HF_HUB_DISABLE_XET=1$"),
        (PermissionError(errno.EACCES, "denied", "/x"), RunError, r"/x: cannot .*; check its perm"),
    ],
)
def test_errors_of_transfers_name_a_remedy(
    error: Exception, expected: type[BertAccumError], line: str
) -> None:
    with pytest.raises(expected) as raised, explained(Repository("owner/name")):
        raise error
    assert raised.type is expected
    assert re.search(line, str(raised.value))
