"""Repositories on the Hugging Face Hub: their names, commits and files.

huggingface_hub does the work, and so decides the address of the Hub (HF_ENDPOINT), the token
(HF_TOKEN), the cache (HF_HOME) and whether it is used alone (HF_HUB_OFFLINE). It is imported only
when a repository is used. Only files that the caller names are downloaded; nothing is executed.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from bertaccum.errors import NO_SPACE, BertAccumError, ConfigError, InputError, RunError, reason
from bertaccum.system.files import sha256
from bertaccum.system.progress import Progress, tell

MODEL, DATASET = "model", "dataset"
_PREFIX = "hf://"
# A commit after a revision is the one for which the revision stood when a run began.
_NAME = re.compile(
    r"(?!.*\.\.)(?:hf://)?(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
    r"(?:@(?P<revision>\w[\w./+-]*))??(?:@(?P<commit>[0-9a-f]{40}))?"
)
_MAIN = "main"
# How to use a repository without a network, by its kind.
_ELSEWHERE = {
    MODEL: "download it elsewhere with `hf download {} --local-dir FOLDER`, and set"
    " `init_checkpoint` to FOLDER",
    DATASET: "download it elsewhere with `hf download {} --repo-type dataset --local-dir FOLDER`,"
    " and pass its files with `source` csv",
}
# The commit of each name, so that it stands for the same one until the process ends.
_commits: dict[Repository, Repository] = {}


class UnreachableError(InputError):
    """The Hub cannot be reached, and what was requested is not in the cache."""


class UnknownRepositoryError(InputError):
    """The Hub has no such repository, or hides it from this user."""


@dataclass(frozen=True)
class Repository:
    """A repository at a revision.

    Args:
      name: Its owner and its name, such as google-bert/bert-base-uncased.
      revision: A branch, a tag or a commit; None for the main branch.
      commit: The commit for which `revision` stands; None if it is not known yet.
      kind: `MODEL` or `DATASET`.
    """

    name: str
    revision: str | None = None
    commit: str | None = None
    kind: str = MODEL

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"

    @property
    def pinned(self) -> str:
        """The name with its commit, which `parse` reads back, even beside a folder of that name."""
        return _PREFIX + "@".join(filter(None, (self.name, self.revision, self.commit)))

    def same_as(self, began: Repository) -> bool:
        """Return whether a name means a repository for which the commit has been found before."""
        same = self.commit == began.commit if self.commit else self.revision == began.revision
        return self.name == began.name and same


def parse(named: str, kind: str = MODEL) -> Repository | None:
    """Return the repository that OWNER/NAME[@REVISION] means; None for other names."""
    match = _NAME.fullmatch(named)
    if match is None:
        return None
    revision = None if match["revision"] == _MAIN else match["revision"]
    return Repository(match["repo"], revision, match["commit"], kind)


def parse_pinned(named: str | None) -> Repository | None:
    """Return the repository for which a run recorded a name; None if it recorded a path."""
    return parse(named) if named and named.startswith(_PREFIX) else None


def model_named(named: str) -> Repository | None:
    """Return the repository that a name of a checkpoint means; None if it means a path.

    Files and folders have priority, and so do folders that could contain a misspelled one, unless
    the name begins with hf://.
    """
    path = Path(named)
    is_path = path.exists() or path.parent.is_dir() or path.suffix in (".zip", ".ckpt")
    return None if is_path and not named.startswith(_PREFIX) else parse(named)


def resolve(repository: Repository, progress: Progress) -> Repository:
    """Return a repository with its commit, which is looked up once in a process.

    Without a network, it is the commit of the last download.
    """
    if repository.commit is not None:
        return repository
    if repository not in _commits:
        with _explained(repository):
            found = _api().resolve_revision(
                repository.name, repo_type=repository.kind, revision=repository.revision
            )
        _commits[repository] = dataclasses.replace(repository, commit=found.resolved)
        tell(progress, f"{repository} on {_host()}: commit {found.resolved}")
    return _commits[repository]


def file_names(repository: Repository, progress: Progress) -> list[str]:
    """Return the paths of a repository's files; without a network, those in the cache."""
    try:
        with _explained(repository):
            names = _api().list_repo_files(
                repository.name, repo_type=repository.kind, revision=repository.commit
            )
    except UnreachableError:
        folder = snapshot(repository)
        names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*"))]
        if not names:
            raise
        tell(progress, f"{_host()} is not reached, so the files in {folder} are used")
    # A name is also a path on this machine.
    return [name for name in names if ".." not in name and not re.search(r"^/|[\\:\0]", name)]


def snapshot(repository: Repository) -> Path:
    """Return the folder of a repository's files in the cache, which may not exist yet."""
    hub = _package()
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
    with _explained(repository):
        found = _package().hf_hub_download(
            repository.name,
            name,
            repo_type=repository.kind,
            revision=repository.commit,
            tqdm_class=_bar(f"downloading {repository}/{name}", progress),
        )
    return Path(found)


def existing(repository: Repository) -> tuple[list[str], bool] | None:
    """Return the files of a repository and whether it is private; None if there is none yet.

    Raises:
      ConfigError: There is no token with which a repository could be written.
    """
    with _explained(repository, "write"):
        if not _package().get_token():
            what = f"{_host()} accepts files only from known users"
            raise ConfigError(what, "set HF_TOKEN to a token that may write to it")
        try:
            about = _api().repo_info(repository.name, repo_type=repository.kind)
        except _package().errors.GatedRepoError:
            raise
        except _package().errors.RepositoryNotFoundError:
            return None
    return [one.rfilename for one in about.siblings or ()], bool(about.private)


def upload(repository: Repository, folder: Path, private: bool, message: str) -> str:
    """Upload the files of a folder in one commit, and return the address of the repository.

    Args:
      private: Whether a repository that has to be created is private.
      message: Description of the commit.
    """
    name, kind = repository.name, repository.kind
    _package().utils.disable_progress_bars()
    with _explained(repository, "write"):
        _api().create_repo(name, repo_type=kind, private=private, exist_ok=True)
        _api().upload_folder(
            repo_id=name, repo_type=kind, folder_path=folder, commit_message=message
        )
    return page(repository)


def page(repository: Repository) -> str:
    """Return the address of a repository's page."""
    kind = "datasets/" if repository.kind == DATASET else ""
    return f"{_package().constants.ENDPOINT}/{kind}{repository.name}"


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

    class Bar(tqdm):  # type: ignore[misc, unused-ignore]
        monitor_interval = 0  # No thread that watches the bars.

        def display(self, *_: Any, **__: Any) -> bool:
            progress(what, int(self.n), self.total)
            return True

        def update_transfer(self, _: float) -> None:
            """Ignore bytes that are not in the file yet."""

    return Bar


def _api() -> Any:
    return _package().HfApi(library_name="bertaccum")


@functools.cache
def _package() -> Any:
    """Return the package huggingface_hub, whose warnings are not shown."""
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.file_download
    except ImportError:
        raise ConfigError(
            "the Hugging Face Hub needs the package huggingface_hub",
            "run pip install 'bertaccum[huggingface]'",
        ) from None
    huggingface_hub.utils.logging.set_verbosity_error()
    return huggingface_hub


def _host() -> str:
    return urlsplit(_package().constants.ENDPOINT).netloc


@contextmanager
def _explained(repository: Repository, doing: str = "read") -> Iterator[None]:
    """Turn the errors of huggingface_hub into ours."""
    try:
        errors = _package().errors
    except ConfigError as error:
        raise InputError(error.message, error.hint, path=repository.name) from None
    # The base class of the errors of the library that sends requests.
    of_http = errors.HfHubHTTPError.__bases__[0]
    try:
        yield
    except BertAccumError:
        raise
    except errors.HFValidationError as error:
        raise InputError(f"is no name on the Hub ({reason(error)})", path=repository.name) from None
    except (errors.RevisionResolutionError, errors.LocalEntryNotFoundError) as error:
        raise _unreachable(repository, error.__cause__ or error) from None
    except errors.OfflineModeIsEnabled as error:
        raise _unreachable(repository, error) from None
    except errors.HfHubHTTPError as error:
        raise _refused(repository, error, doing) from None
    except of_http as error:
        raise _unreachable(repository, error) from None
    except OSError as error:
        if error.errno in NO_SPACE:
            remedy = "free disk space and try again, or set HF_HOME to another folder"
        elif error.filename is None:
            raise InputError(f"cannot be read ({reason(error)})", path=str(repository)) from None
        else:
            remedy = "check its permissions, or set HF_HOME to another folder"
        where = error.filename or _package().constants.HF_HUB_CACHE
        raise RunError(f"cannot be written ({reason(error)})", remedy, path=where) from None


def _unreachable(repository: Repository, error: BaseException) -> InputError:
    elsewhere = _ELSEWHERE[repository.kind].format(repository.name)
    if isinstance(error, _package().errors.OfflineModeIsEnabled):
        what = "is not in the cache, and HF_HUB_OFFLINE forbids downloads"
        return UnreachableError(what, f"unset it, or {elsewhere}", path=str(repository))
    return UnreachableError(
        f"cannot reach {_host()} ({reason(error)})",
        f"check the network and HF_ENDPOINT, or {elsewhere}; HF_HUB_OFFLINE=1 uses only the cache",
        path=str(repository),
    )


def _refused(repository: Repository, error: Any, doing: str) -> BertAccumError:
    """Return the error for an answer of the Hub that is not the requested file."""
    errors, where = _package().errors, str(repository)
    status, token = error.response.status_code, "set HF_TOKEN to a token that may"
    if isinstance(error, errors.GatedRepoError):
        what = "is gated, and this user has no access"
        return InputError(
            what, f"request it on {page(repository)}, and {token} {doing} it", path=where
        )
    if isinstance(error, errors.RepositoryNotFoundError) and doing == "read":
        what = f"there is no such folder, and {_host()} has no such {repository.kind}"
        if repository.kind == DATASET:
            what = f"{_host()} has no such data set"
        remedy = f"check the name; if it is private, {token} {doing} it"
        return UnknownRepositoryError(what, remedy, path=where)
    if isinstance(error, errors.RevisionNotFoundError):
        what = f"has no branch, tag or commit {repository.revision or repository.commit}"
        return InputError(what, f"choose one on {page(repository)}", path=repository.name)
    if isinstance(error, errors.EntryNotFoundError):
        missing = PurePosixPath(urlsplit(str(error.response.url)).path).name
        return InputError(f"has no {missing}", "choose another revision", path=where)
    if status in (401, 403):
        what = f"{_host()} does not let this user {doing} it (status {status})"
        return InputError(what, f"{token} {doing} it", path=where)
    what = f"{_host()} answered with status {status} ({reason(error)})"
    return InputError(what, "try again later", path=where)
