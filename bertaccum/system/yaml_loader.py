"""The loader of users' YAML files, which keeps a small file from taking much time or memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from bertaccum.system.files import read_text

# Bytes in the largest file; PyYAML reads about 100 KiB a second.
_LARGEST = 1 << 18


class Loader(yaml.SafeLoader):
    """A loader that refuses aliases of lists and mappings.

    With them, a few lines can stand for more values than fit in memory.

    Raises:
      yaml.YAMLError: The file is not YAML, or contains such an alias; also while values are loaded.
    """

    def __init__(self, source: Path | str) -> None:
        super().__init__(source if isinstance(source, str) else read_text(source, _LARGEST))

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node, as the base class does."""
        alias = self.peek_event() if self.check_event(yaml.AliasEvent) else None
        node = super().compose_node(parent, index)
        if alias is not None and not isinstance(node, yaml.ScalarNode):
            problem = f"the alias *{alias.anchor} stands for a list or a mapping"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=alias.start_mark)
        return node
