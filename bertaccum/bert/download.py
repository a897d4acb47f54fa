"""Google's released checkpoints: where they are, fetching them, unpacking them.

A download goes on where it was cut off, and what is unpacked is whole (length, zip
checksums, expected members) before it appears in the cache. No tensorflow here.
"""

from __future__ import annotations

import errno
import http.client
import os
import shutil
import struct
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path

from bertaccum.bert.encoder_config import PRESET_CONFIGS
from bertaccum.cache import cache_folder
from bertaccum.errors import InputError
from bertaccum.files import beside
from bertaccum.progress import Progress

BASE_URL = "https://storage.googleapis.com/bert_models"
MEMBERS = (
    "bert_config.json",
    "vocab.txt",
    "bert_model.ckpt.index",
    "bert_model.ckpt.data-00000-of-00001",
)
# What zipfile raises: it seeks, decodes and unpacks wherever a damaged zip tells it to.
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    RuntimeError,
    ValueError,
    struct.error,
    OSError,
)
_CHUNK_BYTES = 1 << 20
_TIMEOUT_SECONDS = 30


def checkpoint_url(preset: str) -> str:
    """The address of a preset's zip; `BERTACCUM_CHECKPOINT_URL` overrides the base."""
    config = PRESET_CONFIGS[preset]
    # The release of 2020 holds 24 sizes, but not BERT-Large.
    release = "2018_10_18" if preset == "bert-large" else "2020_02_20"
    name = (
        f"uncased_L-{config.num_hidden_layers}_H-{config.hidden_size}"
        f"_A-{config.num_attention_heads}.zip"
    )
    return f"{os.environ.get('BERTACCUM_CHECKPOINT_URL', BASE_URL).rstrip('/')}/{release}/{name}"


def fetch_preset(preset: str, progress: Progress) -> Path:
    """The folder with a preset's checkpoint, downloaded into the cache if it is not there.

    Raises:
      InputError: no network, no such file at the address, or the file is damaged.
    """
    folder = _folder_of(preset)
    if preset_folder(preset) is None:
        archive = _download(checkpoint_url(preset), folder.parent, progress)
        try:
            unpack(archive, folder)
        finally:
            archive.unlink()
    return folder


def preset_folder(preset: str) -> Path | None:
    """The folder of a preset that has been downloaded before."""
    folder = _folder_of(preset)
    return folder if folder.is_dir() else None


def _folder_of(preset: str) -> Path:
    return cache_folder() / "checkpoints" / preset


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a zip of Google's format into `folder`, which appears whole or not at all.

    Only the four known files are taken, by their base names: nothing in the zip can
    write anywhere else.

    Raises:
      InputError: the zip is damaged or lacks one of the files.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    whole = beside(folder)
    whole.mkdir()
    try:
        try:
            with zipfile.ZipFile(archive) as bundle:
                for member, entry in _members(bundle, archive).items():
                    # Reading to the end checks the member's CRC.
                    with bundle.open(entry) as source, (whole / member).open("wb") as target:
                        shutil.copyfileobj(source, target)
        except _DAMAGED as error:
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            raise InputError(
                f"is not a whole zip file ({error})", "download it again", path=archive
            ) from None
        if not folder.exists():
            whole.rename(folder)
    finally:
        shutil.rmtree(whole, ignore_errors=True)


def _members(bundle: zipfile.ZipFile, archive: Path) -> dict[str, zipfile.ZipInfo]:
    entries = {Path(entry.filename).name: entry for entry in bundle.infolist()}
    missing = [member for member in MEMBERS if member not in entries]
    if missing:
        raise InputError(
            f"has no {', '.join(missing)}", "it is not one of Google's BERT zips", path=archive
        )
    return {member: entries[member] for member in MEMBERS}


def _download(url: str, folder: Path, progress: Progress) -> Path:
    """Fetches `url` into `folder`; what an earlier try left there is gone on with."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / (url.rsplit("/", 1)[-1] + ".part")
    try:
        _fetch(url, part, progress)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError(
            f"cannot download {url} ({reason})",
            "try again (it goes on where it stopped), name a folder or zip with"
            " `init_checkpoint`, or start from random weights with `init_checkpoint` none and,"
            " where the data has no vocab.txt, `vocab` FILE",
        ) from None
    return part


def _fetch(url: str, part: Path, progress: Progress) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        if error.headers.get("Content-Range", "").endswith(f"/{done}"):
            return None  # What an earlier try left is all there is.
        part.unlink()
        return _fetch(url, part, progress)
    with response, part.open("ab" if response.status == 206 else "wb") as target:
        done = target.tell()
        length = response.headers["Content-Length"]
        total = done + int(length) if length else None
        while chunk := response.read(_CHUNK_BYTES):
            target.write(chunk)
            done += len(chunk)
            progress(f"downloading {url}", done, total)
    if total is not None and done != total:
        raise OSError(f"connection lost after {done} of {total} bytes")
