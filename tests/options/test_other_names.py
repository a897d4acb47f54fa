"""Errors about options and commands of other programs say what bertaccum has instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import bertaccum
from bertaccum.cli.program import cli, main
from bertaccum.options.other_names import explain_command, other_names

CALLED = {
    ("train", "--lr", "1"): "bertaccum calls this --learning-rate;",
    ("train", "-lr", "1"): "'-lr': bertaccum calls this --learning-rate;",
    ("train", "--batch-size=8"): "'--batch-size': bertaccum calls this --target-batch;",
    ("train", "--train_batch_size", "8"): "bertaccum calls this --target-batch;",
    ("train", "--per_device_train_batch_size", "8"): "bertaccum calls this --micro-batch;",
    ("train", "--gradient-accumulation-steps", "4"): "--target-batch is the number of examples",
    ("train", "--num-train-epochs", "3"): "bertaccum calls this --epochs;",
    ("train", "--learning_rate", "1"): "bertaccum calls this --learning-rate;",
    ("train", "--fp16"): "bertaccum calls this --precision mixed_float16;",
    ("train", "--output-dir", "x"): "bertaccum calls this --out;",
    ("train", "--do_lower_case=True"): "bertaccum calls this --lower-case;",
    ("train", "--nouse_tpu"): "TPUs are not supported;",
    ("train", "--do_eval=true"): "each is a command: `bertaccum train`",
    ("train", "--label-column", "y"): "this is an option of `bertaccum prepare`, `eval`;",
    ("train", "--num_workers", "2"): "not needed: texts are tokenized once",
    ("eval", "--batch-size", "8"): "bertaccum calls this --batch;",
    ("predict", "--model_name_or_path", "r"): "bertaccum calls this --run;",
    ("predict", "--output", "x"): "bertaccum calls this --results;",
    ("prepare", "--validation_split", "0.1"): "bertaccum calls this --dev-fraction;",
    (
        "plan",
        "--lr",
        "1",
    ): "calls this --learning-rate, an option of `bertaccum pretrain`, `train`, `sweep`;",
    (
        "--lr",
        "1",
    ): "calls this --learning-rate, an option of `bertaccum pretrain`, `train`, `sweep`;",
    ("fine-tune",): "No such command 'fine-tune': bertaccum calls this train;",
    ("evaluate",): "No such command 'evaluate': bertaccum calls this eval;",
    ("train", "--freeze_layers", "8"): "--train-layers is the number of layers that are trained",
    ("train", "--warmup_steps", "9"): "--warmup-fraction is the fraction of all updates",
    ("train", "--doc_stride", "9"): "bertaccum calls this --stride;",
    ("train", "--validation_file", "x"): "`prepare` splits the training file",
    # Names that no program uses get Click's suggestion.
    ("train", "--target-bach", "8"): "Did you mean.*--target-batch",
}


@pytest.mark.parametrize("arguments", CALLED, ids=" ".join)
def test_error_says_what_bertaccum_calls_an_option(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(CALLED[arguments], line, re.IGNORECASE), line


def test_config_file_and_library_use_the_names_of_their_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("seed: 1\nnum_train_epochs: 3\n")
    with pytest.raises(SystemExit):
        main(["train", "--config", str(recipe)])
    error = capsys.readouterr().err
    assert "row 2: unknown key 'num_train_epochs'; bertaccum calls this epochs\n" in error
    recipe.write_text("train_file: x.csv\n")
    with pytest.raises(SystemExit):
        main(["train", "--config", str(recipe)])
    assert "'train_file'; this is an option of bertaccum prepare\n" in capsys.readouterr().err
    with pytest.raises(TypeError, match=r"'lr'; bertaccum calls this `learning_rate`$"):
        bertaccum.train(lr=1e-5)


@pytest.mark.parametrize(
    ("command", "key", "flag"),
    [
        ("train", "seeds", "--seeds"),
        ("train", "find_lr", "--find-lr"),
        ("train", "resume_from_checkpoint", "--resume"),
        ("pretrain", "logging-steps", "--log-every"),
        ("sweep", "seeds", "--seeds"),
    ],
)
def test_error_says_which_options_cannot_be_in_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, key: str, flag: str
) -> None:
    (tmp_path / "r.yaml").write_text(f"seed: 1\n{key}: 3\n")
    with pytest.raises(SystemExit):
        main([command, "--config", str(tmp_path / "r.yaml")])
    what = f"{key.replace('-', '_')!r} cannot be in a file"
    said = f"r.yaml, row 2: {what}; pass {flag} on the command line\n"
    assert capsys.readouterr().err.endswith(said)


def test_names_lead_to_options_and_commands_that_exist() -> None:
    flags = {flag for command in cli.commands.values() for p in command.params for flag in p.opts}
    assert {f"--{name.replace('_', '-')}" for name in other_names()["options"]} <= flags
    assert other_names()["commands"].keys() <= cli.commands.keys()
    assert explain_command("xyz") == ""
