"""An archive is used only if its checksum is the recorded one or the user allows another."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
from pathlib import Path

import pytest
from full_disk import full_disk
from preparing import YELP_FOLDER, run, write_archive, yelp_lines

from bertaccum.errors import ConfigError, InputError, RunError
from data_prep.sources.yelp import recorded_download, rewrite


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return write_archive(tmp_path / "mine.tgz", yelp_lines(4), yelp_lines(2))


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]


def test_recorded_checksum_is_read() -> None:
    recorded = recorded_download()
    assert recorded.url.endswith(recorded.filename)
    assert len(recorded.sha256) == 64


def test_unverified_archive_is_refused(archive: Path, tmp_path: Path) -> None:
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    with pytest.raises(ConfigError, match=f"{found}.*`allow_unverified_archive`"):
        run(archive=str(archive), out=str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == [archive]


def test_missing_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        run(archive=str(tmp_path / "none.tgz"), out=str(tmp_path / "out"))


def test_rewrite_keeps_valid_lines(archive: Path, tmp_path: Path) -> None:
    before = members(archive)
    rewrite(archive, tmp_path / "copy")
    assert members(tmp_path / "copy") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "mine.tgz"]


def test_rewrite_normalizes_line_ends(tmp_path: Path) -> None:
    source = write_archive(
        tmp_path / "a.tgz", b'"1","a"\r\n"2","b"', b'"2",""\n', f"./{YELP_FOLDER}"
    )
    rewrite(source, tmp_path / "copy")
    assert list(members(tmp_path / "copy").values()) == [b'"1","a"\n"2","b"\n', b'"2",""\n']


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'"3","three"', "is not of the form"),
        (b'1,"bare label"', "is not of the form"),
        (b'"1","no end', "is not of the form"),
        (b'"1","odd " quote"', "is not of the form"),
        (b'"1","a\rb"', "is not of the form"),
        (b"", "is not of the form"),
        (b'"1","caf\xe9"', "byte 0xe9 at position 9 is not UTF-8"),
    ],
)
def test_error_names_invalid_line(tmp_path: Path, line: bytes, message: str) -> None:
    source = write_archive(tmp_path / "a.tgz", yelp_lines(2) + line + b"\n", yelp_lines(2))
    with pytest.raises(InputError, match=rf"a.tgz:{YELP_FOLDER}/train.csv, row 3: .*{message}"):
        rewrite(source, tmp_path / "copy")


def test_small_archive_does_not_fill_memory_or_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = write_archive(tmp_path / "a.tgz", bytes(80 << 20), yelp_lines(2))
    with pytest.raises(InputError, match=r"a.tgz: unpacks to more than 50 times its size"):
        rewrite(full, tmp_path / "copy")
    longer = write_archive(tmp_path / "a.tgz", yelp_lines(2), yelp_lines(2))
    whole = gzip.decompress(longer.read_bytes())
    longer.write_bytes(gzip.compress(whole + bytes(80 << 20)))
    with pytest.raises(InputError, match=r"a.tgz: unpacks to more than 50 times its size"):
        rewrite(longer, tmp_path / "copy")
    monkeypatch.setattr("data_prep.sources.yelp.LONGEST", 1 << 14, raising=False)
    line = b'"1","%s"\n' % (b"a" * (1 << 14))
    source = write_archive(tmp_path / "a.tgz", yelp_lines(2) + line, yelp_lines(2))
    with pytest.raises(InputError, match=rf"a.tgz:{YELP_FOLDER}/train.csv, row 3: is longer than"):
        rewrite(source, tmp_path / "copy")
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(tmp_path / "a.tgz", "w:gz", format=form) as tar:
            tar.addfile(tarfile.TarInfo("a" * (1 << 15)))
        with pytest.raises(InputError, match=r"a.tgz: cannot be unpacked .*a header is too large"):
            rewrite(tmp_path / "a.tgz", tmp_path / "copy")


def test_other_and_damaged_archives_are_refused(tmp_path: Path) -> None:
    other = write_archive(tmp_path / "other.tgz", yelp_lines(2), yelp_lines(2), "imdb_polarity_csv")
    with pytest.raises(InputError, match=f"contains no {YELP_FOLDER}/train.csv"):
        rewrite(other, tmp_path / "copy")
    empty = write_archive(tmp_path / "empty.tgz", yelp_lines(2), b"")
    with pytest.raises(InputError, match=r"test.csv: has no rows"):
        rewrite(empty, tmp_path / "copy")
    cut = tmp_path / "cut.tgz"
    cut.write_bytes(write_archive(tmp_path / "a.tgz", yelp_lines(999), b"").read_bytes()[:-200])
    with pytest.raises(InputError, match="cannot be unpacked"):
        rewrite(cut, tmp_path / "copy")
    (tmp_path / "page.tgz").write_text("<html>Not found</html>")
    with pytest.raises(InputError, match="cannot be unpacked"):
        rewrite(tmp_path / "page.tgz", tmp_path / "copy")


@pytest.mark.parametrize("form", ["gz", "bz2", "xz"])
def test_no_flipped_byte_of_an_archive_gives_other_texts(tmp_path: Path, form: str) -> None:
    whole = tmp_path / "whole.tar"
    with tarfile.open(write_archive(tmp_path / "a.tgz", yelp_lines(2), yelp_lines(1))) as plain:
        # Without compression, a flipped byte of gzip is a flipped byte of a text.
        level = {"compresslevel": 0} if form == "gz" else {}
        with tarfile.open(whole, f"w:{form}", **level) as packed:  # type: ignore[call-overload]
            for member in plain:
                packed.addfile(member, plain.extractfile(member))
    raw, expected, refused = whole.read_bytes(), members(whole), 0
    for at in range(0, len(raw), len(raw) // 120):
        (tmp_path / "other.tar").write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        try:
            rewrite(tmp_path / "other.tar", tmp_path / "copy")
        except InputError:
            refused += 1
        else:
            assert members(tmp_path / "copy") == expected
    assert refused > 100


def test_checksum_of_an_archive_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "a.tgz"
    checksum = write_archive(path, yelp_lines(2), yelp_lines(1)).read_bytes()[-8:]
    write_archive(path, yelp_lines(2).replace(b"fine", b"sour"), yelp_lines(1))
    path.write_bytes(path.read_bytes()[:-8] + checksum)
    with pytest.raises(InputError, match=r"a.tgz: cannot be unpacked \(CRC check failed"):
        rewrite(path, tmp_path / "copy")


def test_full_disk_is_not_a_damaged_archive(archive: Path, tmp_path: Path) -> None:
    message = rf"mine.tgz: cannot be unpacked into {tmp_path} \(File too large\); free space there"
    with full_disk(), pytest.raises(RunError, match=message):
        rewrite(archive, tmp_path / "copy")
