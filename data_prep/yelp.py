"""Reads Yelp Polarity. Only this file imports tensorflow-datasets, and only when it is used."""

from __future__ import annotations

import io
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from bertaccum.config import PrepareConfig
from bertaccum.errors import InputError, RunError
from bertaccum.files import sha256
from bertaccum.progress import Progress
from data_prep.archive import DATASET, Download, recorded_download, rewrite
from data_prep.rows import Part, Row, Source

_NAMES = {"1": "negative", "2": "positive"}
# Progress messages by the first words of tensorflow-datasets' progress bars.
_DOINGS = {
    "Dl Size": "downloading the archive",
    "Extraction": "unpacking the archive",
    "Generating train": "converting training reviews",
    "Generating test": "converting test reviews",
    "Shuffling": "storing reviews",
}
_RETRIES = 3  # The default of tensorflow-datasets is 10, which takes 200 s without a network.
_ROWS_A_BATCH = 512
# A backslash and an n, unless the backslash itself is escaped.
_LINE_END = re.compile(r"(?<!\\)((?:\\\\)*)\\n")


def unescape(text: str) -> str:
    r"""Replace the archive's escapes in a review, because tensorflow-datasets keeps them.

    Args:
      text: A field of the archive, with `""` for a double quote and `\n` for a line break.
    """
    return _LINE_END.sub(r"\1\n", text.replace('""', '"'))


@contextmanager
def yelp_source(config: PrepareConfig, progress: Progress) -> Iterator[Source]:
    """Download Yelp Polarity, or unpack the user's archive, and open it for reading.

    Args:
      config: Options of `prepare`. The caller has already checked the archive's checksum.
      progress: Called during the download, the conversion and the reading.

    Yields:
      The source. Its rows can be read only inside the `with` block.

    Raises:
      InputError: There is no network, the download is wrong, or the archive is not a Yelp
        Polarity archive.
      RunError: tensorflow-datasets could not write its files.
    """
    recorded = recorded_download()
    if config.archive is None:
        yield _source(_built(progress, None, {}), verified=True)
        return
    with tempfile.TemporaryDirectory(prefix="bertaccum-") as folder:
        archive = Path(config.archive).resolve()
        verified = sha256(archive) == recorded.sha256
        use = _use_verified if verified else _use_unverified
        yield _source(use(archive, Path(folder), recorded, progress), verified)


def _use_verified(archive: Path, folder: Path, recorded: Download, progress: Progress) -> Any:
    """Build from the recorded archive, linked into the builder's manual folder under its name."""
    (folder / recorded.filename).symlink_to(archive)
    return _built(progress, None, {"manual_dir": folder, "extract_dir": folder / "extracted"})


def _use_unverified(archive: Path, folder: Path, recorded: Download, progress: Progress) -> Any:
    """Build from another archive inside `folder`, so that the user's cache does not keep its rows.

    tensorflow-datasets also checks the checksum of files in the manual folder, so the expected
    checksum is replaced with that of our copy during this build.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download.checksums import compute_url_info

    copy = folder / recorded.filename
    progress("checking the archive", 0, None)
    rewrite(archive, copy)
    with _adapted(progress):
        expected = tfds.builder_cls(DATASET).url_infos
    before = expected[recorded.url]
    expected[recorded.url] = compute_url_info(copy)
    try:
        return _built(progress, folder / "data", {"manual_dir": folder})
    finally:
        expected[recorded.url] = before


def _built(progress: Progress, data_dir: Path | None, options: dict[str, Any]) -> Any:
    """Return the builder after it has prepared the data set.

    Args:
      progress: Called during the download and the conversion.
      data_dir: Folder for the prepared data set. None uses TFDS_DATA_DIR, or the default folder of
        tensorflow-datasets. The variable is read here because tensorflow-datasets reads it only
        when it is imported.
      options: Fields of `DownloadConfig`.
    """
    import tensorflow_datasets as tfds

    builder = tfds.builder_cls(DATASET)(data_dir=data_dir or os.environ.get("TFDS_DATA_DIR"))
    with _adapted(progress), _explained(recorded_download().url):
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(**options))
    return builder


@contextmanager
def _adapted(progress: Progress) -> Iterator[None]:
    """Patch settings for which tensorflow-datasets has no option.

    Its progress bars report to `progress`, its messages do not reach stdout, and it gives up
    earlier if there is no network.
    """
    from tensorflow_datasets.core import utils
    from tensorflow_datasets.core.download import downloader

    bar = partial(_ReportingBar, progress)
    with (
        redirect_stdout(io.StringIO()),
        _attributes(logging.getLogger("urllib3.connectionpool"), disabled=True),
        _attributes(utils, tqdm=bar, async_tqdm=bar),
        _attributes(downloader, MAX_RETRIES=_RETRIES),
    ):
        yield


class _ReportingBar:
    """A replacement for tqdm's bar that reports to a callback.

    It has only the methods that tensorflow-datasets calls.

    Args:
      progress: Called at every change.
      iterable: Items to iterate over, if any.
      desc: Description of the bar. Nothing is reported unless it starts with a key of `_DOINGS`.
      total: Expected final count, or None.
    """

    def __init__(
        self,
        progress: Progress,
        iterable: Iterable[Any] = (),
        *,
        desc: str = "",
        total: int | None = None,
        **_: Any,  # Options for the look of tqdm's bar.
    ) -> None:
        self._progress, self._iterable = progress, iterable
        known = (doing for start, doing in _DOINGS.items() if desc.startswith(start))
        self._doing = next(known, None)
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
def _attributes(owner: Any, **values: Any) -> Iterator[None]:
    """Give attributes of an object other values inside the `with` block."""
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Convert the known exceptions of a download into errors with a hint."""
    import requests
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
    from tensorflow_datasets.core.download.extractor import ExtractError
    from tensorflow_datasets.core.download.util import DownloadError

    hint = "check the network, or download it elsewhere and pass the file with `archive`"
    try:
        yield
    except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
        raise InputError(f"no network: cannot reach {url}", hint) from error
    except (requests.exceptions.RequestException, DownloadError) as error:
        raise InputError(f"the download of {url} failed ({error})", hint) from error
    except (NonMatchingChecksumError, ExtractError) as error:
        message = f"the download from {url} is not the recorded archive ({error})"
        raise InputError(message, "try again later, or pass a good copy with `archive`") from error
    except OSError as error:
        raise RunError(
            f"tensorflow-datasets could not write its files ({error})",
            "free disk space, or set TFDS_DATA_DIR to another folder",
        ) from error


def _source(builder: Any, verified: bool) -> Source:
    suffix = "" if verified else ", from an archive that is not the recorded one"
    return Source(
        description=f"Yelp Polarity reviews ({DATASET} of tensorflow-datasets{suffix})",
        train=_part(builder, "train"),
        test=_part(builder, "test"),
        names=_NAMES,
    )


def _part(builder: Any, split: str) -> Part:
    total = builder.info.splits[split].num_examples
    return Part(f"{DATASET} {split}", _examples(builder, split), total)


def _examples(builder: Any, split: str) -> Iterator[Row]:
    import tensorflow_datasets as tfds

    names = builder.info.features["label"].names
    # Reading one shard after another gives the same order on every machine and takes little memory.
    in_order = tfds.ReadConfig(interleave_cycle_length=1)
    rows = builder.as_dataset(split=split, read_config=in_order).batch(_ROWS_A_BATCH)
    row = 0
    for batch in tfds.as_numpy(rows):
        for label, text in zip(batch["label"].tolist(), batch["text"].tolist(), strict=True):
            row += 1
            yield Row(row, names[label], unescape(text.decode("utf-8")))
