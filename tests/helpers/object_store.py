"""An S3-compatible server on the loopback, and a proxy before it that injects faults.

with object_store() as store:            # environment variables of AWS point to it
    store.put("bucket/a.wav", data)
    store.fault("cut", match="a.wav")    # the next request that names it
    store.requests                       # ["GET /bucket/a.wav", ..]
"""

from __future__ import annotations

import http.client
import os
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock

import pytest

PAGE = 100  # objects on a page of a listing
_CONTINUATION = "continuation-token="
# Flask would read urllib's own content type as a form. The server checks no signature, but gives the public nothing.
_AUTHORIZATION = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
_EXPIRED = b"<Error><Code>InvalidArgument</Code><Message>The continuation token provided is incorrect</Message></Error>"
_CONDITIONS = ("if-none-match", "if-match")
_HOP_HEADERS = ("connection", "transfer-encoding", "content-length", "keep-alive")


@dataclass
class Fault:
    """What happens to the requests whose method, path and query contain `match`.

    Kinds: a status ("503", "403"), "reset" before the answer, "lost" (done, but not answered), "cut" in the middle of the
    body, "slow" (a byte each 10 ms until `release` is set), "stall" (half of the body, and no more until `release`),
    "expired" (pages of a listing after the first are refused).
    """

    kind: str
    match: str
    times: int
    release: threading.Event = field(default_factory=threading.Event)


class FaultyStore:
    """The server and its proxy. `latency_s` delays each answer. Without `knows_conditions` writes replace what is there."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.requests: list[str] = []
        self.latency_s = 0.0
        self.knows_conditions = True
        self._upstream = upstream
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._server = _Server(self)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def fault(self, kind: str, match: str = "", times: int = 1) -> Fault:
        """Let the next `times` requests that contain `match` fail."""
        fault = Fault(kind, f"{match}&{_CONTINUATION}" if kind == "expired" else match, times)
        with self._lock:
            self._faults.append(fault)
        return fault

    def put(self, path: str, data: bytes) -> None:
        """Store an object, "bucket/key", or make a bucket, "bucket", past the proxy."""
        self.direct("PUT", path, data)

    def delete(self, path: str) -> None:
        self.direct("DELETE", path)

    def get(self, path: str) -> bytes:
        return self.direct("GET", path)

    def direct(self, method: str, path: str, data: bytes | None = None) -> bytes:
        url = "http://{}:{}/".format(*self._upstream) + urllib.request.quote(path)
        headers = {"Content-Type": "application/octet-stream", "Authorization": _AUTHORIZATION}
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=30) as answer:
            return answer.read()

    def count(self, text: str) -> int:
        """Return the number of requests so far that contain a text."""
        return sum(text in request for request in self.requests)

    def close(self) -> None:
        for fault in self._faults:
            fault.release.set()
        self._server.shutdown()
        self._server.server_close()

    def take_fault(self, request: str) -> Fault | None:
        with self._lock:
            self.requests.append(request)
            for fault in self._faults:
                if fault.times and all(part in request for part in fault.match.split("&")):
                    fault.times -= 1
                    return fault
        return None

    def forward(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(*self._upstream, timeout=30)
        try:
            headers = {"Authorization": _AUTHORIZATION} | dict(request.headers)  # a web address has none
            if not self.knows_conditions:
                headers = {name: value for name, value in headers.items() if name.lower() not in _CONDITIONS}
            connection.request(request.command, request.path, body or None, headers)
            answer = connection.getresponse()
            passed = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP_HEADERS]
            length = answer.getheader("Content-Length")
            data = answer.read()
            return answer.status, [*passed, ("Content-Length", length or str(len(data)))], data
        finally:
            connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, store: FaultyStore) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store = store

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that is gone


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *args: object) -> None:
        pass

    def _handle(self) -> None:
        store = self.server.store
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = store.take_fault(f"{self.command} {self.path}")
        if store.latency_s:
            time.sleep(store.latency_s)
        if fault and fault.kind == "reset":
            self._reset()
        elif fault and fault.kind == "expired":
            self._answer(400, [("Content-Length", str(len(_EXPIRED)))], _EXPIRED)
        elif fault and fault.kind.isdigit():
            self._answer(int(fault.kind), [("Content-Length", "0")], b"")
        elif fault and fault.kind == "lost":
            store.forward(self, body)
            self._reset()
        else:
            self._answer(*store.forward(self, body), fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, fault: Fault | None = None) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if fault is None:
            self.wfile.write(data)
            return
        half = len(data) // 2
        if fault.kind == "slow":
            while data and not fault.release.wait(0.01):
                self.wfile.write(data[:1])
                data = data[1:]
            self.wfile.write(data)
            return
        self.wfile.write(data[:half])
        self.wfile.flush()
        if fault.kind == "stall":
            fault.release.wait()
        self._reset()

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True


# What a run imports for a store.
OF_CLIENTS = ("tests.helpers.quick_clients", "s3transfer", "obstore", "fastscribe._system.remote.object_store")


@contextmanager
def object_store() -> Iterator[FaultyStore]:
    """Start both, with an empty bucket "bucket", and point AWS's environment variables and obstore's retries at them."""
    pytest.importorskip("obstore", reason="needs the extra remote")
    server = pytest.importorskip("moto.server", reason="needs moto, of the group dev")
    import logging

    from moto import backends

    from fastscribe._system import remote
    from fastscribe._system.remote import object_store as module

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    store = FaultyStore(moto.get_host_and_port())
    fast = module.RETRY | {"backoff": module.RETRY["backoff"] | {"init_backoff": _milliseconds(1)}}
    environment = {
        "AWS_ENDPOINT_URL": store.endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE),
        "NO_PROXY": "127.0.0.1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    modules = tuple(backends.list_of_moto_modules())  # moto lists them for each request: half of its time
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(module, "RETRY", fast),
        mock.patch.object(backends, "list_of_moto_modules", return_value=modules),
    ):
        os.environ.pop("AWS_PROFILE", None)
        remote.forget_stores()
        urllib.request.urlopen(
            urllib.request.Request("http://{}:{}/moto-api/reset".format(*store._upstream), b"", method="POST")
        ).close()
        store.put("bucket", b"")
        yield store
    remote.forget_stores()
    store.close()
    moto.stop()


def _milliseconds(number: int) -> object:
    from datetime import timedelta

    return timedelta(milliseconds=number)
