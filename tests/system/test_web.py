"""fastscribe/_system/remote/web.py against servers that a store does not stand in for."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fastscribe._system import remote
from fastscribe.errors import UsageError

DATA = bytes(range(256)) * 40


class _Handler(BaseHTTPRequestHandler):
    """Answers by ranges over connections that stay open, and never tells the whole size; or with the logins that it got."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if "login" in self.path:
            logins = [self.headers.get(header, "none") for header in ("Authorization", "Proxy-Authorization")]
            answer = "\n".join(logins).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            return
        begin, end = self.headers.get("Range", "bytes=0-99999").removeprefix("bytes=").split("-")
        part = DATA[int(begin) : int(end) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {begin}-{int(begin) + len(part) - 1}/*")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_part_is_not_taken_for_the_whole(address: str) -> None:
    with pytest.raises(remote.RemoteError, match="does not tell the file's size"):
        remote.read_object(f"http://{address}/a.aac", 0, 1000)
    assert (
        remote.read_object(f"http://{address}/login").data == b"none\nnone"
    )  # the rest of an answer is in no one's way


def test_user_and_password_of_a_url(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    login = "Basic " + base64.b64encode("me:pä:ss".encode()).decode()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert remote.read_object(f"http://me:p%C3%A4:ss@{address}/login").data.decode().split("\n") == [login, "none"]
    assert remote.read_object(f"http://{address}/login").data == b"none\nnone"
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", f"http://me:p%C3%A4:ss@{address}")
    assert remote.read_object("http://nowhere.test/login").data.decode().split("\n") == ["none", login]


@pytest.mark.parametrize("url", ["http:///a.wav", "https://me@/a.wav", "http://[bad/a.wav"])
def test_no_host_is_refused_at_once(url: str) -> None:
    with pytest.raises(UsageError, match="not a URL: "):
        remote.read_object(url)
