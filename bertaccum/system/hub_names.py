"""Names of models and data sets on the Hugging Face Hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MODEL, DATASET = "model", "dataset"
HUB_PREFIX = "hf://"
# A commit after a revision is the one for which the revision stood when a run began.
_NAME = re.compile(
    r"(?!.*\.\.)(?:hf://)?(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
    r"(?:@(?P<revision>\w[\w./+-]*))??(?:@(?P<commit>[0-9a-f]{40}))?"
)
_MAIN = "main"


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
        return HUB_PREFIX + "@".join(filter(None, (self.name, self.revision, self.commit)))

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
    return parse(named) if named and named.startswith(HUB_PREFIX) else None


def model_named(named: str) -> Repository | None:
    """Return the repository that a name of a checkpoint means; None if it means a path.

    Files and folders have priority, and so do folders that could contain a misspelled one, unless
    the name begins with hf://.
    """
    path = Path(named)
    is_path = path.exists() or path.parent.is_dir() or path.suffix in (".zip", ".ckpt")
    return None if is_path and not named.startswith(HUB_PREFIX) else parse(named)
