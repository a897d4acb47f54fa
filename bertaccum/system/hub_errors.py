"""The package huggingface_hub, and its errors in our words."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from bertaccum.errors import NO_SPACE, BertAccumError, ConfigError, InputError, RunError, reason
from bertaccum.system.hub_names import DATASET, MODEL, Repository

# How to use a repository without a network, by its kind.
_ELSEWHERE = {
    MODEL: "download it elsewhere with `hf download {} --local-dir FOLDER`, and set"
    " `init_checkpoint` to FOLDER",
    DATASET: "download it elsewhere with `hf download {} --repo-type dataset --local-dir FOLDER`,"
    " and pass its files with `source` csv",
}


class UnreachableError(InputError):
    """An error if the Hub cannot be reached and the cache does not have the requested file."""


class UnknownRepositoryError(InputError):
    """An error if the Hub has no such repository, or hides it from this user."""


@functools.cache
def package() -> Any:
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


def host() -> str:
    """Return the name of the machine that is the Hub."""
    return urlsplit(package().constants.ENDPOINT).netloc


def page(repository: Repository) -> str:
    """Return the address of a repository's page."""
    kind = "datasets/" if repository.kind == DATASET else ""
    return f"{package().constants.ENDPOINT}/{kind}{repository.name}"


@contextmanager
def explained(repository: Repository, doing: str = "read") -> Iterator[None]:
    """Turn the errors of huggingface_hub into ours."""
    try:
        errors = package().errors
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
    # The errors of hf_xet, which transfers most weights, have neither a number nor a file name.
    except (ConnectionError, TimeoutError) as error:
        raise _unreachable(repository, error) from None
    except (OSError, RuntimeError) as error:
        where = getattr(error, "filename", None)
        if _tells_full_disk(error):
            remedy = "free disk space and try again, or set HF_HOME to another folder"
        elif where is None:
            what = f"the transfer failed ({reason(error)})"
            remedy = "try again, or set HF_HUB_DISABLE_XET=1"
            raise InputError(what, remedy, path=str(repository)) from None
        else:
            remedy = "check its permissions, or set HF_HOME to another folder"
        where = where or package().constants.HF_HUB_CACHE
        raise RunError(f"cannot be written ({reason(error)})", remedy, path=where) from None


def _tells_full_disk(error: OSError | RuntimeError) -> bool:
    if (code := getattr(error, "errno", None)) is not None:
        return code in NO_SPACE
    return any(os.strerror(number) in str(error) for number in NO_SPACE)


def _unreachable(repository: Repository, error: BaseException) -> InputError:
    elsewhere = _ELSEWHERE[repository.kind].format(repository.name)
    if isinstance(error, package().errors.OfflineModeIsEnabled):
        what = "is not in the cache, and HF_HUB_OFFLINE forbids downloads"
        return UnreachableError(what, f"unset it, or {elsewhere}", path=str(repository))
    return UnreachableError(
        f"cannot reach {host()} ({reason(error)})",
        f"check the network and HF_ENDPOINT, or {elsewhere}; HF_HUB_OFFLINE=1 uses only the cache",
        path=str(repository),
    )


def _refused(repository: Repository, error: Any, doing: str) -> BertAccumError:
    """Return the error for an answer of the Hub that is not the requested file."""
    errors, where = package().errors, str(repository)
    status, token = error.response.status_code, "set HF_TOKEN to a token that may"
    if isinstance(error, errors.GatedRepoError):
        what = "is gated, and this user has no access"
        return InputError(
            what, f"request it on {page(repository)}, and {token} {doing} it", path=where
        )
    if isinstance(error, errors.RepositoryNotFoundError) and doing == "read":
        what = f"there is no such folder, and {host()} has no such {repository.kind}"
        if repository.kind == DATASET:
            what = f"{host()} has no such data set"
        remedy = f"check the name; if it is private, {token} {doing} it"
        return UnknownRepositoryError(what, remedy, path=where)
    if isinstance(error, errors.RevisionNotFoundError):
        what = f"has no branch, tag or commit {repository.revision or repository.commit}"
        return InputError(what, f"choose one on {page(repository)}", path=repository.name)
    if isinstance(error, errors.EntryNotFoundError):
        missing = PurePosixPath(urlsplit(str(error.response.url)).path).name
        return InputError(f"has no {missing}", "choose another revision", path=where)
    if status in (401, 403):
        what = f"{host()} does not let this user {doing} it (status {status})"
        return InputError(what, f"{token} {doing} it", path=where)
    what = f"{host()} answered with status {status} ({reason(error)})"
    return InputError(what, "try again later", path=where)
