"""Errors about options and commands of other programs say what bertaccum has instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import bertaccum
from bertaccum.cli.program import cli, main
from bertaccum.errors import ConfigError
from bertaccum.other_names import _COMMANDS, _OPTIONS, explain_command

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
    ("plan", "--lr", "1"): "calls this --learning-rate, an option of `bertaccum train`, `sweep`;",
    ("--lr", "1"): "calls this --learning-rate, an option of `bertaccum train`, `sweep`;",
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


def test_names_lead_to_options_and_commands_that_exist() -> None:
    flags = {flag for command in cli.commands.values() for p in command.params for flag in p.opts}
    assert {f"--{name.replace('_', '-')}" for name in _OPTIONS} <= flags
    assert _COMMANDS.keys() <= cli.commands.keys()
    assert explain_command("xyz") == ""


@pytest.mark.parametrize("option", ["model", "init_checkpoint"])
@pytest.mark.parametrize(
    ("name", "advice"),
    {
        "roberta-base": "RoBERTa models are not supported, .*: use bert-base-cased; ",
        "FacebookAI/xlm-roberta-base": "XLM-RoBERTa models are not supported",
        "microsoft/deberta-v3-base": "DeBERTa models are not supported",
        "answerdotai/ModernBERT-base": "ModernBERT models are not supported",
        "distilbert-base-uncased": "DistilBERT models are not supported",
        "gpt2": "GPT-2 models are not supported",
        "distilroberta-base": "DistilRoBERTa models are not supported",
        "t5-small": "T5 models are not supported",
        "facebook/bart-base": "BART models are not supported",
        "intfloat/e5-base": "with `hf download intfloat/e5-base",
        "nlpaueb/legal-bert-base-uncased": "with `hf download nlpaueb/legal-bert-base-uncased",
        "emilyalsentzer/Bio_ClinicalBERT": "with `hf download emilyalsentzer/Bio_ClinicalBERT",
        "BERT-Base": "; did you mean bert-base[?]",
        "google-bert/bert-base-uncased": "; did you mean bert-base-uncased[?]",
        "hfl/chinese-roberta-wwm-ext": "with `hf download hfl/chinese-roberta-wwm-ext --local-dir",
        "dmis-lab/biobert-base-cased-v1.1": "with `hf download dmis-lab/biobert-base-cased-v1.1 ",
    }.items(),
)
def test_name_of_another_model_is_not_taken_for_a_misspelled_preset(
    option: str, name: str, advice: str
) -> None:
    with pytest.raises((ConfigError, bertaccum.InputError), match=advice) as raised:
        bertaccum.plan(**{option: name})
    assert ("did you mean" in advice) == ("did you mean" in str(raised.value))
    assert "`bertaccum models` lists" in str(raised.value)
