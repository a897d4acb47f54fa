"""Yelp Polarity through tensorflow-datasets: the one file that imports it, and only when used."""

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
# What tensorflow-datasets' bars count, by how their descriptions start.
_DOINGS = {
    "Dl Size": "fetching the archive",
    "Extraction": "unpacking the archive",
    "Generating train": "converting training reviews",
    "Generating test": "converting test reviews",
    "Shuffling": "storing reviews",
}
_RETRIES = 3  # tensorflow-datasets tries 10 times, which takes 200 s without network
_ROWS_A_BATCH = 512
# A backslash and an n, unless that backslash is itself escaped.
_LINE_END = re.compile(r"(?<!\\)((?:\\\\)*)\\n")


def unescape(text: str) -> str:
    r"""Undoes the archive's escapes, which the builder leaves in its texts.

    Args:
      text: a field of the archive: `""` is a double quote and `\n` a line end.

    Returns:
      The review as it was written.
    """
    return _LINE_END.sub(r"\1\n", text.replace('""', '"'))


@contextmanager
def yelp_source(config: PrepareConfig, progress: Progress) -> Iterator[Source]:
    """Downloads or unpacks Yelp Polarity and reads it.

    Args:
      config: says whether there is an archive; its checksum must be checked before.
      progress: told about the download, the conversion and the reading.

    Yields:
      The source; its rows can be read inside the `with` only.

    Raises:
      InputError: no network, a wrong download or an archive that is not of this kind.
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
    """Lets the builder find the archive under the name it looks for, in its manual folder."""
    (folder / recorded.filename).symlink_to(archive)
    return _built(progress, None, {"manual_dir": folder, "extract_dir": folder / "extracted"})


def _use_unverified(archive: Path, folder: Path, recorded: Download, progress: Progress) -> Any:
    """The same with everything in `folder`: the user's cache must not learn of these rows.

    tensorflow-datasets checks manual files too, so for this one build it is
    told to expect the checksum of our copy.
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
    """The builder, with its data set prepared in `data_dir` or the user's own folder.

    TFDS_DATA_DIR is read here because tensorflow-datasets reads it at import only.
    """
    import tensorflow_datasets as tfds

    builder = tfds.builder_cls(DATASET)(data_dir=data_dir or os.environ.get("TFDS_DATA_DIR"))
    with _adapted(progress), _explained(recorded_download().url):
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(**options))
    return builder


@contextmanager
def _adapted(progress: Progress) -> Iterator[None]:
    """What tensorflow-datasets has no option for.

    Its progress becomes ours, its chatter stays off stdout, and it gives up a dead
    network soon.
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
    """What tensorflow-datasets uses of a tqdm bar, told to a callback.

    Args:
      progress: called at every change.
      iterable: what the bar is drawn around, if anything.
      desc: the bar's description; if it starts as none of `_DOINGS`, nothing is reported.
      total: the expected final count.
    """

    def __init__(
        self,
        progress: Progress,
        iterable: Iterable[Any] = (),
        *,
        desc: str = "",
        total: int | None = None,
        **_: Any,  # tqdm's looks
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
    """Give attributes of a library other values for a while."""
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
    """Turns what a download is known to raise into one message."""
    import requests
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
    from tensorflow_datasets.core.download.extractor import ExtractError
    from tensorflow_datasets.core.download.util import DownloadError

    hint = "check the network, or download it elsewhere and name the file with `archive`"
    try:
        yield
    except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
        raise InputError(f"no network: cannot reach {url}", hint) from error
    except (requests.exceptions.RequestException, DownloadError) as error:
        raise InputError(f"the download of {url} failed ({error})", hint) from error
    except (NonMatchingChecksumError, ExtractError) as error:
        message = f"what came from {url} is not the recorded archive ({error})"
        raise InputError(message, "try again later, or name a good copy with `archive`") from error
    except OSError as error:
        raise RunError(
            f"tensorflow-datasets could not write its files ({error})",
            "free some disk space, or name another folder in TFDS_DATA_DIR",
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
    # One shard after the other: the same order everywhere, and little memory.
    in_order = tfds.ReadConfig(interleave_cycle_length=1)
    rows = builder.as_dataset(split=split, read_config=in_order).batch(_ROWS_A_BATCH)
    row = 0
    for batch in tfds.as_numpy(rows):
        for label, text in zip(batch["label"].tolist(), batch["text"].tolist(), strict=True):
            row += 1
            yield Row(row, names[label], unescape(text.decode("utf-8")))
