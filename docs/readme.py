"""Writes into README.md what the program says of itself; `make readme` calls it.

Between `<!-- NAME -->` and `<!-- end -->` stands what `blocks` has under that name.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from bertaccum.cli.display.sentences import with_flags
from bertaccum.cli.program import cli
from bertaccum.config import (
    CompareConfig,
    EvalConfig,
    ExportConfig,
    PlanConfig,
    PredictConfig,
    PrepareConfig,
    ReportConfig,
    StepConfig,
    TrainConfig,
)

README = Path(__file__).resolve().parents[1] / "README.md"
_CONFIGS = {
    "prepare": PrepareConfig,
    "plan": PlanConfig,
    "train": TrainConfig,
    "eval": EvalConfig,
    "predict": PredictConfig,
    "export": ExportConfig,
    "compare": CompareConfig,
    "report": ReportConfig,
}


def blocks() -> dict[str, str]:
    """What the README shows of the program, by name."""
    tables = {f"options of {name}": table(config) for name, config in _CONFIGS.items()}
    return {"bertaccum --help": help_text()} | tables


def written(readme: str) -> str:
    """The README with all blocks as they should be.

    Raises:
      ValueError: it has no place for one of them.
    """
    for name, block in blocks().items():
        place = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(\n<!-- end -->)", re.DOTALL)
        if not place.search(readme):
            raise ValueError(f"README.md has no place for {name}")
        readme = place.sub(lambda found, block=block: found[1] + block + found[2], readme)
    return readme


def help_text() -> str:
    """What `bertaccum --help` prints, on lines of 100 characters at most."""
    context = cli.make_context(
        "bertaccum", [], resilient_parsing=True, terminal_width=100, max_content_width=100
    )
    return f"```\n{context.get_help()}\n```"


def table(config: Any) -> str:
    """The options of a command; of plan those that train has not."""
    lines = ["| option | default | |", "|---|---|---|"]
    shared = dataclasses.fields(StepConfig) if config is PlanConfig else ()
    for field in dataclasses.fields(config):
        if field.name in {other.name for other in shared}:
            continue
        help_text = with_flags(field.metadata["help"])
        fallback = re.search(r" *\[default: (.*)\]", help_text)
        default = fallback[1] if fallback else field.default
        if default is None or isinstance(default, bool):
            default = {None: "", True: "on", False: "off"}[default]
        text = help_text.split(" [default:")[0]
        choices = field.metadata["choices"]
        if choices and not any(choice + ":" in text for choice in choices):
            text += f" One of {', '.join(choices)}."
        lines.append(f"| `--{field.name.replace('_', '-')}` | {default} | {text} |")
    return "\n".join(lines)


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
