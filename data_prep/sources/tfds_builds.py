"""Progress, messages and errors of the builders of tensorflow-datasets."""

from __future__ import annotations

import io
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from typing import Any
from unittest import mock

from bertaccum.errors import InputError, RunError
from bertaccum.system.progress import Progress

# Progress messages by the first words of tensorflow-datasets' progress bars.
_DOINGS = {
    "Dl Size": "downloading the archive",
    "Extraction": "unpacking the archive",
    "Shuffling": "storing texts",
}
_SETS = {"train": "training"}
_RETRIES = 3  # The default of tensorflow-datasets is 10, which takes 200 s without a network.


def data_folder() -> str | None:
    """Return TFDS_DATA_DIR, which tensorflow-datasets reads only when it is imported."""
    return os.environ.get("TFDS_DATA_DIR")


@contextmanager
def patched_tfds(progress: Progress) -> Iterator[None]:
    """Patch settings for which tensorflow-datasets has no option.

    Its progress bars report to `progress`, its messages do not reach stdout, and it gives up
    earlier if there is no network.
    """
    from tensorflow_datasets.core import utils
    from tensorflow_datasets.core.download import downloader

    bar = partial(_ReportingBar, progress)
    with (
        redirect_stdout(io.StringIO()),
        mock.patch.object(logging.getLogger("urllib3.connectionpool"), "disabled", True),
        mock.patch.multiple(utils, tqdm=bar, async_tqdm=bar),
        mock.patch.object(downloader, "MAX_RETRIES", _RETRIES),
    ):
        yield


def _doing(description: str) -> str | None:
    """Return the progress message for a progress bar of tensorflow-datasets, or None."""
    if match := re.match(r"Generating (\w+) examples", description):
        return f"converting {_SETS.get(match[1], match[1])} texts"
    return next((doing for start, doing in _DOINGS.items() if description.startswith(start)), None)


class _ReportingBar:
    """A replacement for tqdm's bar that reports to a callback.

    It has only the methods that tensorflow-datasets calls.
    """

    def __init__(
        self, progress: Progress, iterable: Any = (), *, desc: str = "", total: Any = None, **_: Any
    ) -> None:
        # The other options are for the look of tqdm's bar.
        self._progress, self._iterable = progress, iterable
        self._doing = _doing(desc)
        self._done, self._total = 0, total

    def __iter__(self) -> Iterator[Any]:
        for item in self._iterable:
            yield item
            self.update()

    def __enter__(self) -> _ReportingBar:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, done: int = 1) -> None:
        self._done += done
        if self._doing is not None:
            self._progress(self._doing, self._done, self._total or None)

    def update_total(self, more: int = 1) -> None:
        self._total = (self._total or 0) + more


@contextmanager
def explaining_errors(what: str, otherwise: str) -> Iterator[None]:
    """Convert the known exceptions of a download into errors with a hint."""
    import requests
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
    from tensorflow_datasets.core.download.extractor import ExtractError
    from tensorflow_datasets.core.download.util import DownloadError

    hint = f"check the network, or {otherwise}"
    try:
        yield
    except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
        raise InputError(f"no network: cannot download {what}", hint) from error
    except (requests.exceptions.RequestException, DownloadError) as error:
        raise InputError(f"the download of {what} failed ({error})", hint) from error
    except (NonMatchingChecksumError, ExtractError) as error:
        message = f"the download from {what} is not the recorded archive ({error})"
        raise InputError(message, f"try again later, or {otherwise}") from error
    except OSError as error:
        message = f"tensorflow-datasets could not write its files ({error})"
        remedy = "free disk space, or set TFDS_DATA_DIR to another folder"
        raise RunError(message, remedy) from error
