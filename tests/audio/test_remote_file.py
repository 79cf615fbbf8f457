"""Recordings in a store: requests, bounded memory, and faults. Whole runs are in tests/test_remote_inputs.py."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fastscribe._system import remote
from fastscribe.audio import containers, media, remote_file
from fastscribe.audio.probe import probe
from fastscribe.audio.read import read
from fastscribe.audio.remote_file import RemoteFile
from fastscribe.errors import AudioError
from fastscribe.types import Source
from tests.conftest import AUDIO
from tests.helpers.containers import encode
from tests.helpers.object_store import FaultyStore, object_store

SMALL = AUDIO / "01_0_00010.flac"
DATA = b"".join(hashlib.sha256(bytes([number])).digest() for number in range(250)) * 40  # 320,000 bytes


@pytest.fixture(scope="module")
def running() -> Iterator[FaultyStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def server(running: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    monkeypatch.setattr(remote_file, "_held", remote_file._Held())
    monkeypatch.setattr(remote_file, "_blocks", remote_file._Blocks())
    running.put("bucket/a.flac", SMALL.read_bytes())
    running.put("bucket/data", DATA)
    running.requests.clear()
    return running


@pytest.fixture
def ranged(server: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    """The server, with every object large enough to be read by ranges of small blocks."""
    monkeypatch.setattr(remote_file, "SMALL_BYTES", 0)
    monkeypatch.setattr(remote_file, "HEAD_BYTES", 1000)
    monkeypatch.setattr(remote_file, "BLOCK_BYTES", 10_000)
    return server


def listed(key: str) -> RemoteFile:
    return RemoteFile(f"s3://bucket/{key}", remote.stat_object(f"s3://bucket/{key}"))


def test_a_small_object_is_one_request_from_probe_to_samples(server: FaultyStore) -> None:
    file = listed("a.flac")
    server.requests.clear()
    audio = probe(Source(path=file.identity, file=file, id="a"))
    samples = read(audio, 0, audio.num_samples, sample_rate=audio.sample_rate)
    expected, _ = soundfile.read(SMALL, dtype="int16")
    assert np.array_equal(samples, expected)
    assert server.requests == ["GET /bucket/a.flac"]


def test_an_object_that_no_listing_named_is_one_request_too(server: FaultyStore) -> None:
    probe(Source(path="", file=RemoteFile("s3://bucket/a.flac"), id="a"))
    assert server.requests == ["GET /bucket/a.flac"]


def test_parts_of_one_object_share_its_request(server: FaultyStore) -> None:
    files = [RemoteFile("s3://bucket/data") for _ in range(20)]
    server.latency_s = 0.05  # all eight ask before the first has its answer
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda file: file.open().read(), files)) == {DATA}
    server.latency_s = 0
    assert len({file.version() for file in files}) == 1
    for file in files[1:]:
        file.drop()
    assert files[0].open().read() == DATA
    assert server.requests == ["GET /bucket/data"] and remote_file._held.num_bytes == len(DATA)
    files[0].drop()
    assert remote_file._held.num_bytes == 0


def test_parts_that_come_from_another_process_share_its_request(server: FaultyStore) -> None:
    sender = listed("data")
    server.requests.clear()
    files = [pickle.loads(pickle.dumps(sender)) for _ in range(5)]
    sender.drop()
    assert {file.open().read() for file in files} == {DATA}
    assert server.requests == ["GET /bucket/data"]
    assert remote_file._held.num_bytes == len(DATA)
    for file in files:
        file.drop()
    assert remote_file._held.num_bytes == 0
    other = RemoteFile("s3://bucket/data", remote.RemoteObject("s3://bucket/data", 5, "other"))
    assert other.version() == "5 other", "a version is an object of its own"


def test_a_new_run_looks_anew(server: FaultyStore) -> None:
    kept = RemoteFile("s3://bucket/data")
    assert kept.open().read() == DATA
    server.put("bucket/data", DATA[::-1])
    remote_file.forget_objects()
    assert RemoteFile("s3://bucket/data").open().read() == DATA[::-1]


def test_the_first_answer_fills_the_block_cache(ranged: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_file, "SMALL_BYTES", 55_000)
    file = RemoteFile("s3://bucket/data")
    assert file.open().read(51_000) == DATA[:51_000]
    assert len(ranged.requests) == 1


def test_parts_of_a_container_measure_it_once(
    server: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = encode(tmp_path / "a.webm", "libopus", 48_000, seconds=20.0)
    server.put("bucket/a.webm", path.read_bytes())
    server.requests.clear()
    measured: list[int] = []
    measure = containers._measure
    monkeypatch.setattr(containers, "_measure", lambda *given: measured.append(1) or measure(*given))
    parts = [Source("a", RemoteFile("s3://bucket/a.webm"), "a", offset_s=float(second)) for second in range(10)]
    with ThreadPoolExecutor(4) as pool:
        assert [audio.start for audio in pool.map(probe, parts)] == [48_000 * second for second in range(10)]
    assert (server.requests, measured) == (["GET /bucket/a.webm"], [1])
    del parts
    assert remote_file._held.num_bytes == 0


def test_held_bytes_are_bounded_and_freed(server: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_file, "MAX_HELD_BYTES", 2 * len(DATA))
    for key in ("data-0", "data-1", "data-2"):
        server.put(f"bucket/{key}", DATA)
    files = [listed(f"data-{number}") for number in range(3)]
    assert [file.open().read() == DATA for file in files] == [True] * 3  # the third by ranges
    assert remote_file._held.num_bytes == 2 * len(DATA)
    files[0].drop()
    del files[1]
    assert remote_file._held.num_bytes == 0
    assert files[0].open().read() == DATA


def test_ranged_reads(ranged: FaultyStore) -> None:
    reader = listed("data").open()
    ranged.requests.clear()
    for begin, num_bytes in ((0, 10), (999, 2), (315_000, 9000), (10, 60_000), (len(DATA), 5)):
        reader.seek(begin)
        assert reader.read(num_bytes) == DATA[begin : begin + num_bytes]
    assert len(ranged.requests) == 6  # head, block 1, the last, block 2, blocks 3 and 4, blocks 5 to 8


def test_blocks_are_bounded(ranged: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_file, "MAX_CACHED_BYTES", 50_000)
    file = listed("data")
    assert file.open().read() == DATA
    assert remote_file._blocks.num_bytes <= 50_000
    ranged.requests.clear()
    assert file.open().read(10) == DATA[:10]
    assert len(ranged.requests) == 1


def test_header_readers_ask_for_what_they_need(ranged: FaultyStore) -> None:
    with media.whole_content(listed("data").open()) as data:
        assert (len(data), data[5], data[300_000:300_003]) == (len(DATA), DATA[5], DATA[300_000:300_003])
        assert data.find(DATA[70_000:70_032], 65_000) == DATA.find(DATA[70_000:70_032], 65_000)
        assert data.find(b"nowhere in it") == -1


def test_an_object_that_changes_is_an_error(ranged: FaultyStore) -> None:
    file = listed("data")
    reader = file.open()
    reader.read(1)
    ranged.put("bucket/data", DATA[::-1])
    reader.seek(200_000)
    with pytest.raises(remote.RemoteError, match="changed since the run began"):
        reader.read(1)


@pytest.mark.parametrize(
    ("fault", "message"), [("403", "access denied to these credentials"), ("404", "no such object")]
)
def test_a_failing_object_is_an_audio_error(server: FaultyStore, fault: str, message: str) -> None:
    file = listed("a.flac")
    server.fault(fault, "GET /bucket/a.flac")
    with pytest.raises(AudioError, match=message):
        probe(Source(path="s3://bucket/a.flac", file=file, id="a"))
    assert remote_file._held.num_bytes == 0
