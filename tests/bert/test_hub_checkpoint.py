"""Checkpoints of a stand-in for the Hugging Face Hub: which files are read, and which are not."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub_client import HubClient
from hub_server import Hub

from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.huggingface_folder import write_description
from bertaccum.bert.pretrained_weights import save_huggingface
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertaccum.tasks.head import build_classifier

NAME = "owner/my-bert"
WORDS = [*SPECIAL_TOKENS, "good", "bad"]
SMALL = EncoderConfig(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    vocab_size=len(WORDS),
    max_position_embeddings=16,
)
# Prints what `find_model` or `find_dimensions` returns for each model, or its error, and all notes.
FIND = """
import json, sys
from pathlib import Path
from bertaccum.bert import model_finder
from bertaccum.errors import BertAccumError
from bertaccum.options.commands import TrainConfig

for name in sys.argv[3:]:
    told = []
    options = {"init_checkpoint": name} | json.loads(sys.argv[2])
    config = TrainConfig(max_seq_length=8, **options)
    try:
        source = getattr(model_finder, sys.argv[1])(config, lambda what, *_: told.append(what))
        found = {"name": source.name, "pinned": source.pinned}
        found |= {"layers": source.encoder.num_hidden_layers}
        found |= {"path": source.checkpoint and str(source.checkpoint)}
        found |= {"words": source.vocabulary and source.vocabulary.entries}
    except BertAccumError as error:
        found = {"error": f"{error.exit_code}: {error}"}
    print(json.dumps(found | {"told": told}))
"""
# Keeps huggingface_hub from being imported.
WITHOUT_PACKAGE = "import sys; sys.modules['huggingface_hub'] = None\n"
# Parts of a download are kept only in whole chunks, which have 10 MiB otherwise.
SMALL_CHUNKS = "import huggingface_hub.constants as c; c.DOWNLOAD_CHUNK_SIZE = 1000\n"
# A full disk: no file can grow above 8 KiB. Python would keep incomplete compiled modules.
FULL_DISK = """
import resource, signal, sys
sys.dont_write_bytecode = True
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of a small BERT in Hugging Face's format."""
    folder = tmp_path_factory.mktemp("model")
    model = build_classifier(build_encoder(SMALL), SMALL, 2)
    write_description(folder, SMALL, Tokenization(Vocabulary(WORDS), 12), ["a", "b"], dropout=0.1)
    save_huggingface(model, folder)
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(found["model.safetensors"]) > 8192
    return found


Find = Callable[..., Any]


@pytest.fixture
def find(client: HubClient) -> Find:
    """Return a function that finds a model, or a list of models, in a process of its own."""

    def call(
        name: str | list[str] = NAME,
        function: str = "find_model",
        first: str = "",
        options: dict[str, Any] | None = None,
        **variables: str,
    ) -> Any:
        names = [name] if isinstance(name, str) else name
        done = client.run(first + FIND, function, json.dumps(options or {}), *names, **variables)
        assert done.returncode == 0, done.stderr
        found = [json.loads(line) for line in done.stdout.splitlines()]
        return found[0] if isinstance(name, str) else found

    return call


def test_name_and_revisions_select_commits(
    client: HubClient, find: Find, files: dict[str, bytes]
) -> None:
    repository = client.hub.add(NAME, files)
    first = repository.revisions["main"]
    old = files | {"vocab.txt": "\n".join([*SPECIAL_TOKENS, "old", "bad"]).encode()}
    second = repository.commit(old, "v1.0/old")
    found = find()
    assert found["name"] == NAME
    assert found["pinned"] == f"hf://{NAME}@{first}"
    assert found["words"] == WORDS
    assert Path(found["path"]).read_bytes() == files["model.safetensors"]
    assert f"{NAME} on {client.hub.address[7:]}: commit {first}" in found["told"]
    assert f"downloading {NAME}/model.safetensors" in found["told"]
    for name in (f"{NAME}@v1.0/old", f"{NAME}@{second}", f"hf://{NAME}@{second}"):
        found = find(name)
        assert found["words"][-2] == "old"
        assert found["pinned"].endswith(f"@{second}")
    # A name with the commit that a run recorded asks nothing.
    assert find(f"hf://{NAME}@v1.0/old@{second}")["words"][-2] == "old"
    assert client.hub.requests == []


def test_only_the_files_that_are_read_are_downloaded(
    client: HubClient, find: Find, files: dict[str, bytes]
) -> None:
    other = {
        "modeling_x.py": b"raise SystemExit('executed')",
        "pytorch_model.bin": b"cos\nsystem\n(S'touch executed'\ntR.",
        "training_args.bin": b"cos\nsystem\n(S'touch executed'\ntR.",
        "onnx/model.onnx": b"x",
        "../outside.txt": b"x",
    }
    client.hub.add(NAME, files | other)
    assert "error" not in find()
    assert sorted(client.hub.fetched()) == sorted(files)
    # Without safetensors, PyTorch's file is read, but its pickle can only make tensors.
    without = {name: text for name, text in files.items() if name != "model.safetensors"}
    client.hub.add("owner/pickle", without | other)
    assert "its pickle uses os.system, which weights do not need" in find("owner/pickle")["error"]
    assert "training_args.bin" not in client.hub.fetched()
    assert not (client.folder / "executed").exists()


def test_shards_and_googles_files_are_downloaded(
    client: HubClient, find: Find, files: dict[str, bytes]
) -> None:
    weights = files["model.safetensors"]
    files = {name: text for name, text in files.items() if name != "model.safetensors"}
    index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    shards = {
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model-00001-of-00001.safetensors": weights,
    }
    client.hub.add(NAME, files | shards | {"pytorch_model-00001-of-00001.bin": b""})
    # Only the names of the tensors are wrong; nothing is missing.
    assert "which model.safetensors.index.json lists" in find()["error"]
    assert set(shards) < set(client.hub.fetched())
    assert "pytorch_model-00001-of-00001.bin" not in client.hub.fetched()
    google = {f"bert_model.ckpt.{end}": b"x" for end in ("index", "meta", "data-00000-of-00001")}
    config = json.dumps(dataclasses.asdict(SMALL)).encode()
    described = {"bert_config.json": config, "vocab.txt": files["vocab.txt"]}
    client.hub.add("owner/google", google | described)
    assert Path(find("owner/google")["path"]).name == "bert_model.ckpt"
    assert "bert_model.ckpt.meta" not in client.hub.fetched()
    # The weights decide which of two configurations is read.
    both = {name.replace("bert_model.ckpt", "model.ckpt-9"): text for name, text in google.items()}
    client.hub.add("owner/both", both | described | {"config.json": files["config.json"]})
    assert Path(find("owner/both")["path"]).name == "model.ckpt-9"
    client.hub.add("owner/other", {"model.safetensors": weights} | described)
    assert "owner/other: has no config.json; choose another" in find("owner/other")["error"]
    assert client.hub.fetched() == []


@pytest.mark.parametrize("function", ["find_model", "find_dimensions"])
def test_what_a_repository_lacks_is_told_before_a_download(
    client: HubClient, find: Find, files: dict[str, bytes], function: str
) -> None:
    """Options may select it instead."""
    wordless = {name: text for name, text in files.items() if name != "vocab.txt"}
    client.hub.add("owner/wordless", wordless)
    error = find("owner/wordless", function)["error"]
    assert "owner/wordless: has no vocab.txt or tokenizer.json; pass the" in error
    google = {f"bert_model.ckpt.{end}": end.encode() for end in ("index", "data-00000-of-00001")}
    client.hub.add(NAME, google | {name: files[name] for name in ("config.json", "vocab.txt")})
    error = find(function=function)["error"]
    assert f"{NAME}: has no bert_config.json; pass that of the pretrained model with" in error
    assert client.hub.fetched() == []
    (client.folder / "dimensions.json").write_text(json.dumps(dataclasses.asdict(SMALL)))
    assert find(function=function, options={"bert_config": "dimensions.json"})["layers"] == 1
    fetched = {*google, "vocab.txt"} if function == "find_model" else set()
    assert {*client.hub.fetched()} == fetched


def test_interrupted_download_resumes(
    client: HubClient, find: Find, files: dict[str, bytes]
) -> None:
    client.hub.add(NAME, files)
    client.hub.drops["model.safetensors"] = 5000
    found = find(first=SMALL_CHUNKS)
    assert Path(found["path"]).read_bytes() == files["model.safetensors"]
    assert client.hub.fetched().count("model.safetensors") == 2
    assert client.hub.ranges == ["bytes=5000-"]


def test_cache_needs_no_network_and_is_not_trusted(
    client: HubClient, find: Find, files: dict[str, bytes]
) -> None:
    client.hub.add(NAME, files)
    first = find()
    offline = find(HF_HUB_OFFLINE="1")
    assert (offline["pinned"], client.hub.requests) == (first["pinned"], [])
    assert find(HF_ENDPOINT="http://127.0.0.1:9")["pinned"] == first["pinned"]
    for name in ("model.safetensors", "vocab.txt"):
        file = (Path(first["path"]).parent / name).resolve()
        file.write_bytes(b"x" + file.read_bytes()[1:])
    again = find()
    assert sum("does not match its digest" in line for line in again["told"]) == 2
    assert Path(again["path"]).read_bytes() == files["model.safetensors"]


# Downloads some files of a repository, as another program does that shares the cache.
OTHER_PROGRAM = f"""
from huggingface_hub import hf_hub_download
for name in ("config.json", "vocab.txt", "pytorch_model.bin", "bert_model.ckpt.index"):
    hf_hub_download({NAME!r}, name)
"""


def test_files_of_other_programs_in_the_cache_decide_nothing(
    client: HubClient, find: Find, files: dict[str, bytes]
) -> None:
    client.hub.add(NAME, files | {"pytorch_model.bin": b"x", "bert_model.ckpt.index": b"x"})
    planned = find(function="find_dimensions", first=OTHER_PROGRAM)
    assert (planned["layers"], planned["words"]) == (1, None)
    assert "model.safetensors" not in client.hub.fetched()
    found = find()
    assert Path(found["path"]).read_bytes() == files["model.safetensors"]
    assert {"model.safetensors", "tokenizer_config.json"} <= {*client.hub.fetched()}
    # Without the list of files, those in the cache count.
    alone = {"BERTACCUM_CACHE": str(client.folder / "empty"), "HF_HUB_OFFLINE": "1"}
    assert find(found["pinned"], **alone)["path"] == found["path"]


def test_plan_downloads_only_the_configuration(
    client: HubClient, find: Find, files: dict[str, bytes]
) -> None:
    client.hub.add(NAME, files)
    found = find(function="find_dimensions")
    assert (found["name"], found["layers"], found["words"]) == (NAME, 1, None)
    assert client.hub.fetched() == ["config.json"]
    find()
    assert find(function="find_dimensions")["words"] == WORDS


def test_token_is_sent_only_to_the_hub(
    client: HubClient, find: Find, files: dict[str, bytes]
) -> None:
    client.hub.add(NAME, files).token = "secret"
    elsewhere = Hub()
    elsewhere.add(NAME, files)
    client.hub.elsewhere = elsewhere.address.replace("127.0.0.1", "localhost")
    assert "error" not in find(HF_TOKEN="secret")
    assert {token for _, path, token in client.hub.requests if NAME in path} == {"secret"}
    assert [path.rsplit("/")[-1] for _, path, _ in elsewhere.requests] == ["model.safetensors"]
    assert {token for _, _, token in elsewhere.requests} == {None}
    elsewhere.close()


def test_malformed_address_on_the_hub(client: HubClient, find: Find) -> None:
    for found in find(["hf://owner/tiny@", "hf://a/b/c", "hf://"]):
        line = "names no model; write hf://OWNER/NAME or hf://OWNER/NAME@REVISION"
        assert line in found["error"]
    assert client.hub.requests == []


def test_folder_has_priority(client: HubClient, find: Find, files: dict[str, bytes]) -> None:
    client.hub.add(NAME, files)
    folder = client.folder / NAME
    folder.mkdir(parents=True)
    assert "has no bert_model.ckpt.index" in find()["error"]
    # A folder beside it could be meant.
    assert (
        "; for a model on the Hugging Face Hub, write hf://owner/my-bret"
        in find("owner/my-bret")["error"]
    )
    assert client.hub.requests == []
    assert find(f"hf://{NAME}")["words"] == WORDS


def test_other_models_are_refused_before_their_weights(
    client: HubClient, find: Find, files: dict[str, bytes]
) -> None:
    config = json.loads(files["config.json"]) | {"model_type": "roberta"}
    client.hub.add(NAME, files | {"config.json": json.dumps(config).encode()})
    error = find()["error"]
    assert error.startswith(f"2: {NAME}/config.json: describes a RoBERTa model, ")
    assert client.hub.fetched() == ["config.json"]


WITHOUT_WEIGHTS = {
    "flax_model.msgpack": "has flax_model.msgpack, a model of transformers for Flax",
    "model.Q4_K_M.gguf": "has model.Q4_K_M.gguf, a GGUF model, which cannot be read",
    "adapter_model.safetensors": "has adapter_model.safetensors, a PEFT adapter",
    "weights.bin": "has no model.safetensors, only .*weights.bin",
}


def test_repositories_without_readable_weights(
    client: HubClient, find: Find, files: dict[str, bytes]
) -> None:
    config = {"config.json": files["config.json"], "vocab.txt": files["vocab.txt"]}
    names = [f"owner/model-{number}" for number in range(len(WITHOUT_WEIGHTS))]
    for name, file in zip(names, WITHOUT_WEIGHTS, strict=True):
        client.hub.add(name, config | {file: b"x"})
    for name, line, found in zip(names, WITHOUT_WEIGHTS.values(), find(names), strict=True):
        assert re.match(f"2: {name}: {line}", found["error"])
    assert client.hub.fetched() == []


UNUSABLE = {
    "owner/my-bret": "there is no such folder, and .* has no such model; check the name; if",
    "google-bert/bert-bas-uncased": r"did you mean google-bert/bert-base-uncased\?",
    "FacebookAI/roberta-base": "RoBERTa models are not supported",
    f"{NAME}@v2": "has no branch, tag or commit v2; choose one on http.*/owner/my-bert",
    "owner/private": "has no such model; .*set HF_TOKEN to a token that may read it",
    "owner/gated": "gated, .* no access; request it on http.*/owner/gated, and set HF_TOKEN",
}


def test_unusable_names_give_one_line(
    client: HubClient, find: Find, files: dict[str, bytes]
) -> None:
    client.hub.add(NAME, files)
    client.hub.add("owner/private", files).token = "secret"
    gated = client.hub.add("owner/gated", files)
    gated.token, gated.gated = "secret", True
    for token in ("", "wrong"):
        several = find([*UNUSABLE], HF_TOKEN=token)
        for (name, line), found in zip(UNUSABLE.items(), several, strict=True):
            error = found["error"]
            assert re.search(line, error)
            assert "\n" not in error
            assert error.startswith(f"2: {name.split('@')[0]}: ")
    assert client.hub.fetched() == []


def test_failures_give_one_line(client: HubClient, find: Find, files: dict[str, bytes]) -> None:
    client.hub.add(NAME, files)
    elsewhere = f"download it elsewhere with `hf download {NAME} --local-dir FOLDER`"
    assert find(HF_HUB_OFFLINE="1")["error"] == (
        f"2: {NAME}: is not in the cache, and HF_HUB_OFFLINE forbids downloads; unset it, or"
        f" {elsewhere}, and set `init_checkpoint` to FOLDER"
    )
    error = find(HF_ENDPOINT="http://127.0.0.1:9")["error"]
    assert f"2: {NAME}: cannot reach 127.0.0.1:9 (" in error
    assert elsewhere in error
    assert find(first=WITHOUT_PACKAGE)["error"] == (
        f"2: {NAME}: the Hugging Face Hub needs the package huggingface_hub; run pip install"
        " 'bertaccum[huggingface]'"
    )
    error = find(first=FULL_DISK)["error"]
    assert re.match(r"1: .*/hub-cache/.*: cannot be written \(File too large\); free disk", error)
    client.hub.status = 403
    assert "does not let this user read it (status 403); set HF_TOKEN" in find()["error"]
    client.hub.status = 418
    assert "answered with status 418" in find()["error"]
