"""URLs as inputs: folders, patterns, manifests and single objects, against fsspec's memory:// and an S3-compatible server."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator

import pytest

from fastscribe._system import remote
from fastscribe.audio.inputs import expand
from fastscribe.audio.remote_file import RemoteFile
from fastscribe.types import Failure, Source
from tests.helpers.object_store import PAGE, FaultyStore, object_store


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyStore]:
    with object_store() as store:
        for number in range(2 * PAGE + 10):
            store.put(f"bucket/many/{number:04}.wav", b"x")
        yield store


@pytest.fixture
def folder() -> Iterator[str]:
    keys = (
        "b.wav",
        "a/z.FLAC",
        "a/c/x.opus",
        "a-b/x.wav",
        "notes.txt",
        ".hidden.wav",
        ".git/a.wav",
        "plain",
        "m.jsonl",
    )
    for key in keys:
        remote.write_object(f"memory://corpus/{key}", b"x")
    yield "memory://corpus"
    for found in list(remote.list_objects("memory://corpus")):
        remote.delete_object(found.url)


def url_of(source: Source) -> str:
    return source.file.identity if isinstance(source.file, RemoteFile) else str(source.file)


def ids(*urls: str, stdin: bytes = b"") -> list[str]:
    return [item.id if isinstance(item, Source) else item.message for item in expand(urls, io.BytesIO(stdin))]


def test_a_folder_in_byte_order_of_its_keys(folder: str) -> None:
    left_out: Counter[str] = Counter()
    found = list(expand([folder], left_out=left_out))
    assert [item.id for item in found] == ["a-b/x.wav", "a/c/x.opus", "a/z.FLAC", "b.wav"]
    assert left_out == {".txt": 1, "no extension (not opened)": 1, ".jsonl": 1}
    first = found[0]
    assert isinstance(first, Source)
    assert first.path == url_of(first) == f"{folder}/a-b/x.wav"
    assert isinstance(first.file, RemoteFile)
    assert first.file.version() == RemoteFile(first.path).version()
    assert ids(f"{folder}/a/") == ["c/x.opus", "z.FLAC"]


def test_an_empty_object_that_stands_for_a_folder_is_not_counted(folder: str) -> None:
    """As consoles of stores make them; listings of some stores leave out the slash."""
    for name in ("marker", "2026.01"):
        remote.write_object(f"{folder}/{name}", b"")
    remote.write_object(f"{folder}/empty.wav", b"")
    left_out: Counter[str] = Counter()
    assert [item.id for item in expand([folder], left_out=left_out)][-1] == "empty.wav"
    assert left_out == {".txt": 1, "no extension (not opened)": 1, ".jsonl": 1}


def test_patterns(folder: str) -> None:
    assert ids(f"{folder}/**/*.FLAC") == ["a/z.FLAC"]
    assert ids(f"{folder}/a*/*.[wx]*") == ["a-b/x.wav"]
    assert ids(f"{folder}/*") == ["a-b/x.wav", "a/c/x.opus", "a/z.FLAC", "b.wav"]
    assert ids(f"{folder}/*.mp3") == ["no such object, and nothing matches it as a pattern"]
    assert ids("-", stdin=f"{folder}/*.wav\n{folder}/b.wav\n".encode()) == ["*.wav", "b.wav"]  # names, as local ones
    remote.write_object(f"{folder}/[1].wav", b"x")
    assert ids(f"{folder}/[1].wav") == ["[1].wav"]


def test_what_is_not_there(folder: str) -> None:
    assert ids(f"{folder}/plain") == ["plain"]  # the probe decides what it is
    assert ids(f"{folder}/nothing") == ids(f"{folder}/nothing/") == ["no such object, and no folder with objects"]
    remote.write_object(f"{folder}/texts/a.txt", b"x")
    assert ids(f"{folder}/texts") == ["no audio in this folder"]
    assert ids("nosuch://a/b.wav") == ["Protocol not known: nosuch"]


def test_web_addresses_are_single_files() -> None:
    (found,) = expand(["https://host/a%20b.mp3?signature=x*y"])
    assert isinstance(found, Source)
    assert url_of(found) == found.path == "https://host/a%20b.mp3?signature=x*y"
    assert found.id == "a b.mp3"


def test_manifests_at_urls(folder: str) -> None:
    rows = ["clips/a.wav", "../b.wav", "s3://other/c.wav", "/local/d.wav", "https://host/e.mp3?sig=x"]
    text = "\n".join(json.dumps({"audio_filepath": path}) for path in rows)
    remote.write_object(f"{folder}/lists/m.jsonl", text.encode())
    found = list(expand([f"{folder}/lists/m.jsonl"]))
    assert [url_of(item) for item in found if isinstance(item, Source)] == [
        f"{folder}/lists/clips/a.wav",
        f"{folder}/b.wav",
        *rows[2:],
    ]
    assert [item.id for item in found] == ["clips/a.wav", "b.wav", "other/c.wav", "local/d.wav", "host/e.mp3"]
    assert [item.path for item in found] == rows
    assert ids(f"{folder}/none.jsonl") == ["no such file or folder"]


def test_lines_of_blocks(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setattr(remote, "_LINES_BLOCK", 3)
    remote.write_object(f"{folder}/lines", b"ab\ncdefgh\n\nlast")
    assert list(remote.read_lines(f"{folder}/lines")) == [b"ab", b"cdefgh", b"", b"last"]


def test_a_folder_is_listed_a_page_at_a_time(server: FaultyStore) -> None:
    before = len(server.requests)
    found = expand(["s3://bucket/many/"])
    assert next(found).id == "0000.wav"
    assert len(server.requests) - before == 1
    assert sum(1 for _ in found) == 2 * PAGE + 9
    assert len(server.requests) - before == 3


def test_a_listing_that_fails_is_a_failure_after_what_it_gave(server: FaultyStore) -> None:
    server.fault("403", "list-type&continuation-token")
    server.fault("403", "list-type&start-after")
    *found, failure = expand(["s3://bucket/many/"])
    assert len(found) == PAGE
    assert isinstance(failure, Failure) and failure.stage == "input"
    assert failure.message.startswith("access denied to these credentials")


def test_one_object_costs_no_request(server: FaultyStore) -> None:
    before = len(server.requests)
    assert ids("s3://bucket/many/0001.wav", "s3://bucket/none.wav") == ["0001.wav", "none.wav"]
    assert len(server.requests) == before
