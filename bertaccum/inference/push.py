"""Upload of an exported model to the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bertaccum.errors import ConfigError
from bertaccum.options.commands import HUGGINGFACE, ExportConfig
from bertaccum.system import hub
from bertaccum.system.hub_errors import page
from bertaccum.system.hub_names import Repository, parse
from bertaccum.system.sizes import format_size

# Asks the user a question that can be answered with yes or no.
Confirm = Callable[[str], bool]


def check_push(config: ExportConfig) -> tuple[Repository, list[str] | None]:
    """Return the repository of `push` and its files, None if it does not exist yet.

    Raises:
      ConfigError: An option cannot be used, or there is no token.
      InputError: The Hub cannot be reached, or refuses the token.
    """
    if config.format != HUGGINGFACE:
        what = f"`push` does not apply to `format` {config.format}"
        raise ConfigError(what, f"omit it, or use `format` {HUGGINGFACE}")
    repository = parse(str(config.push))
    if repository is None or repository.revision or repository.commit:
        what = f"`push` {config.push} is no name of a model on the Hugging Face Hub"
        raise ConfigError(what, "pass OWNER/NAME")
    found = hub.existing(repository)
    if found is not None and config.private and not found[1]:
        what = f"`private` applies to new models, but {page(repository)} exists and is public"
        raise ConfigError(what, "make it private there, or omit `private`")
    return repository, None if found is None else found[0]


def push(config: ExportConfig, folder: Path, size: int, confirm: Confirm | None) -> str | None:
    """Upload a folder after the user has confirmed it; return the address of the model, or None."""
    repository, before = check_push(config)
    names = sorted(path.name for path in folder.iterdir())
    files, address = f"{len(names)} files ({format_size(size)})", page(repository)
    if before is None:
        kind = "private" if config.private else "public"
        question = f"Create the {kind} model {address} and upload {files}?"
    else:
        replaced = ", ".join(name for name in names if name in before) or "no file"
        question = f"Upload {files} to {address}, which exists, and replace {replaced}?"
    if confirm is not None and not confirm(question):
        return None
    return hub.upload(repository, folder, config.private, f"Upload {Path(config.run).name}")
