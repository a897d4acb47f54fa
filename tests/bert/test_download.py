"""Downloads from a local server in place of Google's: interrupted, damaged and missing files."""

from __future__ import annotations

import base64
import dataclasses
import errno
import hashlib
import http.server
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from full_disk import full_disk
from small import DAMAGES, Notes, truncate

from bertaccum.bert.download import MEMBERS, checkpoint_url, fetch_preset, has_preset, unpack
from bertaccum.bert.presets import PRESETS
from bertaccum.errors import InputError, RunError
from bertaccum.system import cache
from bertaccum.system.cache import DIGESTS, cache_folder
from bertaccum.system.files import sha256

ZIP = "uncased_L-2_H-128_A-2.zip"


class Server:
    """A server of `contents` at one path, which closes the connection after `cut` bytes, if set."""

    def __init__(self) -> None:
        self.contents = b""
        self.cut: int | None = None
        self.ignores_range = False
        self.digest = ""
        self.ranges: list[str | None] = []
        # A response waits for it before its last bytes, and a second request ends the waiting.
        self.goes_on: threading.Event | None = None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                wanted = self.headers["Range"]
                outer.ranges.append(wanted)
                wanted = None if outer.ignores_range else wanted
                if self.path != f"/models/2020_02_20/{ZIP}":
                    self.send_error(404)
                    return
                start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
                if start >= len(outer.contents):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(outer.contents)}")
                    self.end_headers()
                    return
                self.send_response(206 if wanted else 200)
                self.send_header("Content-Length", str(len(outer.contents) - start))
                self.send_header("x-goog-hash", f"crc32c=AAAAAA==, md5={outer.digest}")
                self.end_headers()
                contents = outer.contents[start : outer.cut]
                self.wfile.write(contents[:-1000])
                if outer.goes_on is not None:
                    if len(outer.ranges) > 1:
                        outer.goes_on.set()
                    outer.goes_on.wait(60)
                self.wfile.write(contents[-1000:])

            def log_message(self, *arguments: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/models"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever)
    thread.start()
    monkeypatch.setenv("BERTACCUM_CHECKPOINT_URL", server.url)
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join()


def make_zip(
    path: Path,
    folder: str = "",
    members: tuple[str, ...] = MEMBERS,
    compression: int = zipfile.ZIP_STORED,
) -> bytes:
    with zipfile.ZipFile(path, "w", compression) as bundle:
        for member in members:
            bundle.writestr(folder + member, member * 1000)
    return path.read_bytes()


def cached() -> list[str]:
    """Return the names in the folder of checkpoints, without those of locks."""
    paths = (cache_folder() / "checkpoints").iterdir()
    return [path.name for path in paths if path.suffix != ".lock"]


def ignore(*_: object) -> None:
    pass


def test_urls_are_those_of_the_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BERTACCUM_CHECKPOINT_URL", raising=False)
    base = "https://storage.googleapis.com/bert_models/"
    assert checkpoint_url("bert-small") == base + "2020_02_20/uncased_L-4_H-512_A-8.zip"
    assert checkpoint_url("bert-base") == base + "2020_02_20/uncased_L-12_H-768_A-12.zip"
    assert checkpoint_url("bert-large") == base + "2018_10_18/uncased_L-24_H-1024_A-16.zip"


def test_zip_with_far_larger_contents_is_not_unpacked(server: Server, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "made.zip", "w", zipfile.ZIP_DEFLATED) as bundle:
        for member in MEMBERS:
            bundle.writestr(member, bytes(20 << 20))
    server.contents = (tmp_path / "made.zip").read_bytes()
    too_large = "unpacks to more than 50 times its size plus 64 MiB"
    with pytest.raises(InputError, match=too_large):
        unpack(tmp_path / "made.zip", tmp_path / "out")
    with pytest.raises(InputError, match=too_large):
        fetch_preset("bert-tiny", ignore)
    assert {path.name for path in tmp_path.iterdir()} == {"made.zip", "cache"}
    assert cached() == []


def test_preset_is_downloaded_once(server: Server, tmp_path: Path) -> None:
    server.contents = make_zip(tmp_path / "made.zip")
    reports: list[tuple[int, int | None]] = []
    folder = fetch_preset("bert-tiny", lambda _, done, total: reports.append((done, total)))
    assert sorted(file.name for file in folder.iterdir()) == sorted([*MEMBERS, DIGESTS])
    assert reports[-1] == (len(server.contents), len(server.contents))
    fetch_preset("bert-tiny", ignore)
    assert len(server.ranges) == 1
    assert cached() == ["bert-tiny"]


def test_others_wait_for_the_process_that_downloads(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock of a file also excludes other threads, if they open the file themselves."""
    monkeypatch.setenv(cache._TEMPORARY, "")
    server.contents, server.goes_on = make_zip(tmp_path / "made.zip"), threading.Event()
    begun, found, told = threading.Event(), list[Path](), list[str]()
    first = threading.Thread(
        target=lambda: found.append(fetch_preset("bert-tiny", lambda *_: begun.set()))
    )
    first.start()
    assert begun.wait(60)

    def second(what: str, done: int, total: int | None) -> None:
        told.append(what)
        assert server.goes_on is not None
        server.goes_on.set()

    found.append(fetch_preset("bert-tiny", second))
    first.join()
    assert found == [cache_folder() / "checkpoints/bert-tiny"] * 2
    assert told == ["waiting for another process that downloads bert-tiny"]
    assert server.ranges == [None] and cached() == ["bert-tiny"]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [*MEMBERS, DIGESTS])
def test_damaged_checkpoint_is_downloaded_again(
    server: Server, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    server.contents = make_zip(tmp_path / "made.zip")
    folder = fetch_preset("bert-tiny", ignore)
    expected = {path.name: path.read_bytes() for path in folder.iterdir()}
    damage(folder / name)
    progress = Notes()
    assert fetch_preset("bert-tiny", progress) == folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == expected
    gone = (name, damage) == (DIGESTS, Path.unlink)
    why = "has no recorded digest" if gone else "does not match its recorded digest"
    assert progress.lines == [f"{folder} {why}, so it is not used"]
    assert len(server.ranges) == 2
    assert cached() == [folder.name]


def test_checkpoint_is_hashed_once_and_damage_is_told_once(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.contents, progress, hashed = make_zip(tmp_path / "made.zip"), Notes(), []
    folder = fetch_preset("bert-tiny", ignore)
    monkeypatch.setattr(cache, "sha256", lambda path: hashed.append(path) or sha256(path))
    for _ in range(3):
        assert has_preset("bert-tiny", progress)
    assert len(hashed) == len(MEMBERS) and progress.lines == []
    truncate(folder / "vocab.txt")
    for _ in range(3):
        assert not has_preset("bert-tiny", progress)
    assert progress.lines == [f"{folder} does not match its recorded digest, so it is not used"]


def test_folder_that_another_process_puts_into_the_cache_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, folder = tmp_path / "written", tmp_path / "folder"
    written.mkdir()
    (written / "a").write_text("a")

    def late(path: Path) -> Path:
        shutil.copytree(written, folder)
        return path.with_name("away")

    monkeypatch.setattr(cache, "beside", late)
    removed: list[Path] = []
    monkeypatch.setattr(cache, "remove", removed.append)
    cache.seal(written, folder)
    assert removed == []


def test_full_disk_keeps_the_download(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    server.contents = make_zip(tmp_path / "made.zip")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        with pytest.raises(OSError, match="No space left"):
            fetch_preset("bert-tiny", ignore)
    assert fetch_preset("bert-tiny", ignore).is_dir()
    # The second request asks only for what is missing, which is nothing.
    assert server.ranges == [None, f"bytes={len(server.contents)}-"]


def test_interrupted_download_resumes_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.contents, server.cut = make_zip(tmp_path / "made.zip"), (1 << 16) + 700
    with pytest.raises(InputError, match=r"cannot download .* resumes the download"):
        fetch_preset("bert-tiny", ignore)
    assert not (cache_folder() / "checkpoints/bert-tiny").exists()
    server.cut = None
    folder = fetch_preset("bert-tiny", ignore)
    assert server.ranges == [None, f"bytes={1 << 16}-"]
    assert (folder / "vocab.txt").read_text() == "vocab.txt" * 1000


def test_full_disk_is_not_a_network_error(server: Server, tmp_path: Path) -> None:
    server.contents = make_zip(tmp_path / "made.zip")
    message = r"checkpoints/.*\.zip\.part: cannot be written \(File too large\); free disk space"
    with full_disk(1 << 16), pytest.raises(RunError, match=message):
        fetch_preset("bert-tiny", ignore)
    fetch_preset("bert-tiny", ignore)
    assert server.ranges == [None, f"bytes={1 << 16}-"]


@pytest.mark.parametrize("blocked", ["cache", "cache/checkpoints", "part"])
def test_preset_is_downloaded_once_if_the_cache_cannot_be_written(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocked: str
) -> None:
    monkeypatch.setenv(cache._TEMPORARY, "")
    server.contents, progress = make_zip(tmp_path / "made.zip"), Notes()
    if blocked == "part":  # A folder in place of the file that is written first.
        part = checkpoint_url("bert-tiny").rsplit("/", 1)[1] + ".part"
        (cache_folder() / "checkpoints" / part).mkdir(parents=True)
    else:
        (tmp_path / blocked).parent.mkdir(exist_ok=True)
        (tmp_path / blocked).write_text("a file")
    folder = fetch_preset("bert-tiny", progress)
    assert (folder / "vocab.txt").read_text() == "vocab.txt" * 1000
    assert fetch_preset("bert-tiny", progress) == folder and has_preset("bert-tiny", progress)
    assert server.ranges[-1] is None and len(server.ranges) == (2 if blocked == "part" else 1)
    assert len(progress.lines) == 1 and "so nothing new is cached" in progress.lines[0]


def test_download_with_wrong_digest_is_refused(server: Server, tmp_path: Path) -> None:
    server.contents = make_zip(tmp_path / "made.zip")
    server.digest = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    with pytest.raises(InputError, match="its MD5 digest differs"):
        fetch_preset("bert-tiny", ignore)
    assert cached() == []
    server.digest = base64.b64encode(hashlib.md5(server.contents).digest()).decode()
    assert fetch_preset("bert-tiny", ignore).is_dir()


def test_preset_with_other_weights_is_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.contents = make_zip(tmp_path / "made.zip")
    found = hashlib.sha256(b"vocab.txt" * 1000).hexdigest()
    preset = PRESETS["bert-tiny"]
    for digest in ("0" * 64, found):
        other = dataclasses.replace(preset, digests={"vocab.txt": digest})
        monkeypatch.setitem(PRESETS, "bert-tiny", other)
        if digest == found:
            assert fetch_preset("bert-tiny", ignore).is_dir()
        else:
            with pytest.raises(InputError, match=f"vocab.txt has the SHA-256 {found}, expected 0"):
                fetch_preset("bert-tiny", ignore)
            assert cached() == []


def test_damaged_zip_is_refused_and_deleted(server: Server, tmp_path: Path) -> None:
    whole = make_zip(tmp_path / "made.zip")
    spot = whole.index(b"vocab.txtvocab.txt") + 50
    server.contents = whole[:spot] + b"!" + whole[spot + 1 :]
    with pytest.raises(InputError, match="not a complete zip"):
        fetch_preset("bert-tiny", ignore)
    assert cached() == []
    server.contents = whole
    assert fetch_preset("bert-tiny", ignore).is_dir()


def test_missing_file_and_unreachable_server_raise_input_error(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"cannot download .*_L-4_.*Not Found"):
        fetch_preset("bert-small", ignore)
    monkeypatch.setenv("BERTACCUM_CHECKPOINT_URL", "http://127.0.0.1:9/none")
    with pytest.raises(InputError, match=r"no network: 127.0.0.1:9 cannot.*`init_checkpoint` none"):
        fetch_preset("bert-small", ignore)


def test_older_layout_and_hostile_paths_unpack_to_the_same_files(tmp_path: Path) -> None:
    others = (*MEMBERS, "README.md", "loaded.py")
    make_zip(tmp_path / "old.zip", "uncased_L-24_H-1024_A-16/", others)
    make_zip(tmp_path / "hostile.zip", "../../", others)
    for name in ("old", "hostile"):
        unpack(tmp_path / f"{name}.zip", tmp_path / "out" / name)
        names = sorted(file.name for file in (tmp_path / "out" / name).iterdir())
        assert names == sorted([*MEMBERS, DIGESTS])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["hostile.zip", "old.zip", "out"]


def test_zip_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    make_zip(tmp_path / "other.zip", members=("vocab.txt",))
    with pytest.raises(InputError, match=r"has no bert_config.json"):
        unpack(tmp_path / "other.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_download_restarts_if_server_ignores_ranges(server: Server, tmp_path: Path) -> None:
    server.contents, server.cut = make_zip(tmp_path / "made.zip"), 700
    with pytest.raises(InputError, match="cannot download"):
        fetch_preset("bert-tiny", ignore)
    server.cut, server.ignores_range = None, True
    reports: list[int] = []
    folder = fetch_preset("bert-tiny", lambda _, done, total: reports.append(done))
    assert reports[-1] == len(server.contents)
    assert (folder / "vocab.txt").read_text() == "vocab.txt" * 1000


@pytest.mark.parametrize("left_over", ["whole", "longer"])
def test_leftover_download_may_be_complete_or_too_long(
    server: Server, tmp_path: Path, left_over: str
) -> None:
    server.contents = make_zip(tmp_path / "made.zip")
    folder = cache_folder() / "checkpoints"
    folder.mkdir(parents=True)
    rubbish = b"!" * 10 if left_over == "longer" else b""
    (folder / f"{ZIP}.part").write_bytes(server.contents + rubbish)
    assert fetch_preset("bert-tiny", ignore).is_dir()
    assert len(server.ranges) == (2 if left_over == "longer" else 1)


def test_zip_with_two_models_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as bundle:
        for folder in ("cased", "uncased"):
            for member in MEMBERS:
                bundle.writestr(f"{folder}/{member}", folder)
            bundle.writestr(f"__MACOSX/{folder}/._vocab.txt", "")
    match = r"both.zip: has several files bert_config.json; unpack it, and pass the folder of one"
    with pytest.raises(InputError, match=match):
        unpack(tmp_path / "both.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_compressed_zip_is_refused(tmp_path: Path) -> None:
    whole = bytearray(make_zip(tmp_path / "made.zip", compression=zipfile.ZIP_DEFLATED))
    start = whole.index(b"bert_config.json") + len("bert_config.json")
    whole[start : start + 8] = b"\xff" * 8
    (tmp_path / "made.zip").write_bytes(whole)
    with pytest.raises(InputError, match="not a complete zip"):
        unpack(tmp_path / "made.zip", tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["made.zip"]
