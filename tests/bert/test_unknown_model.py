"""An unknown name or address of a model gets one remedy."""

from __future__ import annotations

import pytest

import bertaccum
from bertaccum.errors import ConfigError


@pytest.mark.parametrize("option", ["model", "init_checkpoint"])
@pytest.mark.parametrize(
    ("name", "advice"),
    {
        "roberta-base": "RoBERTa models are not supported, .*: use bert-base-cased$",
        "FacebookAI/xlm-roberta-base": "XLM-RoBERTa models are not supported",
        "microsoft/deberta-v3-base": "DeBERTa models are not supported, .*: use bert-base-cased$",
        "answerdotai/ModernBERT-base": "ModernBERT models are not supported, .*: use bert-base$",
        "distilbert-base-uncased": "; did you mean distilbert/distilbert-base-uncased[?]",
        "electra-small-discriminator": "; did you mean google/electra-small-discriminator[?]",
        "google/mobilebert-uncased": "MobileBERT models are not supported",
        "gpt2": "GPT-2 models are not supported",
        "distilroberta-base": "DistilRoBERTa models are not supported",
        "t5-small": "T5 models are not supported",
        "facebook/bart-base": "BART models are not supported",
        "intfloat/e5-base": "set `init_checkpoint` to (FOLDER|intfloat/e5-base)$",
        "nlpaueb/legal-bert-base-uncased": "set `init_checkpoint` to (FOLDER|nlpaueb/leg.*)$",
        "emilyalsentzer/Bio_ClinicalBERT": "set `init_checkpoint` to (FOLDER|emily.*BERT)$",
        "BERT-Base": "; did you mean bert-base[?]",
        "google-bert/bert-base-uncased": "set `init_checkpoint` to (FOLDER|google-bert/bert-.*)$",
        "hfl/chinese-roberta-wwm-ext": "set `init_checkpoint` to (FOLDER|hfl/chinese-.*)$",
        "my-model": "; set `init_checkpoint` to a folder, ",
        "dmis-lab/biobert-base-cased-v1.1": "set `init_checkpoint` to (FOLDER|dmis-lab/b.*1)$",
    }.items(),
)
def test_name_of_another_model_is_not_taken_for_a_misspelled_preset(
    option: str, name: str, advice: str
) -> None:
    with pytest.raises((ConfigError, bertaccum.InputError), match=advice) as raised:
        bertaccum.plan(**{option: name})
    assert ("did you mean" in advice) == ("did you mean" in str(raised.value))
    remedies = ("did you mean", "set `init_checkpoint` to ", ": use ")
    assert sum(remedy in str(raised.value) for remedy in remedies) == 1


HUB, GOOGLE = "https://huggingface.co", "https://storage.googleapis.com/bert_models"


@pytest.mark.parametrize(
    ("address", "advice"),
    {
        f"{HUB}/owner/my-model": "set `init_checkpoint` to owner/my-model$",
        f"{HUB}/owner/my-model/tree/main": "set `init_checkpoint` to owner/my-model$",
        f"{HUB}/google-bert/bert-base-cased/": "set `init_checkpoint` to google-bert/bert-",
        f"{HUB}/distilbert/distilbert-base-cased": "set `init_checkpoint` to distilbert/dist",
        f"{HUB}/FacebookAI/roberta-base": "RoBERTa models are not supported, ",
        f"{GOOGLE}/2020_02_20/uncased_L-4_H-512_A-8.zip": "did you mean uncased_L-4_H-512_A-8[?]",
        "gs://bucket/bert_model.ckpt": "download the model, and set `init_checkpoint` to its",
        "https://tfhub.dev/tensorflow/bert_en_uncased/4": "most models there are SavedModels, ",
        "https://www.kaggle.com/models/tensorflow/bert": "most models there are SavedModels, ",
    }.items(),
)
def test_addresses_are_shown_as_given(address: str, advice: str) -> None:
    with pytest.raises(bertaccum.InputError, match=f"^{address}: is an address, .*; {advice}"):
        bertaccum.plan(init_checkpoint=address)
    with pytest.raises(ConfigError, match=f"^`model` {address} is not .*; {advice}"):
        bertaccum.plan(model=address)
