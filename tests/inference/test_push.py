"""Upload of exports to a stand-in for the Hugging Face Hub."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from forked import PROGRAM
from hub_client import HubClient

# The program, with a terminal as its standard input on which the answer has been typed.
WITH_TERMINAL = f"""
import os, pty, sys
master, terminal = pty.openpty()
os.write(master, sys.argv.pop(1).encode() + b"\\n")
sys.stdin = os.fdopen(terminal)
{PROGRAM}
"""
NAME = "owner/my-reviews"
Export = Callable[..., CompletedProcess[str]]


@pytest.fixture
def export(client: HubClient, trained: Path) -> Export:
    """Return a function that exports a run and uploads the export."""
    client.hub.may_write = "right"

    def call(
        *options: str,
        answer: str | None = None,
        token: str = "right",
        push: str = NAME,
        form: str = "huggingface",
    ) -> CompletedProcess[str]:
        arguments = ("export", "--run", trained / "runs/one", "--format", form, "--push", push)
        code = PROGRAM if answer is None else WITH_TERMINAL
        answers = () if answer is None else (answer,)
        everything = (*answers, *arguments, "--out", "model", *options)
        return client.run(code, *everything, HF_TOKEN=token)

    return call


def uploaded(client: HubClient) -> dict[str, bytes]:
    repository = client.hub.repositories["model", NAME]
    return repository.commits[repository.revisions["main"]]


def exported(client: HubClient) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (client.folder / "model").iterdir()}


def error(done: CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_new_model_has_the_exported_files(client: HubClient, export: Export) -> None:
    done = export("--private", answer="y")
    assert done.returncode == 0, done.stderr
    files, repository = exported(client), client.hub.repositories["model", NAME]
    assert uploaded(client) == files
    assert files["README.md"].startswith(b"---\nlibrary_name: transformers\n")
    assert repository.private
    assert repository.messages == ["Upload one"]
    assert done.stdout.splitlines()[-1] == f"{client.hub.address}/{NAME}: uploaded"
    question = f"Create the private model {client.hub.address}/{NAME} and upload {len(files)} files"
    assert question in done.stderr


def test_question_names_the_files_that_are_replaced(client: HubClient, export: Export) -> None:
    before = {"README.md": b"mine", "notes.txt": b"kept"}
    client.hub.add(NAME, before)
    done = export(answer="n")
    assert done.returncode == 0, done.stderr
    assert "which exists, and replace README.md?" in done.stderr
    assert "not uploaded" in done.stderr
    assert uploaded(client) == before
    assert "uploaded" not in done.stdout
    (client.folder / "model").rename(client.folder / "first")
    done = export("--yes")
    assert done.returncode == 0, done.stderr
    assert uploaded(client) == {**before, **exported(client)}


def test_nothing_is_uploaded_without_a_terminal(client: HubClient, export: Export) -> None:
    line = error(export())
    assert "standard input is no terminal; pass --yes to upload without a question" in line
    assert client.hub.requests == []
    assert not (client.folder / "model").exists()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"token": ""},
            "accepts files only from known users; set HF_TOKEN to a token that may write",
        ),
        (
            {"token": "wrong"},
            "does not let this user write it .status 403.; set HF_TOKEN to a token",
        ),
        ({"push": "my-reviews"}, "--push my-reviews is no name of a model .*OWNER/NAME"),
        ({"form": "tflite"}, "--push does not apply to --format tflite"),
    ],
)
def test_uploads_that_fail_give_one_line(
    export: Export, options: dict[str, str], line: str
) -> None:
    assert re.search(line, error(export("--yes", **options)))


def test_public_model_does_not_become_private(client: HubClient, export: Export) -> None:
    client.hub.add(NAME, {})
    line = error(export("--yes", "--private"))
    assert "--private applies to new models, but" in line
    assert uploaded(client) == {}
