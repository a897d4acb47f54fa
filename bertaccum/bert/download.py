"""Google's released checkpoints: download, verification and unpacking.

An interrupted download resumes where it stopped. A checkpoint appears in the cache only after its
length, digest, zip checksums and members have been verified.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import lzma
import os
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

from bertaccum.bert.checkpoint_files import WEIGHT_FILES
from bertaccum.bert.presets import PRESETS, RELATIVES, VOCABULARY_MEMBER, WEIGHTS_MEMBER
from bertaccum.errors import NO_SPACE, ConfigError, InputError, RunError, reason
from bertaccum.system.atomic import new_folder
from bertaccum.system.cache import (
    cache_folder,
    cache_paths,
    cached_folder,
    is_cached,
    is_intact,
    seal,
)
from bertaccum.system.files import check_unpacked, sha256
from bertaccum.system.hub import snapshot
from bertaccum.system.hub_names import Repository
from bertaccum.system.locks import lock
from bertaccum.system.progress import Progress

BASE_URL = "https://storage.googleapis.com/bert_models"
MEMBERS = ("bert_config.json", VOCABULARY_MEMBER, "bert_model.ckpt.index", WEIGHTS_MEMBER)
# A damaged zip makes zipfile read the wrong bytes, which can raise any of these errors.
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,
    ValueError,
    struct.error,
    OSError,
)
_CHUNK_BYTES = 1 << 16
_TIMEOUT_SECONDS = 30


def checkpoint_url(preset: str) -> str:
    """Return the URL of a preset's zip; `BERTACCUM_CHECKPOINT_URL` overrides the base URL."""
    base = os.environ.get("BERTACCUM_CHECKPOINT_URL", BASE_URL).rstrip("/")
    return f"{base}/{PRESETS[preset].archive}"


def fetch_preset(preset: str, progress: Progress) -> Path:
    """Return the folder of a preset's checkpoint, downloading it unless it is in the cache.

    If several processes need it, one downloads it, and the others wait.
    """

    def make(folder: Path) -> None:
        with _locked(folder, progress):
            if is_intact(folder):  # Another process has just downloaded it.
                return
            archive = _download(checkpoint_url(preset), folder.parent, progress)
            try:
                unpack(archive, folder, PRESETS[preset].digests)
            except InputError:  # Any other error, such as a full disk, leaves the download.
                archive.unlink()
                raise
            archive.unlink(missing_ok=True)

    # On a full disk, the download can be resumed.
    return cached_folder(_folder_of(preset), make, progress, if_full=False)


@contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    """Keep other processes out of this context for the same folder, and wait for them first."""
    with folder.with_name(f".{folder.name}.lock").open("ab") as file:
        try:
            lock(file, wait=False)
        except BlockingIOError:
            progress(f"waiting for another process that downloads {folder.name}", 0, None)
            lock(file)
        yield


def has_preset(preset: str, progress: Progress) -> bool:
    """Return whether a preset's checkpoint is in the cache and intact."""
    return any(is_cached(place, progress) for place in cache_paths(_folder_of(preset)))


def listed_presets() -> list[dict[str, Any]]:
    """Return a record for each known model: its name, address, digests, dimensions and language.

    `parameters` excludes biases; `sha256` is empty if no digest was published.
    """
    return [
        {
            "name": name,
            "parameters": preset.encoder.parameters,
            "layers": preset.encoder.num_hidden_layers,
            "hidden_size": preset.encoder.hidden_size,
            "vocab_size": preset.encoder.vocab_size,
            "language": preset.language,
            "lower_case": preset.lower_case,
            "cached": _is_on_disk(name),
            "url": checkpoint_url(name) if name in PRESETS else f"https://huggingface.co/{name}",
            "sha256": dict(preset.digests),
        }
        for name, preset in (PRESETS | RELATIVES).items()
    ]


def _is_on_disk(name: str) -> bool:
    if name in PRESETS:
        return any(map(os.path.isdir, cache_paths(_folder_of(name))))
    try:
        snapshots = snapshot(Repository(name)).parent
    except ConfigError:  # huggingface_hub is not installed.
        return False
    return any(path for file in WEIGHT_FILES for path in snapshots.glob(f"*/{file}"))


def _folder_of(preset: str) -> Path:
    return cache_folder() / "checkpoints" / preset


def unpack(archive: Path, folder: Path, digests: Mapping[str, str] | None = None) -> None:
    """Unpack a zip file in Google's format into the cache; `folder` appears when it is complete.

    Only the four known files are extracted, by their base names, so no path in the zip can write
    outside of `folder`.

    Args:
      digests: SHA-256 that members of the zip must have; None checks none.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(folder, existing="keep") as whole:
        try:
            with zipfile.ZipFile(archive) as bundle:
                members = _members(bundle, archive)
                check_unpacked(archive, sum(entry.file_size for entry in members.values()))
                for member, entry in members.items():
                    # Reading a member to its end checks its CRC.
                    with bundle.open(entry) as source, (whole / member).open("wb") as target:
                        shutil.copyfileobj(source, target)
                    _check_member(whole / member, (digests or {}).get(member), archive)
            seal(whole, folder)
        except _DAMAGED as error:
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            raise InputError(
                f"is not a complete zip file ({error})", "download it again", path=archive
            ) from None


def _check_member(file: Path, expected: str | None, archive: Path) -> None:
    if expected is not None and (digest := sha256(file)) != expected:
        raise InputError(
            f"its {file.name} has the SHA-256 {digest}, expected {expected}",
            "try again, and pass a folder with `init_checkpoint` if the server has another file",
            path=archive,
        )


def _members(bundle: zipfile.ZipFile, archive: Path) -> dict[str, zipfile.ZipInfo]:
    names = [Path(entry.filename).name for entry in bundle.infolist()]
    entries = dict(zip(names, bundle.infolist(), strict=True))
    if several := [member for member in MEMBERS if names.count(member) > 1]:
        what = f"has several files {several[0]}"
        raise InputError(what, "unpack it, and pass the folder of one model", path=archive)
    missing = [member for member in MEMBERS if member not in entries]
    if missing:
        raise InputError(
            f"has no {', '.join(missing)}", "use one of Google's BERT zips", path=archive
        )
    return {member: entries[member] for member in MEMBERS}


def _download(url: str, folder: Path, progress: Progress) -> Path:
    """Download `url` into `folder`, resuming an earlier attempt, and return the file."""
    part = folder / (url.rsplit("/", 1)[-1] + ".part")
    try:
        _fetch(url, part, progress)
    except (OSError, requests.RequestException) as error:
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise RunError(
                f"cannot be written ({reason(error)})",
                "free disk space and try again (which resumes the download), or set BERTACCUM_CACHE"
                " to another folder",
                path=part,
            ) from None
        if isinstance(error, OSError) and error.filename is not None:
            raise  # The file cannot be written.
        raise InputError(
            f"cannot download {url} ({_cause(url, error)})",
            "check the network and try again (which resumes the download), download the file"
            " elsewhere and pass it with `init_checkpoint`, or use random weights with"
            " `init_checkpoint` none (and `vocab` if the data folder has no vocab.txt)",
        ) from None
    return part


def _cause(url: str, error: Exception) -> str:
    """Return the message of the original error; requests and urllib3 wrap errors in others."""
    cause: Any = error
    if type(cause) in (requests.ConnectionError, requests.ConnectTimeout):
        return f"no network: {urlsplit(url).netloc} cannot be reached"
    while cause.args and isinstance(cause.args[0], Exception):
        cause = cause.args[0]
    return reason(getattr(cause, "reason", None) or cause)


def _fetch(url: str, part: Path, progress: Progress) -> None:
    done = part.stat().st_size if part.exists() else 0
    wanted = {"Range": f"bytes={done}-"} if done else {}
    with requests.get(url, headers=wanted, stream=True, timeout=_TIMEOUT_SECONDS) as response:
        if response.status_code == requests.codes.range_not_satisfiable:
            if response.headers.get("Content-Range", "").endswith(f"/{done}"):
                return None  # An earlier attempt downloaded the whole file.
            part.unlink()
            return _fetch(url, part, progress)
        response.raise_for_status()
        resumed = response.status_code == requests.codes.partial_content
        with part.open("ab" if resumed else "wb") as target:
            done = target.tell()
            length = response.headers.get("Content-Length")
            total = done + int(length) if length else None
            for chunk in response.iter_content(_CHUNK_BYTES):
                target.write(chunk)
                done += len(chunk)
                progress(f"downloading {url}", done, total)
    if total is not None and done != total:
        raise OSError(f"connection lost after {done} of {total} bytes")
    _check_digest(part, response.headers.get("x-goog-hash", ""))


def _check_digest(part: Path, hashes: str) -> None:
    """Raise OSError if a download differs from the MD5 digest in the server's headers, if any."""
    match = re.search(r"md5=([\w+/]+=*)", hashes)
    if match is None:
        return
    digest = hashlib.md5(usedforsecurity=False)
    with part.open("rb") as file:
        while block := file.read(_CHUNK_BYTES):
            digest.update(block)
    if base64.b64encode(digest.digest()).decode() != match[1]:
        part.unlink()
        raise OSError("the downloaded file is damaged: its MD5 digest differs from the server's")
