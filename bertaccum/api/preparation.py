"""Functions before a training: prepare data, list models, check the installation, plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bertaccum.api.arguments import configured, takes
from bertaccum.options.commands import PlanConfig
from bertaccum.options.prepare import PrepareConfig
from bertaccum.system.progress import Note, Progress, ignore_note, silent

if TYPE_CHECKING:
    from bertaccum.planning.plan_result import PlanResult
    from data_prep.preparation import PrepareResult


@takes(PrepareConfig)
def prepare(
    config: PrepareConfig | None = None,
    *,
    progress: Progress = silent,
    note: Note = ignore_note,
    **options: Any,
) -> PrepareResult:
    """Write train.tsv, dev.tsv, test.tsv and a manifest, as `bertaccum prepare` does.

    Args:
      config: The options; `options` override it. If it is None, the defaults apply.
      progress: Called with the name of a phase, the amount of finished work and the total.
      note: Called with messages about how the files are read.
      options: Fields of `PrepareConfig`.

    Returns:
      The data folder, its manifest, and whether the folder already contained these files.

    Raises:
      ConfigError: The folder must not be overwritten, or options contradict each other.
      InputError: The source or one of its rows cannot be used.
      RunError: The files cannot be written.
    """
    config = configured(PrepareConfig, config, options)
    from bertaccum.bert.tokenizer_files import learn_vocabulary
    from data_prep.preparation import prepare as run

    return run(config, progress, learn_vocabulary, note)


def models() -> list[dict[str, Any]]:
    """Return a record for each released model, as `bertaccum models --json` prints it."""
    from bertaccum.bert.download import listed_presets

    return listed_presets()


def doctor() -> dict[str, Any]:
    """Check the installation, and return the record that `bertaccum doctor --json` prints.

    A separate process imports TensorFlow, because the import may crash.

    Returns:
      The versions, devices and other facts that a bug report needs. `checks` contains a dict for
        each check, with `subject`, `status` (ok, warning or failed), `detail` and `remedy`, and
        `passed` is False if a check failed.
    """
    from bertaccum.inspection.examination import examine

    return examine()


@takes(PlanConfig)
def plan(
    config: PlanConfig | None = None, *, progress: Progress = silent, **options: Any
) -> PlanResult:
    """Find the fastest micro-batch size that fits in memory, as `bertaccum plan` does.

    Args:
      config: The options; `options` override it. If it is None, the defaults apply.
      progress: Called with the name of a phase, the amount of finished work and the total.
      options: Fields of `PlanConfig`.

    Returns:
      The plan and the measurements. The method `require_plan()` of the result returns the plan. If
      nothing fits, it raises a `RunError` that says what would fit.

    Raises:
      ConfigError, InputError: A file, folder or option cannot be used.
      RunError: The measurement process failed.
    """
    config = configured(PlanConfig, config, options)
    from bertaccum.training.inputs import check_plan

    check_plan(config, progress)
    from bertaccum.planning.planner import plan_for_options as run

    return run(config, progress)
