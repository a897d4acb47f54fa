"""The README says what the program does: its tables come from the program."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from bertaccum.config import (
    CompareConfig,
    EvalConfig,
    PlanConfig,
    PrepareConfig,
    ReportConfig,
    StepConfig,
    TrainConfig,
)

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def table(config: type) -> str:
    """The options of a command as the README shows them; of plan those that train has not."""
    lines = ["| option | default | |", "|---|---|---|"]
    shared = dataclasses.fields(StepConfig) if config is PlanConfig else ()
    for field in dataclasses.fields(config):
        if field.name in {other.name for other in shared}:
            continue
        help_text = field.metadata["help"]
        fallback = re.search(r" *\[default: (.*)\]", help_text)
        default = fallback[1] if fallback else field.default
        if default is None or isinstance(default, bool):
            default = {None: "", True: "on", False: "off"}[default]
        text = help_text.split(" [default:")[0]
        if field.metadata["choices"] and not any(
            c + ":" in text for c in field.metadata["choices"]
        ):
            text += f" One of {', '.join(field.metadata['choices'])}."
        lines.append(f"| `--{field.name.replace('_', '-')}` | {default} | {text} |")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "config", [PrepareConfig, PlanConfig, TrainConfig, EvalConfig, CompareConfig, ReportConfig]
)
def test_the_option_tables_are_the_programs(config: type) -> None:
    assert table(config) in README, f"put this into README.md:\n{table(config)}"


def test_every_file_the_readme_names_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_the_table_of_contents_names_every_module() -> None:
    for module in (*ROOT.glob("bertaccum/*"), *ROOT.glob("bertaccum/*/*.py"), ROOT / "data_prep"):
        if module.name.startswith("_") or module.suffix not in (".py", ""):
            continue
        assert f"`{module.name}`" in README or f"`{module.name}/`" in README, module


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_recipes_are_valid_and_say_how_to_run_them(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    config = TrainConfig(**yaml.safe_load(text))
    assert text.startswith("# ")
    assert f"bertaccum train --config configs/{path.name}" in text
    if path.stem == "yelp":
        same = dataclasses.replace(TrainConfig(), model="bert-small", init_checkpoint="bert-small")
        assert config == same
