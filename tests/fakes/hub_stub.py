"""A Hugging Face hub on the loopback: the endpoints of a download, over real HTTP, with faults on request."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

_LARGE_SUFFIXES = (".nemo", ".safetensors")  # kept outside git, as the hub keeps large files
_LISTING = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?")
_TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_CONTENT = re.compile(r"/content/([0-9a-f]{64})")


@dataclass(frozen=True)
class Fault:
    """A faulty answer for requests whose path matches."""

    path: str
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"{}"
    cut_after: int | None = None  # bytes of the right answer, before the connection ends
    times: int = 1_000_000


def commit_of(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()


class Hub:
    """Attributes:
    url: what HF_ENDPOINT is set to.
    requests: "METHOD path" of each, in order; `headers` has theirs.
    faults: ordered ones; each is used up after its `times`.
    before_answer: called with each path.
    """

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, dict[str, bytes]]] = {}  # name -> commit -> path -> content
        self.branches: dict[tuple[str, str], str] = {}
        self.requests: list[str] = []
        self.headers: list[Message] = []
        self.faults: list[Fault] = []
        self.before_answer: Callable[[str], object] = lambda path: None
        self.url = ""

    def add(self, name: str, files: Mapping[str, bytes], revision: str = "main") -> str:
        """Commit files to a repository, and let the branch point there. Returns the commit."""
        commit = commit_of(f"{name} {revision} {len(self.repos.get(name, ()))}")
        self.repos.setdefault(name, {})[commit] = dict(files)
        self.branches[name, revision] = commit
        return commit

    def fail(self, path: str, status: int, times: int = 1_000_000, **headers: str) -> None:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        self.faults.append(Fault(path, status, named, times=times))

    def paths(self, method: str = "GET") -> list[str]:
        return [request.split(" ", 1)[1] for request in self.requests if request.startswith(method)]

    def fault(self, path: str) -> Fault | None:
        for number, fault in enumerate(self.faults):
            if fault.times > 0 and re.search(fault.path, path):
                used = Fault(fault.path, fault.status, fault.headers, fault.body, fault.cut_after, fault.times - 1)
                self.faults[number] = used
                return fault
        return None

    def content(self, sha256: str) -> bytes | None:
        contents = (
            content for commits in self.repos.values() for files in commits.values() for content in files.values()
        )
        return next((content for content in contents if hashlib.sha256(content).hexdigest() == sha256), None)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        self.hub.headers.append(self.headers)
        self.hub.before_answer(path)
        fault = self.hub.fault(path)
        if fault is not None and fault.cut_after is None:
            return self._send(fault.status, fault.headers, fault.body)
        cut_after = None if fault is None else fault.cut_after
        if found := _LISTING.fullmatch(path):
            return self._listing(found[1], found[2] or "main")
        if found := _TREE.fullmatch(path):
            return self._tree(*found.groups())
        if found := _FILE.fullmatch(path):
            return self._file(*found.groups(), cut_after)
        if (found := _CONTENT.fullmatch(path)) and (content := self.hub.content(found[1])) is not None:
            return self._content(content, {"ETag": '"s3"'}, cut_after)
        return self._send(404, {}, b"")

    def _commit(self, name: str, revision: str) -> str | None:
        """Send 404 and return None if there is none."""
        if name not in self.hub.repos:
            self._send(404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b"{}")
            return None
        commit = self.hub.branches.get((name, revision), revision)
        if commit not in self.hub.repos[name]:
            self._send(404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"}, b"{}")
            return None
        return commit

    def _listing(self, name: str, revision: str) -> None:
        commit = self._commit(name, revision)
        if commit is None:
            return
        siblings = []
        for path, content in self.hub.repos[name][commit].items():
            sibling: dict[str, object] = {"rfilename": path, "size": len(content), "blobId": _git_checksum(content)}
            if path.endswith(_LARGE_SUFFIXES):
                sha256 = hashlib.sha256(content).hexdigest()
                sibling["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 135}
            siblings.append(sibling)
        self._send(200, {}, json.dumps({"id": name, "sha": commit, "siblings": siblings, "tags": []}).encode())

    def _tree(self, name: str, revision: str) -> None:
        commit = self._commit(name, revision)
        if commit is not None:
            files = [
                {"type": "file", "path": path, "size": len(content), "oid": _git_checksum(content)}
                for path, content in self.hub.repos[name][commit].items()
            ]
            self._send(200, {}, json.dumps(files).encode())

    def _file(self, name: str, revision: str, path: str, cut_after: int | None) -> None:
        commit = self._commit(name, revision)
        if commit is None:
            return
        content = self.hub.repos[name][commit].get(path)
        if content is None:
            return self._send(404, {"X-Error-Code": "EntryNotFound"}, b"")
        headers = {"X-Repo-Commit": commit}
        if not path.endswith(_LARGE_SUFFIXES):
            return self._content(content, headers | {"ETag": f'"{_git_checksum(content)}"'}, cut_after)
        sha256 = hashlib.sha256(content).hexdigest()
        headers |= {"X-Linked-ETag": f'"{sha256}"', "X-Linked-Size": str(len(content))}
        elsewhere = self.hub.url.replace("127.0.0.1", "localhost")  # another host, like the hub's file store
        return self._send(302, headers | {"Location": f"{elsewhere}/content/{sha256}"}, b"")

    def _content(self, content: bytes, headers: dict[str, str], cut_after: int | None) -> None:
        start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first = int(start[1]) if start else 0
        if first > len(content) or (first == len(content) and first > 0):
            return self._send(416, {"Content-Range": f"bytes */{len(content)}"}, b"")
        if start:
            headers = headers | {"Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"}
        self._send(206 if start else 200, headers, content[first:], cut_after)

    def _send(self, status: int, headers: Mapping[str, str], body: bytes, cut_after: int | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:cut_after])
        self.close_connection = cut_after is not None


def _git_checksum(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore a client that disconnects, which some tests do."""


@contextmanager
def serve() -> Iterator[Hub]:
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = _Server(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
