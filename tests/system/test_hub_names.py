"""Names on the Hugging Face Hub, and the progress of downloads."""

from __future__ import annotations

import types

import pytest

from bertaccum.system import hub
from bertaccum.system.hub_names import Repository, parse

COMMIT = "0123456789" * 4


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("owner/my-bert", Repository("owner/my-bert")),
        ("owner/my-bert@main", Repository("owner/my-bert")),
        ("owner/my.bert_2@v1.0", Repository("owner/my.bert_2", "v1.0")),
        ("owner/my-bert@refs/pr/1", Repository("owner/my-bert", "refs/pr/1")),
        (f"owner/my-bert@{COMMIT}", Repository("owner/my-bert", None, COMMIT)),
        (f"hf://owner/my-bert@v1@{COMMIT}", Repository("owner/my-bert", "v1", COMMIT)),
        *((wrong, None) for wrong in ("my-bert", "a/b/c", "/a/b", "./a", "a/..", "a/b@", "a/b@-x")),
        *(
            (wrong, None)
            for wrong in ("a/b@../../x", "a/b@v1/../x", "https://a/b", "a/b\n", "a b/c")
        ),
    ],
)
def test_names_are_parsed(named: str, expected: Repository | None) -> None:
    found = parse(named)
    assert found == expected
    if found is not None:
        assert parse(found.pinned) == found


def test_names_mean_the_commit_that_was_found_before() -> None:
    began = Repository("owner/my-bert", "v1", COMMIT)
    same = (f"owner/my-bert@{COMMIT}", "owner/my-bert@v1", f"owner/my-bert@v2@{COMMIT}")
    other = ("owner/my-bert", "owner/my-bert@v2", "owner/other@v1", f"owner/my-bert@{'f' * 40}")
    for name in (*same, *other):
        asked = parse(name)
        assert asked is not None and asked.same_as(began) == (name in same), name


def test_progress_of_a_file_in_xet_never_goes_back() -> None:
    """huggingface_hub downloads such files with two progress bars, of classes that it is given."""
    reporting = pytest.importorskip("huggingface_hub.utils._xet_progress_reporting")
    seen: list[tuple[str, int, int | None]] = []
    bar = hub._bar("file", lambda *report: seen.append(report))
    named = {"reconstruction_desc": "written", "transfer_desc": "received", "tqdm_class": bar}
    with reporting.XetDownloadProgressReporter(total=100, log_level=30, **named) as reporter:
        for received, written in ((40, 10), (100, 60), (100, 100)):
            report = {"total_bytes_completed": written, "total_bytes": 100}
            report |= {"total_transfer_bytes_completed": received, "total_transfer_bytes": 100}
            report |= {"total_bytes_completion_rate": 1.0}
            report |= {"total_transfer_bytes_completion_rate": 1.0}
            reporter.update_progress(types.SimpleNamespace(**report), {})
    done = [count for _, count, _ in seen]
    assert done == sorted(set(done))
    assert done[0] == 0
    assert done[-1] == 100
    assert {(what, total) for what, _, total in seen} == {("file", 100)}
