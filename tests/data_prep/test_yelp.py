"""Yelp reviews: the real tensorflow-datasets builder with tiny archives and a local server."""

from __future__ import annotations

import csv
import hashlib
import io
import socket
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from preparing import run, words, write_archive, yelp_lines

from bertaccum.errors import BertAccumError, InputError
from bertaccum.options.prepare import PrepareConfig
from data_prep import preparation
from data_prep.sources import yelp
from data_prep.sources.yelp import Download
from data_prep.tables.rows import clean
from data_prep.tables.tsv import read_tsv

FILENAME = "yelp_review_polarity_csv.tgz"


@pytest.fixture(autouse=True)
def tfds_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test its own tensorflow-datasets cache and folder for temporary files."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tfds"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return write_archive(tmp_path / "mine.tgz", yelp_lines(40), yelp_lines(10, 40))


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes tensorflow-datasets expect a given archive at a given URL."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download.checksums import UrlInfo
    from tensorflow_datasets.text import yelp_polarity

    def recorded(path: Path, url: str) -> None:
        digest, size = hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size
        download = Download(url, digest, FILENAME)
        monkeypatch.setattr(yelp, "recorded_download", lambda: download)
        infos = {url: UrlInfo(tfds.core.utils.Size(size), digest, FILENAME)}
        monkeypatch.setattr(yelp_polarity, "_DOWNLOAD_URL", url)
        monkeypatch.setattr(yelp_polarity.YelpPolarityReviews, "url_infos", infos)

    return recorded


@pytest.fixture
def served(tmp_path: Path, archive: Path) -> Iterator[str]:
    """Yield the URL of the archive on a loopback server."""
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / FILENAME).write_bytes(archive.read_bytes())

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "www")))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/{FILENAME}"
    server.shutdown()
    server.server_close()


def texts(folder: Path, *splits: str) -> list[str]:
    return sorted(text for name in splits for text in read_tsv(folder / f"{name}.tsv")["text"])


def test_unescape_undoes_quotes_and_line_breaks() -> None:
    assert yelp.unescape(r'say ""hi""\nand\n\n""bye""') == 'say "hi"\nand\n\n"bye"'
    assert yelp.unescape('""""') == '""'
    assert yelp.unescape(r"price\size, C:\\new, three \\\n lines") == (
        "price\\size, C:\\\\new, three \\\\\n lines"
    )


def test_unverified_archive_is_prepared_without_touching_the_cache(
    archive: Path, tmp_path: Path, tfds_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = archive.read_bytes()
    left = tmp_path / "tmp/.bertaccum-archive-0123456789ab"  # By a killed process.
    (left / "data").mkdir(parents=True)
    told: dict[str, int] = {}
    config = PrepareConfig(
        archive=str(archive), allow_unverified_archive=True, out=str(tmp_path / "out")
    )
    result = preparation.prepare(config, lambda what, done, _: told.update({what: done}), words)
    assert [counts["rows"] for counts in result.manifest["counts"].values()] == [39, 1, 10]
    assert (result.manifest["labels"], result.manifest["source_labels"]) == (
        ["negative", "positive"],
        ["1", "2"],
    )
    assert "not the recorded one" in result.manifest["source"]
    expected = sorted(f'Review {i} said "fine".' for i in range(40))
    assert texts(result.folder, "train", "dev") == expected
    test = read_tsv(result.folder / "test.tsv")
    assert all(int(label) == int(text.split()[1]) % 2 for _, label, text in test.itertuples(False))
    assert archive.read_bytes() == before and not tfds_folder.exists()
    assert not list((tmp_path / "tmp").glob("*bertaccum-*")) and capsys.readouterr().out == ""
    assert (told["unpacking the archive"], told["converting test texts"]) == (2, 10)


def test_real_reviews_keep_every_character(shared: Path, tmp_path: Path) -> None:
    archive = shared / "data/yelp" / FILENAME
    result = run(archive=str(archive), allow_unverified_archive=True, out=str(tmp_path / "out"))
    with tarfile.open(archive) as tar:
        file = tar.extractfile("yelp_review_polarity_csv/test.csv")
        assert file is not None
        rows = list(csv.reader(io.TextIOWrapper(file, "utf-8", newline="")))
    expected = sorted(clean(text.replace("\\n", "\n")).strip() for _, text in rows)
    assert sorted(text.strip() for text in texts(result.folder, "test")) == expected


def test_verified_archive_fills_the_users_cache(
    archive: Path, tmp_path: Path, tfds_folder: Path, record: Any
) -> None:
    record(archive, "http://127.0.0.1:9/unused.tgz")
    result = run(archive=str(archive), out=str(tmp_path / "out"))
    assert "not the recorded" not in result.manifest["source"]
    assert len(texts(result.folder, "train", "dev")) == 40
    assert (tfds_folder / "yelp_polarity_reviews").is_dir()
    assert not list((tmp_path / "tmp").glob("*bertaccum-*")) and archive.exists()
    assert run(out=str(tmp_path / "out")).unchanged  # A download would give the same files.


def test_download_is_prepared(served: str, archive: Path, tmp_path: Path, record: Any) -> None:
    record(archive, served)
    result = run(out=str(tmp_path / "out"))
    assert len(texts(result.folder, "train", "dev", "test")) == 50


def test_wrong_download_is_refused(served: str, archive: Path, tmp_path: Path, record: Any) -> None:
    other = write_archive(tmp_path / "other.tgz", yelp_lines(6), yelp_lines(2))
    record(other, served)
    check_fails(tmp_path, "is not the recorded archive.*`archive`")


def test_missing_download_is_reported(
    served: str, archive: Path, tmp_path: Path, record: Any
) -> None:
    record(archive, served + ".moved")
    check_fails(tmp_path, r"the download of .* failed .*404.*`archive`")


def test_missing_network_is_reported(archive: Path, tmp_path: Path, record: Any) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    record(archive, f"http://127.0.0.1:{port}/{FILENAME}")
    check_fails(tmp_path, r"no network: cannot download http.*`archive`.*`source` sample")


def check_fails(tmp_path: Path, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(out=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_unwritable_cache_is_reported(
    archive: Path, tmp_path: Path, tfds_folder: Path, record: Any
) -> None:
    record(archive, "http://127.0.0.1:9/unused.tgz")
    tfds_folder.write_text("a file where the folder should be")
    with pytest.raises(BertAccumError, match="TFDS_DATA_DIR"):
        run(archive=str(archive), out=str(tmp_path / "out"))
