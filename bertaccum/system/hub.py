"""Repositories on the Hugging Face Hub: their names, commits and files.

huggingface_hub does the work, and so decides the address of the Hub (HF_ENDPOINT), the token
(HF_TOKEN), the cache (HF_HOME) and whether it is used alone (HF_HUB_OFFLINE). It is imported only
when a repository is used. Only files that the caller names are downloaded; nothing is executed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from pathlib import Path
from typing import Any

from bertaccum.errors import ConfigError, InputError
from bertaccum.system.cache import cache_folder, read_cached, write_cached
from bertaccum.system.files import sha256
from bertaccum.system.hub_errors import explained, host, package, page
from bertaccum.system.hub_names import Repository
from bertaccum.system.progress import Progress, tell

# The commit of each name, so that it stands for the same one until the process ends.
_commits: dict[Repository, Repository] = {}


def resolve(repository: Repository, progress: Progress) -> Repository:
    """Return a repository with its commit, which is looked up once in a process.

    Without a network, it is the commit of the last download.
    """
    if repository.commit is not None:
        return repository
    if repository not in _commits:
        with explained(repository):
            found = _api().resolve_revision(
                repository.name, repo_type=repository.kind, revision=repository.revision
            )
        _commits[repository] = dataclasses.replace(repository, commit=found.resolved)
        tell(progress, f"{repository} on {host()}: commit {found.resolved}")
    return _commits[repository]


def file_names(repository: Repository, progress: Progress) -> list[str]:
    """Return the paths of a repository's files, which are looked up once for each commit."""
    home = cache_folder() / "hub" / repository.kind / repository.name
    known = read_cached(home / f"{repository.commit}.json", progress)
    if known is None:
        with explained(repository):
            names = _api().list_repo_files(
                repository.name, repo_type=repository.kind, revision=repository.commit
            )
        # A name is also a path on this machine.
        names = [name for name in names if not re.search(r"\.\.|^/|[\\:\0]", name)]
        known = {"files": names}
        write_cached(home / f"{repository.commit}.json", known, progress)
    return list(known["files"])


def snapshot(repository: Repository) -> Path:
    """Return the folder of a repository's files in the cache, which may not exist yet."""
    hub = package()
    home = hub.file_download.repo_folder_name(repo_id=repository.name, repo_type=repository.kind)
    return Path(hub.constants.HF_HUB_CACHE, home, "snapshots", str(repository.commit))


def fetch(repository: Repository, name: str, progress: Progress) -> Path:
    """Return a file of a repository, downloading it unless it is in the cache and intact."""
    path = _fetch(repository, name, progress)
    if not _is_intact(path):
        tell(progress, f"{path} does not match its digest, so it is downloaded again")
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        path = _fetch(repository, name, progress)
        if not _is_intact(path):
            raise InputError("is damaged", "try again later", path=f"{repository}/{name}")
    return path


def _fetch(repository: Repository, name: str, progress: Progress) -> Path:
    with explained(repository):
        found = package().hf_hub_download(
            repository.name,
            name,
            repo_type=repository.kind,
            revision=repository.commit,
            tqdm_class=_bar(f"downloading {repository}/{name}", progress),
        )
    return Path(found)


def existing(repository: Repository) -> tuple[list[str], bool] | None:
    """Return the files of a repository and whether it is private; None if it does not exist yet.

    Raises:
      ConfigError: There is no token with which a repository could be written.
    """
    with explained(repository, "write"):
        if not package().get_token():
            what = f"{host()} accepts files only from known users"
            raise ConfigError(what, "set HF_TOKEN to a token that may write to it")
        try:
            about = _api().repo_info(repository.name, repo_type=repository.kind)
        except package().errors.GatedRepoError:
            raise
        except package().errors.RepositoryNotFoundError:
            return None
    return [one.rfilename for one in about.siblings or ()], bool(about.private)


def upload(repository: Repository, folder: Path, private: bool, message: str) -> str:
    """Upload the files of a folder in one commit, and return the address of the repository.

    Args:
      private: Whether a repository that has to be created is private.
      message: Description of the commit.
    """
    name, kind = repository.name, repository.kind
    package().utils.disable_progress_bars()
    with explained(repository, "write"):
        _api().create_repo(name, repo_type=kind, private=private, exist_ok=True)
        _api().upload_folder(
            repo_id=name, repo_type=kind, folder_path=folder, commit_message=message
        )
    return page(repository)


def _is_intact(path: Path) -> bool:
    """Return whether a file in the cache has the digest with which Git or Git LFS names it."""
    name = path.resolve().name
    if re.fullmatch(r"[0-9a-f]{64}", name):
        return sha256(path) == name
    if re.fullmatch(r"[0-9a-f]{40}", name):
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        digest.update(path.read_bytes())
        return digest.hexdigest() == name
    return True  # Other servers, and systems without links, name it otherwise.


def _bar(what: str, progress: Progress) -> type:
    """Return a class that huggingface_hub uses as a progress bar."""
    from tqdm.std import tqdm

    reached = [-1]  # A file in the Hub's storage Xet has two bars, of received and written bytes.

    class Bar(tqdm):  # type: ignore[misc, unused-ignore]
        monitor_interval = 0  # No thread that watches the bars.

        def display(self, *_: Any, **__: Any) -> bool:
            if self.n > reached[0]:
                reached[0] = self.n
                progress(what, int(self.n), self.total)
            return True

    return Bar


def _api() -> Any:
    return package().HfApi(library_name="bertaccum")
