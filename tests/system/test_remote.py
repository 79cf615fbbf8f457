"""fastscribe/_system/remote against a real S3-compatible server, with faults injected."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from fastscribe._system import remote
from fastscribe._system.remote import retry
from fastscribe._system.urls import is_url
from fastscribe.errors import UsageError
from tests.conftest import ROOT
from tests.helpers.object_store import PAGE, FaultyStore, object_store
from tests.helpers.store_contract import StoreContract

DATA = bytes(range(256)) * 400


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyStore]:
    with object_store() as store:
        store.put("bucket/a.wav", DATA)
        for number in range(PAGE + 10):
            store.put(f"bucket/many/{number:04}.wav", b"x")
        yield store


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket/a", True),
        ("hf://datasets/a/b", True),
        ("HTTPS://host/a", True),
        ("C://a.wav", False),
        ("a:b.wav", False),
        ("s3:/bucket", False),
        ("./s3://bucket", False),
        ("", False),
    ],
)
def test_is_url(text: str, expected: bool) -> None:
    assert is_url(text) is expected


class TestObjectStore(StoreContract):
    @pytest.fixture
    def folder(self, server: FaultyStore) -> str:
        return "s3://bucket/contract"


class Shelf(DirFileSystem):
    """A file system of another package."""

    protocol = "shelf"

    def __init__(self, **options: object) -> None:
        super().__init__("/shelf", MemoryFileSystem(), **options)


class TestFileSystemStore(StoreContract):
    @pytest.fixture(params=["memory", "shelf"])
    def folder(self, request: pytest.FixtureRequest) -> str:
        fsspec.register_implementation("shelf", Shelf, clobber=True)
        return f"{request.param}://contract"


@pytest.mark.parametrize("scheme", ["s3", "web"])
def test_an_empty_object(server: FaultyStore, scheme: str) -> None:
    server.put("bucket/empty", b"")
    url = "s3://bucket/empty" if scheme == "s3" else f"{server.endpoint}/bucket/empty"
    content = remote.read_object(url, 0, 1000)
    assert (content.data, content.size) == (b"", 0)
    assert list(remote.read_lines(url)) == []


def test_google_cloud_storage(server: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its protocol for objects is S3's; the server stands in for it."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
    url = "gs://bucket/google/a b.wav"
    version = remote.write_object(url, b"hello", if_version="")
    assert list(remote.list_objects("gs://bucket/google")) == [remote.RemoteObject(url, 5, version)]
    assert remote.read_object(url, 1, 3) == remote.Content(b"ell", 5, version)
    with pytest.raises(remote.RemoteConflict):
        remote.write_object(url, b"again", if_version="another")


def url_of_data(server: FaultyStore, scheme: str) -> str:
    return "s3://bucket/a.wav" if scheme == "s3" else f"{server.endpoint}/bucket/a.wav"


@pytest.mark.parametrize("scheme", ["s3", "web"])
@pytest.mark.parametrize("kind", ["503", "429", "500", "reset", "cut"])
def test_what_may_pass_is_retried(server: FaultyStore, kind: str, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_BACKOFF_S", 0.001)
    server.fault(kind, "GET /bucket/a.wav", times=2)
    before = len(server.requests)
    assert remote.read_object(url_of_data(server, scheme)).data == DATA
    assert len(server.requests) - before == 3


@pytest.mark.parametrize("scheme", ["s3", "web"])
@pytest.mark.parametrize(("kind", "error"), [("403", PermissionError), ("404", FileNotFoundError), ("400", OSError)])
def test_what_will_not_pass_is_asked_once(server: FaultyStore, kind: str, error: type[OSError], scheme: str) -> None:
    server.fault(kind, "GET /bucket/a.wav")
    before = len(server.requests)
    with pytest.raises(error) as caught:
        remote.read_object(url_of_data(server, scheme))
    assert len(server.requests) - before == 1
    assert "\n" not in str(caught.value) and (kind in str(caught.value) or scheme == "s3")


def test_a_refusal_names_where_credentials_come_from(server: FaultyStore) -> None:
    server.fault("403", "GET /bucket/a.wav")
    with pytest.raises(remote.RemoteDenied, match=r"access denied to these credentials; they come from AWS_PROFILE"):
        remote.read_object("s3://bucket/a.wav")


def test_an_expired_listing_goes_on_behind_its_last_key(server: FaultyStore) -> None:
    server.fault("expired")
    before = len(server.requests)
    keys = [found.url for found in remote.list_objects("s3://bucket/many/")]
    assert keys == [f"s3://bucket/many/{number:04}.wav" for number in range(PAGE + 10)]
    assert len(server.requests) - before == 3  # a page, the refused one, and one behind the last key


def test_a_missing_bucket_is_named(server: FaultyStore) -> None:
    with pytest.raises(FileNotFoundError, match="no such bucket: s3://nowhere"):
        list(remote.list_objects("s3://nowhere/a"))


def test_an_unreachable_store_is_tried_a_few_times(server: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore would retry for 40 s and more; its retries are for stores that have answered."""
    connect, pauses = retry._connect, []

    def count(host: str, port: int, timeout_s: float) -> None:
        pauses.append(timeout_s)
        connect(host, port, timeout_s)

    monkeypatch.setattr(retry, "_connect", count)
    monkeypatch.setattr(retry, "FIRST_BACKOFF_S", 0.001)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(remote.RemoteUnavailable, match=r"127\.0\.0\.1:9 cannot be reached .*check the network"):
        remote.stat_object("s3://elsewhere/a")
    assert len(pauses) == retry.FEW_RETRIES + 1 and max(pauses) <= retry.CONNECT_S


def test_reachability_is_checked_once_and_not_behind_a_proxy(
    server: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = []
    monkeypatch.setattr(retry, "_connect", lambda host, port, timeout_s: hosts.append((host, port)))
    monkeypatch.setattr(retry, "proxy_bypass", lambda host: False)
    monkeypatch.setattr(retry, "getproxies", dict)
    remote.forget_stores()
    for _ in range(2):
        remote.stat_object("s3://bucket/a.wav")
    assert len(hosts) == 1
    retry.check_reachable("https://host")
    assert hosts[1:] == [("host", 443)]
    monkeypatch.setattr(retry, "getproxies", lambda: {"https": "http://proxy"})
    retry.check_reachable("https://host")
    assert len(hosts) == 2


def test_all_addresses_of_a_host_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's connection tries one after another, and waits that long for each."""
    asked: list[tuple[tuple[str, int], float]] = []

    def refuse(address: tuple[str, int], timeout_s: float) -> None:
        asked.append((address, timeout_s))
        raise OSError("no route to ::3")

    found = [(socket.AF_INET6, 1, 6, "", (f"::{number}", 443, 0, 0)) for number in range(4)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(remote.RemoteUnavailable, match=r"^host:443 cannot be reached \(no route to ::3\)"):
        retry._connect("host", 443, 6.0)
    assert asked == [(("host", 443), 1.5)]


@pytest.mark.parametrize(
    ("url", "variables", "endpoint"),
    [
        ("s3://b", {}, "https://s3.eu-west-1.amazonaws.com"),
        ("s3://b", {"AWS_ENDPOINT": "http://host"}, ""),
        ("s3://b", {"AWS_ENDPOINT_URL": "http://host:9000"}, "http://host:9000"),
        (
            "s3://b",
            {"AWS_REGION": "cn-north-1", "AWS_DEFAULT_REGION": "cn-north-1"},
            "https://s3.cn-north-1.amazonaws.com.cn",
        ),
        ("gs://b", {}, "https://storage.googleapis.com"),
        ("gs://b", {"GOOGLE_BASE_URL": "http://host"}, ""),
        ("abfs://b@account.dfs.core.windows.net", {}, "https://account.blob.core.windows.net"),
        ("az://b", {"AZURE_STORAGE_ACCOUNT": "one", "AZURE_STORAGE_USE_EMULATOR": "1"}, ""),
    ],
)
def test_the_host_that_is_asked_first(
    url: str, variables: dict[str, str], endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where obstore reads a variable that is not read here, nothing is checked."""
    from fastscribe._system.remote import credentials, object_store

    for name in [*os.environ]:
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "STORAGE_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(credentials, "_bucket_region", lambda client, bucket: client.meta.region_name)
    monkeypatch.setattr(credentials, "_is_on_google_cloud", lambda: False)
    for name, value in {"AWS_EC2_METADATA_DISABLED": "true", "AWS_DEFAULT_REGION": "eu-west-1", **variables}.items():
        monkeypatch.setenv(name, value)
    assert object_store.ObjectStore(url)._endpoint == endpoint


def test_web_addresses(server: FaultyStore) -> None:
    url = f"{server.endpoint}/bucket/a.wav?signature=x"
    server.requests.clear()
    found = remote.stat_object(url)
    assert found.size == len(DATA)
    assert remote.read_object(url, 5, 7) == remote.Content(DATA[5:12], len(DATA), found.version)
    assert remote.read_object(url) == remote.Content(DATA, len(DATA), found.version)
    assert server.requests == ["GET /bucket/a.wav?signature=x"] * 3
    with pytest.raises(remote.RemoteError, match="a web server cannot list a folder"):
        remote.list_objects(url)


@pytest.mark.parametrize("url", ["s3://bucket/a", "https://host/a"])
def test_a_missing_extra_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fastscribe._system.remote.object_store", "fastscribe._system.remote.web"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in ("obstore", "urllib3"):
        monkeypatch.setitem(sys.modules, name, None)
    remote.forget_stores()
    with pytest.raises(
        UsageError, match=r"install fastscribe with its extra remote \(in a clone: pip install '\.\[remote\]'\)"
    ):
        remote.read_object(url)


def test_a_store_that_cannot_be_opened_is_one_line_and_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    unavailable = remote.RemoteUnavailable("no answer from the identity service")

    def refuses(root: str, url: str) -> remote.Store:
        raise unavailable

    monkeypatch.setattr(remote, "_open", refuses)
    with pytest.raises(UsageError, match=r"^s3://refused: no answer from the identity service$") as caught:
        remote.store_for("s3://refused/a.wav")
    assert caught.value.__cause__ is unavailable  # so the exit code says that the command may succeed later


@pytest.mark.parametrize(
    ("limit", "was_reached", "fewest", "most"),
    [
        ("RETRY_S", True, 1, 2),
        ("CONNECT_S", False, 1, 2),
        ("FIRST_BACKOFF_S", False, retry.FEW_RETRIES + 1, retry.FEW_RETRIES + 1),
        ("FIRST_BACKOFF_S", True, retry.RETRIES + 1, retry.RETRIES + 1),
    ],
)
def test_how_often_is_tried(
    limit: str, was_reached: bool, fewest: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not beyond a limit of time, and less often if the server never answered."""
    monkeypatch.setattr(retry, limit, 0.0)
    calls = []

    def fail() -> None:
        calls.append(1)
        raise remote.RemoteUnavailable("no answer")

    with pytest.raises(remote.RemoteUnavailable):
        retry.retry(fail, lambda: was_reached)
    assert fewest <= len(calls) <= most


def test_an_interrupt_ends_a_request_at_once(server: FaultyStore) -> None:
    """In a process of its own: a signal may reach the test runner at any time."""
    stall = server.fault("stall", "GET /bucket/a.wav", times=100)
    program = (
        "from fastscribe._system import remote\n"
        "try:\n"
        "    remote.read_object('s3://bucket/a.wav')\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
        "    __import__('os')._exit(0)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        while stall.times == 100 and process.poll() is None:
            time.sleep(0.01)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    assert printed == "interrupted\n"
    assert time.monotonic() - begin < 20  # the store would be waited for 30 s, many times
    stall.times = 0
    stall.release.set()
