"""Token classification as a user runs it, from a CoNLL file to entities and exports."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from small import write_small_model

import bertaccum
from bertaccum.bert.vocabulary import SPECIAL_TOKENS
from data_prep.tables.words import word_spans

Run = Callable[..., tuple[int, str, str]]
NAMES, PLACES = ["Ada", "Bob", "Eve"], ["Rome", "Oslo"]
WORDS = [w.lower() for w in (*NAMES, *PLACES, "in", "(", ")", "the", "lee")]


def write_sentences(path: Path) -> None:
    lee, the = "Lee\tI-PER\n", "the\tO\n"
    sentences = [
        f"(\tO\n{name}\tB-PER\n{lee * (n % 2)})\tO\nin\tO\n{the * n}{place}\tB-LOC\n"
        for name in NAMES
        for place in PLACES
        for n in range(5)
    ]
    path.write_text("\n".join(sentences))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with data and a run of token classification."""
    folder = tmp_path_factory.mktemp("tags")
    write_sentences(folder / "train.conll")
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *WORDS]) + "\n")
    config = write_small_model(folder / "bert_config.json", folder / "vocab.txt")
    bertaccum.prepare(
        source="csv",
        task="token-classification",
        train_file=str(folder / "train.conll"),
        dev_fraction=0.2,
        out=str(folder / "data"),
    )
    bertaccum.train(
        data=str(folder / "data"),
        out=str(folder / "run"),
        bert_config=str(config),
        init_checkpoint="none",
        vocab=str(folder / "vocab.txt"),
        max_seq_length=16,
        target_batch=8,
        micro_batch=3,
        learning_rate=0.03,
        epochs=12,
    )
    return folder


def test_a_model_learns_names(trained: Path) -> None:
    result = bertaccum.evaluate(run=str(trained / "run"), split="dev", keep=False)
    assert result.entity_f1 == 1.0 and result.accuracy == 1.0
    assert [row.name for row in result.classes] == ["LOC", "PER"]
    assert result.confusion_classes == ["O", "LOC", "PER"]
    assert np.trace(result.confusion_matrix) == result.words == np.sum(result.confusion_matrix)
    strict = bertaccum.evaluate(run=str(trained / "run"), split="dev", strict=True)
    assert strict.entity_f1 == 1.0 and strict.strict
    assert [path.name for path in (trained / "run").glob("eval-*")] == ["eval-dev-strict.json"]
    (trained / "run/eval-dev-strict.json").unlink()


def test_entities_have_their_places_in_the_text(trained: Path, program: Run) -> None:
    text = "(Ada  Lee) in\u00a0Rome"
    run = ["predict", "--run", trained / "run"]
    [found] = map(json.loads, program(*run, text, "--json")[1].splitlines())
    assert [(e["type"], e["text"]) for e in found["entities"]] == [
        ("PER", "Ada  Lee"),
        ("LOC", "Rome"),
    ]
    assert all(text[e["start"] : e["end"]] == e["text"] for e in found["entities"])
    assert len(found["tags"]) == 6
    assert program(*run, text)[1] == "([PER Ada Lee]) in [LOC Rome]\n"
    [long] = bertaccum.predict(["Ada in " + "the " * 20], run=str(trained / "run"))
    assert (long.unread_words, len(long.tags or [])) == (8, 22)
    [empty] = bertaccum.predict([" "], run=str(trained / "run"))
    assert (empty.entities, empty.tags) == ([], [])


def test_results_are_a_conll_file(trained: Path, program: Run, tmp_path: Path) -> None:
    out, source = tmp_path / "out.conll", trained / "train.conll"
    code, _, err = program("predict", "--run", trained / "run", "--file", source, "--results", out)
    assert code == 0, err
    assert out.read_text() == source.read_text() + "\n"
    (tmp_path / "one.txt").write_text("Ada in Rome\n")
    one = ["--file", tmp_path / "one.txt", "--results", out]
    assert program("predict", "--run", trained / "run", *one)[1] == f"{out}: 1 prediction\n"
    scores = bertaccum.evaluate(run=str(trained / "run"), file=str(source), keep=False)
    assert (scores.examples, scores.entity_f1) == (30, 1.0)


def test_savedmodel_returns_the_entities_of_predict(trained: Path, tmp_path: Path) -> None:
    texts = ["(Ada Lee) in Rome", "", "(Eve)", "in \U0001f600 Oslo"]
    bertaccum.export(run=str(trained / "run"), out=str(tmp_path / "model"))
    serve = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    found = {name: value.numpy() for name, value in serve(text=tf.constant(texts)).items()}
    for row, predicted in enumerate(bertaccum.predict(texts, run=str(trained / "run"))):
        assert predicted.entities is not None
        for number, entity in enumerate(predicted.entities):
            for name in ("start", "end", "probability"):
                assert found[f"entity_{name}"][row, number] == pytest.approx(entity[name], abs=1e-6)
            assert found["entity_type"][row, number].decode() == entity["type"]
        count = len(predicted.entities)
        assert (found["entity_start"][row, count:] == -1).all()
        assert [tag.decode() for tag in found["tag"][row] if tag] == predicted.tags
    assert serve(text=tf.constant([], tf.string))["tag"].shape[0] == 0


def test_model_of_tokens_returns_the_tags_of_all_tokens(trained: Path, tmp_path: Path) -> None:
    bertaccum.export(run=str(trained / "run"), inputs="tokens", out=str(tmp_path / "model"))
    serve = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    vocabulary = [*SPECIAL_TOKENS, *WORDS]
    tokens = ["[CLS]", "ada", "in", "rome", "[SEP]"]
    ids = tf.constant([[vocabulary.index(token) for token in tokens]])
    found = serve(token_ids=ids, segment_ids=tf.zeros_like(ids), padding_mask=tf.ones_like(ids))
    assert all(value.shape[:2] == [1, 5] for value in found.values())
    [predicted] = bertaccum.predict(["Ada in Rome"], run=str(trained / "run"))
    assert [tag.decode() for tag in found["tag"][0, 1:4].numpy()] == predicted.tags


def test_head_of_an_export_can_be_kept(trained: Path, tmp_path: Path) -> None:
    bertaccum.export(run=str(trained / "run"), format="huggingface", out=str(tmp_path / "model"))
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]
    assert "problem_type" not in config
    assert config["id2label"] == {"0": "O", "1": "B-LOC", "2": "B-PER", "3": "I-PER"}
    # A pipeline of transformers would split words at punctuation.
    code = (tmp_path / "model/README.md").read_text().split("```python\n")[1].split("```")[0]
    assert "is_split_into_words=True" in code and "pipeline" not in code
    result = bertaccum.train(
        data=str(trained / "data"),
        out=str(tmp_path / "run"),
        init_checkpoint=str(tmp_path / "model"),
        keep_head=True,
        max_seq_length=16,
        micro_batch=3,
        max_updates=0,
    )
    assert result.best.entity_f1 == 1.0


@pytest.mark.slow
def test_code_in_the_card_gives_the_tags_of_predict(
    trained: Path, tmp_path: Path, transformers_python: Path
) -> None:
    bertaccum.export(run=str(trained / "run"), format="huggingface", out=str(tmp_path / "model"))
    code = (tmp_path / "model/README.md").read_text().split("```python\n")[1].split("```")[0]
    text = "(Ada(Lee) in Rome" + " the" * 20
    words = [text[start:end] for start, end in word_spans(text)]
    assert words[1] == "Ada(Lee"  # A pipeline of transformers makes three words of it.
    code = code.replace('["the", "words", "of", "a", "text"]', repr(words))
    code = code.replace("FOLDER", str(tmp_path / "model")) + "import json; print(json.dumps(tags))"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [transformers_python, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    [predicted] = bertaccum.predict([text], run=str(trained / "run"))
    assert predicted.tags is not None and predicted.unread_words
    assert predicted.tags[:5] == ["O", "B-PER", "O", "O", "B-LOC"]
    read = len(words) - predicted.unread_words
    assert [*json.loads(done.stdout.splitlines()[-1]).values()] == predicted.tags[:read]


def test_windows_read_all_words_and_all_pieces_can_be_trained(
    trained: Path, tmp_path: Path
) -> None:
    result = bertaccum.train(
        data=str(trained / "data"),
        out=str(tmp_path / "run"),
        init_checkpoint=str(trained / "run"),
        max_seq_length=6,
        windows=4,
        label_pieces="all",
        class_weight="balanced",
        micro_batch=3,
        epochs=1,
        learning_rate=0.01,
    )
    assert result.best.unread_words == 0
    [found] = bertaccum.predict(["the " * 6 + "in Oslo"], run=str(tmp_path / "run"))
    assert found.unread_words is None and len(found.tags or []) == 8
    # The signature `tokens` would read only one window.
    bertaccum.export(run=str(tmp_path / "run"), out=str(tmp_path / "model"))
    assert [*tf.saved_model.load(str(tmp_path / "model")).signatures] == ["serving_default"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"truncate": "tail"}, "`truncate` tail does not suit"),
        ({"windows": 2, "pool": "max"}, "`pool` max does not suit"),
        ({"class_weight": "O=0.5,B-ORG=2"}, "'B-ORG' is not a class"),
        ({"thresholds": "dev"}, "`thresholds` cannot be used with the task"),
        ({"best_by": "micro_f1"}, "choose one of entity_f1, macro_entity_f1, accuracy, loss"),
    ],
)
def test_options_that_do_not_suit_tags_are_refused(
    trained: Path, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(bertaccum.ConfigError) as error:
        bertaccum.train(
            data=str(trained / "data"), out=str(tmp_path / "run"), init_checkpoint="none", **options
        )
    assert message in f"{error.value.message} {error.value.hint}"
    assert not (tmp_path / "run").exists()


def test_report_shows_types_and_a_mistake_in_its_sentence(trained: Path, tmp_path: Path) -> None:
    sentence = "Ada\tB-PER\nin\tO\nOslo\tO\n"
    (tmp_path / "wrong.conll").write_text(sentence * 1 + "\n")
    page = tmp_path / "report.html"
    bertaccum.report(run=str(trained / "run"), out=str(page))
    text = page.read_text()
    assert "entity F1" in text and ">PER<" in text
