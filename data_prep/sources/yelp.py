"""Reads Yelp Polarity from tensorflow-datasets, also from an archive that the user has.

tensorflow-datasets is imported only when it is used.
"""

from __future__ import annotations

import importlib.util
import lzma
import os
import re
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple
from unittest import mock

from bertaccum.errors import ConfigError, InputError, RunError, reason
from bertaccum.options.prepare import PrepareConfig
from bertaccum.system.files import check_unpacked, sha256
from bertaccum.system.progress import Note, Progress
from bertaccum.system.temporary_paths import scratch_folder
from data_prep.sources.tfds_builds import data_folder, explaining_errors, patched_tfds
from data_prep.sources.tfds_features import CLASS, ChosenFeatures, examples_of
from data_prep.tables.rows import Part, Source
from data_prep.tables.text_files import LONGEST

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
    classes = tuple(builder.info.features["label"].names)
    chosen = ChosenFeatures(("text",), ("label",), CLASS, classes)
    rows = examples_of(builder, split, chosen, labeled=True)
    examples = (row._replace(text=unescape(row.text)) for row in rows)
    return Part(f"{DATASET} {split}", examples, builder.info.splits[split].num_examples)


DATASET = "yelp_polarity_reviews"
_MEMBERS = ("yelp_review_polarity_csv/train.csv", "yelp_review_polarity_csv/test.csv")
# The builder of tensorflow-datasets does not parse CSV: for each line, it takes `line[1]` as the
# label and `line[5:-2]` as the text.
_LINE = re.compile(rb'"[12]","(?:[^"\r]|"")*"\Z')


class Download(NamedTuple):
    """An entry in the checksum file of tensorflow-datasets."""

    url: str
    sha256: str
    filename: str


def recorded_download() -> Download:
    """Return the archive's URL, checksum and name as tensorflow-datasets records them."""
    package = importlib.util.find_spec("tensorflow_datasets")
    assert package is not None and package.origin is not None  # It is a required dependency.
    record = Path(package.origin).parent / "url_checksums" / f"{DATASET}.txt"
    url, _, digest, filename = record.read_text().splitlines()[0].split("\t")
    return Download(url, digest, filename)


def checked_sha256(archive: Path, allow_unverified: bool) -> str:
    """Return the SHA-256 of an archive, in hexadecimal.

    Raises:
      ConfigError: It differs from the recorded one, and `allow_unverified` is False.
    """
    digest, recorded = sha256(archive), recorded_download()
    if digest != recorded.sha256 and not allow_unverified:
        original = f"the original {recorded.filename} has {recorded.sha256}"
        remedy = "download it again, or pass `allow_unverified_archive` if you trust this file"
        raise ConfigError(f"has the SHA-256 {digest}, but {original}", remedy, path=archive)
    return digest


def rewrite(archive: Path, target: Path) -> None:
    """Copy an unverified archive into an archive that the builder reads without losing text.

    The builder cuts the last two characters off every line, because it expects a double quote and a
    line feed. If the last line has no line feed, the builder cuts off a character of the text. It
    can also misread carriage returns, and it silently reads a wrong text from a line that is not of
    the form `"label","text"`.
    """
    try:
        with _Archive.open(archive) as source, tarfile.open(target, "w") as copy:
            members = {name: _member(source, name, archive) for name in _MEMBERS}
            check_unpacked(archive, sum(member.size for member in members.values()))
            assert source.fileobj is not None  # The archive is open.
            for name, member in members.items():
                file = source.extractfile(member)
                assert file is not None  # It is None only if the member is not a file.
                lines = _checked_lines(file, f"{archive}:{name}")
                _add_member(copy, name, lines, target.parent)
            # tarfile does not read the end of the compressed file, which contains its checksum.
            while source.fileobj.read(1 << 20):
                check_unpacked(archive, source.fileobj.tell())
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if getattr(error, "errno", None) is not None:  # Not a damaged archive.
            what = f"cannot be unpacked into {target.parent} ({reason(error)})"
            remedy = "free space there, or set TMPDIR to another folder"
            raise RunError(what, remedy, path=archive) from None
        what = f"cannot be unpacked ({error})"
        raise InputError(what, "download it again", path=archive) from error


def _add_member(archive: tarfile.TarFile, name: str, lines: Iterator[bytes], folder: Path) -> None:
    """Add a member to a tar file; write its lines to a temporary file in `folder` first."""
    # A tar member starts with its size, which is unknown until all lines are written.
    csv = folder / Path(name).name
    with csv.open("wb") as plain:
        plain.writelines(line + b"\n" for line in lines)
    archive.add(csv, name)
    csv.unlink()


class _Bounded:
    """An unpacked file whose `read` refuses to return more than the longest line has."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int) -> bytes:
        if size > LONGEST:
            raise tarfile.ReadError("a header is too large")
        return self._file.read(size)


class _Archive(tarfile.TarFile):
    """A tar file; tarfile itself reads a header of any size at once, such as a long name."""

    def __init__(self, name: Any, mode: Any, fileobj: Any = None, **options: Any) -> None:
        super().__init__(name, mode, fileobj and _Bounded(fileobj), **options)


def _member(source: tarfile.TarFile, name: str, path: Path) -> tarfile.TarInfo:
    for member in source.getmembers():
        if os.path.normpath(member.name) == name and member.isfile():
            return member
    raise InputError(f"contains no {name}", "pass the Yelp Polarity archive", path=path)


def _checked_lines(file: IO[bytes], where: str) -> Iterator[bytes]:
    row = 0
    for row, raw in enumerate(iter(partial(file.readline, LONGEST), b""), 1):
        if len(raw) == LONGEST:
            raise InputError(f"is longer than {LONGEST >> 20} MiB", path=where, row=row)
        line = raw.removesuffix(b"\n").removesuffix(b"\r")
        if not _LINE.match(line):
            what = 'is not of the form "1","text" or "2","text"'
            remedy = 'write a line break inside a text as \\n, and a double quote as ""'
            raise InputError(what, remedy, path=where, row=row)
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            what = f"byte {line[error.start]:#04x} at position {error.start + 1} is not UTF-8"
            raise InputError(what, "save it as UTF-8 text", path=where, row=row) from error
        yield line
    if not row:
        raise InputError("has no rows", path=where)
