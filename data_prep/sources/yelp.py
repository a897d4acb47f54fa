"""Reads Yelp Polarity from tensorflow-datasets, which is imported only when it is used."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from bertaccum.options.prepare import PrepareConfig
from bertaccum.system.files import sha256
from bertaccum.system.progress import Note, Progress
from bertaccum.system.temporary_paths import scratch_folder
from data_prep.sources.archive import DATASET, Download, checked_sha256, recorded_download, rewrite
from data_prep.sources.tfds_builds import data_folder, explaining_errors, patched_tfds
from data_prep.sources.tfds_features import CLASS, ChosenFeatures, examples_of
from data_prep.tables.rows import Part, Source

_ARCHIVE = (
    "download it elsewhere and pass the file with `archive`, or try `source` sample, which needs no"
    " network"
)
_NAMES = {"1": "negative", "2": "positive"}
# A backslash and an n, unless the backslash itself is escaped.
_LINE_END = re.compile(r"(?<!\\)((?:\\\\)*)\\n")


def unescape(text: str) -> str:
    r"""Replace the archive's escapes in a review, because tensorflow-datasets keeps them."""
    return _LINE_END.sub(r"\1\n", text.replace('""', '"'))


def yelp_options(config: PrepareConfig) -> dict[str, str]:
    """Return the checksum of the archive, which determines the result."""
    if config.archive is None:
        return {"archive_sha256": recorded_download().sha256}
    found = checked_sha256(Path(config.archive), config.allow_unverified_archive)
    return {"archive_sha256": found}


@contextmanager
def yelp_source(config: PrepareConfig, progress: Progress, _: Note) -> Iterator[Source]:
    """Download Yelp Polarity, or unpack the user's verified archive, and open it for reading.

    The rows of the source can be read only inside the `with` block.
    """
    recorded = recorded_download()
    if config.archive is None:
        yield _source(_built(progress, None, {}), verified=True)
        return
    with scratch_folder(Path(tempfile.gettempdir(), "bertaccum-archive")) as folder:
        archive = Path(config.archive).resolve()
        verified = sha256(archive) == recorded.sha256
        use = _use_verified if verified else _use_unverified
        yield _source(use(archive, folder, recorded, progress), verified)


def _use_verified(archive: Path, folder: Path, recorded: Download, progress: Progress) -> Any:
    """Build from the recorded archive, linked into the builder's manual folder under its name."""
    (folder / recorded.filename).symlink_to(archive)
    return _built(progress, None, {"manual_dir": folder, "extract_dir": folder / "extracted"})


def _use_unverified(archive: Path, folder: Path, recorded: Download, progress: Progress) -> Any:
    """Build from another archive in `folder`, so that the user's cache does not keep its rows."""
    # tensorflow-datasets also checks the checksum of files in the manual folder, so the expected
    # checksum is replaced with that of our copy during this build.
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download.checksums import compute_url_info

    copy = folder / recorded.filename
    progress("checking the archive", 0, None)
    rewrite(archive, copy)
    with patched_tfds(progress):
        expected = tfds.builder_cls(DATASET).url_infos
    with mock.patch.dict(expected, {recorded.url: compute_url_info(copy)}):
        return _built(progress, folder / "data", {"manual_dir": folder})


def _built(progress: Progress, data_dir: Path | None, options: dict[str, Any]) -> Any:
    """Return the builder after it has prepared the data set."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_cls(DATASET)(data_dir=data_dir or data_folder())
    with patched_tfds(progress), explaining_errors(recorded_download().url, _ARCHIVE):
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(**options))
    return builder


def _source(builder: Any, verified: bool) -> Source:
    suffix = "" if verified else ", from an archive that is not the recorded one"
    return Source(
        description=f"Yelp Polarity reviews ({DATASET} of tensorflow-datasets{suffix})",
        train=_part(builder, "train"),
        given={"test": _part(builder, "test")},
        names=_NAMES,
    )


def _part(builder: Any, split: str) -> Part:
    chosen = ChosenFeatures(
        ("text",), ("label",), CLASS, tuple(builder.info.features["label"].names)
    )
    rows = examples_of(builder, split, chosen, labeled=True)
    examples = (row._replace(text=unescape(row.text)) for row in rows)
    return Part(f"{DATASET} {split}", examples, builder.info.splits[split].num_examples)
