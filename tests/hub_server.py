"""A stand-in for the Hugging Face Hub on the loopback interface.

It answers what huggingface_hub 2.4 requests: commits of revisions, lists of files, files (also in
parts, and from another host), new repositories and commits.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

_LARGE_BYTES = 4096  # Larger files are in Git LFS: their ETag is their SHA-256.
_API = re.compile(r"/api/(?P<kind>model|dataset)s/(?P<name>[^/]+/[^/]+)(?:/(?P<what>.*))?")
_FILE = re.compile(
    r"(?P<kind>/datasets)?/(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.*)"
)


@dataclass
class HubRepository:
    """A repository with its commits, each a dict of files."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)
    private: bool = False
    token: str | None = None  # The token that may read it; None for everyone.
    gated: bool = False
    # Commits to which the main branch moves, each after it was looked up.
    moves: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Add a commit with these files only, move the branch to it, and return its hash."""
        contents = sorted((name, hashlib.sha1(text).hexdigest()) for name, text in files.items())
        sha = hashlib.sha1(repr((contents, len(self.commits))).encode()).hexdigest()
        self.commits[sha], self.revisions[branch] = files, sha
        return sha

    def find(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.revisions.get(revision)


class Hub:
    """A server with repositories, which records the requests that it gets."""

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], HubRepository] = {}
        self.requests: list[tuple[str, str, str | None]] = []  # Method, path and token.
        self.ranges: list[str] = []  # Parts of files that were requested.
        self.may_write: str | None = None  # The token that may create repositories and commits.
        self.status: int | None = None  # The status of every answer, if it is set.
        self.elsewhere: str | None = None  # Address from which large files are sent.
        self.drops: dict[str, int] = {}  # Files, and the bytes after which a connection ends.
        hub = self
        handler = type("Handler", (_Handler,), {"hub": hub})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, name: str, files: dict[str, bytes], kind: str = "model") -> HubRepository:
        repository = self.repositories.setdefault((kind, name), HubRepository())
        repository.commit(files)
        return repository

    def fetched(self) -> list[str]:
        """Return the names of the files whose contents were sent."""
        paths = (path for method, path, _ in self.requests if method == "GET")
        return [path.split("/resolve/")[1].split("/", 1)[1] for path in paths if "resolve" in path]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Write no log."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        self.hub.requests.append((self.command, path, token))
        if self.hub.status is not None:
            self._send(self.hub.status, b"no")
        elif match := _API.fullmatch(path):
            self._api(match["kind"], match["name"], match["what"] or "", token)
        elif match := _FILE.fullmatch(path):
            self._file(match, token)
        elif path == "/api/repos/create":
            self._create(token)
        elif path == "/api/whoami-v2":
            self._json({"name": "owner", "type": "user"} if token else {}, 200 if token else 401)
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        else:
            self._send(404, b"no such address")

    def _find(self, kind: str, name: str, token: str | None) -> HubRepository | None:
        """Return a repository, or refuse it as the Hub does."""
        found = self.hub.repositories.get((kind, name))
        if found is not None and found.token in (None, token):
            return found
        if found is not None and found.gated:
            self._refuse(403 if token else 401, "GatedRepo")
        elif token is None:
            self._refuse(401, "RepoNotFound")
        else:
            self._refuse(404, "RepoNotFound")
        return None

    def _api(self, kind: str, name: str, what: str, token: str | None) -> None:
        repository = self._find(kind, name, token)
        if repository is None:
            return
        action, _, revision = what.partition("/")
        if action == "preupload":
            files = json.loads(self._body())["files"]
            self._json({"files": [_plan(one["path"]) for one in files]})
            return
        if action == "commit":
            self._commit(repository, name, revision, token)
            return
        sha = repository.find(revision or "main")
        if sha is None:
            self._refuse(404, "RevisionNotFound")
            return
        if action == "" and repository.moves:
            repository.revisions["main"] = repository.moves.pop(0)
        files = repository.commits[sha]
        if action == "tree":
            self._json([_entry(path, contents) for path, contents in files.items()])
        else:
            siblings = [{"rfilename": path} for path in files]
            about = {"id": name, "sha": sha, "private": repository.private, "siblings": siblings}
            self._json(about | {"tags": [], "gated": repository.gated, "downloads": 0})

    def _file(self, match: re.Match[str], token: str | None) -> None:
        kind = "dataset" if match["kind"] else "model"
        repository = self._find(kind, match["name"], token)
        if repository is None:
            return
        sha = repository.find(match["revision"])
        if sha is None:
            self._refuse(404, "RevisionNotFound")
            return
        contents = repository.commits[sha].get(match["path"])
        if contents is None:
            self._refuse(404, "EntryNotFound", {"X-Repo-Commit": sha})
            return
        headers = {"X-Repo-Commit": sha, "ETag": f'"{_digest(contents)}"', "Accept-Ranges": "bytes"}
        if self.hub.elsewhere is not None and len(contents) > _LARGE_BYTES:
            linked = {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(len(contents))}
            place = {"Location": self.hub.elsewhere + self.path}
            self._send(302, b"", headers | linked | place)
            return
        part = self.headers.get("Range")
        self.hub.ranges += [part] if part else []
        start = int(re.findall(r"\d+", part or "0")[0])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(contents) - 1}/{len(contents)}"
        drop = self.hub.drops.pop(match["path"], None) if self.command == "GET" else None
        self._send(206 if start else 200, contents[start:], headers, drop)

    def _create(self, token: str | None) -> None:
        asked = json.loads(self._body())
        name = f"{asked.get('organization') or 'owner'}/{asked['name']}"
        if token is None or token != self.hub.may_write:
            self._send(403 if token else 401, b"{}")
        elif ("model", name) in self.hub.repositories:
            self._json({"url": f"{self.hub.address}/{name}"}, 409)
        else:
            private = bool(asked.get("private") or asked.get("visibility") == "private")
            self.hub.repositories["model", name] = HubRepository(private=private)
            self.hub.repositories["model", name].commit({})
            self._json({"url": f"{self.hub.address}/{name}"})

    def _commit(self, repository: HubRepository, name: str, branch: str, token: str | None) -> None:
        body = self._body()
        if token is None or token != self.hub.may_write:
            self._send(403 if token else 401, b"{}")
            return
        sha = repository.find(branch)
        files = dict(repository.commits[sha]) if sha else {}
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "header":
                repository.messages.append(line["value"]["summary"])
            elif line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        sha = repository.commit(files, branch)
        url = f"{self.hub.address}/{name}/commit/{sha}"
        self._json({"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        return b"".join(parts)

    def _refuse(self, status: int, code: str, more: dict[str, str] | None = None) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code} | (more or {}))

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(
        self,
        status: int,
        contents: bytes,
        headers: dict[str, str] | None = None,
        drop: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(contents)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(contents[:drop])


def _digest(contents: bytes) -> str:
    if len(contents) > _LARGE_BYTES:
        return hashlib.sha256(contents).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(contents) + contents).hexdigest()


def _entry(path: str, contents: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(contents), "oid": "0" * 40}
    if len(contents) > _LARGE_BYTES:
        digest = hashlib.sha256(contents).hexdigest()
        entry["lfs"] = {"oid": digest, "size": len(contents), "pointerSize": 134}
    return entry


def _plan(path: str) -> dict[str, Any]:
    return {"path": path, "uploadMode": "regular", "shouldIgnore": False}
