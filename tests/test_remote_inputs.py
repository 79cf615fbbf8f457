"""Whole runs over recordings in a store: the local texts, one request an object, faults, and resume."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastscribe import Failure, Options, Transcriber, Transcript
from fastscribe.audio import remote_file
from tests.conftest import AUDIO, MODEL
from tests.helpers.object_store import FaultyStore, object_store
from tests.helpers.processes import fastscribe, refused

FILES = sorted(AUDIO.glob("0*.flac"))
FOLDER = "s3://bucket/audio"


@pytest.fixture(scope="module")
def running() -> Iterator[FaultyStore]:
    with object_store() as store:
        for path in FILES:
            store.put(f"bucket/audio/{path.name}", path.read_bytes())
        store.put("bucket/audio/notes.txt", b"x")
        yield store


@pytest.fixture
def server(running: FaultyStore) -> FaultyStore:
    running.requests.clear()
    return running


@pytest.fixture(scope="module")
def transcriber() -> Transcriber:
    return Transcriber.load(MODEL, device="cpu", dtype="fp32")


@pytest.fixture(scope="module")
def expected(transcriber: Transcriber) -> dict[str, str]:
    return texts(transcriber.transcribe([str(path) for path in FILES]))


def texts(results: Iterator[Transcript | Failure]) -> dict[str, str]:
    return {
        (one.path if isinstance(one, Failure) else one.audio.path).rpartition("/")[2]: one.message
        if isinstance(one, Failure)
        else one.text
        for one in results
    }


def test_a_folder_gives_the_local_texts_with_a_request_an_object(
    server: FaultyStore, transcriber: Transcriber, expected: dict[str, str]
) -> None:
    assert texts(transcriber.transcribe(FOLDER)) == expected
    assert len(server.requests) == 1 + len(FILES)
    assert transcriber.progress.left_out == {".txt": 1}
    assert remote_file._held.num_bytes == 0


def test_faults_cost_their_own_file_at_most(
    server: FaultyStore, transcriber: Transcriber, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [path.name for path in FILES]
    server.fault("403", f"GET /bucket/audio/{names[0]}")
    server.fault("cut", f"GET /bucket/audio/{names[3]}", times=2)
    slow = server.fault("slow", f"GET /bucket/audio/{names[5]}")
    monkeypatch.setattr(transcriber, "_options", Options(window=len(FILES)))
    found: dict[str, str] = {}
    results = transcriber.transcribe(FOLDER)
    for _ in range(len(FILES) - 1):  # the slow one stalls no other
        found |= texts(iter([next(results)]))
    assert names[5] not in found
    slow.release.set()
    found |= texts(results)
    assert found.pop(names[0]).startswith("access denied")
    assert found == {name: text for name, text in expected.items() if name in found}


def test_resume_by_size_and_version(server: FaultyStore, tmp_path: Path) -> None:
    manifest = "".join(json.dumps({"audio_filepath": f"../audio/{path.name}"}) + "\n" for path in FILES[:3])
    server.put("bucket/lists/m.jsonl", (manifest + '{"audio_filepath": "none.wav"}\n').encode())
    arguments = ("transcribe", "s3://bucket/lists/m.jsonl", f"{FOLDER}/*9_*", "-m", MODEL, "-o", tmp_path)
    assert fastscribe(*arguments).returncode == 1
    rows = [json.loads(line) for line in (tmp_path / "transcripts.jsonl").read_text().splitlines()]
    assert sorted(row["audio_filepath"] for row in rows) == sorted(
        ["none.wav", *(f"../audio/{path.name}" for path in FILES[:3]), *(f"{FOLDER}/{FILES[8].name}",)]
    )
    [problem] = [row["error"]["message"] for row in rows if "error" in row]
    assert problem == "no such object"
    server.put(f"bucket/audio/{FILES[1].name}", FILES[4].read_bytes())
    server.requests.clear()
    again = fastscribe(*arguments)
    server.put(f"bucket/audio/{FILES[1].name}", FILES[1].read_bytes())
    assert again.returncode == 3
    assert [request for request in server.requests if "GET /bucket/audio/" in request] == [
        f"GET /bucket/audio/{FILES[1].name}"
    ]


def test_lists_in_a_store(server: FaultyStore, transcriber: Transcriber, expected: dict[str, str]) -> None:
    """Relative paths count from the list's folder, and those of a table from `clips` in it if the first one is there."""
    names = [path.name for path in FILES[:2]]
    table = "path,text\n" + "".join(f"{name},x\n" for name in names)
    server.put("bucket/cv/clips/" + names[0], FILES[0].read_bytes())
    server.put("bucket/cv/clips/" + names[1], FILES[1].read_bytes())
    server.put("bucket/cv/t.csv.gz", gzip.compress(table.encode()))
    server.put("bucket/lists/list.txt", f"../audio/{names[0]}\n{FOLDER}/{names[1]}\n".encode())
    server.put("bucket/lists/wav.scp", f"one ../audio/{names[0]}\ntwo {FOLDER}/{names[1]}\n".encode())
    wanted = {name: expected[name] for name in names}
    for path in ("cv/t.csv.gz", "lists/list.txt", "lists/wav.scp"):
        assert texts(transcriber.transcribe(f"s3://bucket/{path}")) == wanted


def test_secrets_of_a_web_address_stay_in_the_rows(server: FaultyStore, tmp_path: Path) -> None:
    """With another signature it is the same recording, so it is skipped; what people read shows none of the secrets."""
    out, files = tmp_path / "out", [tmp_path / name for name in ("events", "log", "page.html")]
    root = server.endpoint.replace("://", "://me:pass5word@")
    given = [
        [
            f"{root}/bucket/audio/{name}?X-Amz-Date={day}&X-Amz-Signature=0f5ed{day}"
            for name in (FILES[0].name, "none.wav")
        ]
        for day in (1, 2)
    ]
    reports = ["--events", files[0], "--log-file", files[1], "--report-html", files[2]]
    done = [
        fastscribe("transcribe", *urls, "-m", MODEL, "-o", out, *more)
        for urls, more in zip(given, (reports, []), strict=True)
    ]
    assert [one.returncode for one in done] == [1, 3] and "1 failed in an earlier run" in done[1].stderr
    hidden = f"{root.replace('pass5word', '***')}/bucket/audio/none.wav?X-Amz-Date=1&X-Amz-Signature=***"
    assert hidden in done[0].stderr
    shown = [*(one.stderr for one in done), *(path.read_text() for path in files)]
    assert not any(secret in text for text in shown for secret in ("pass5word", "0f5ed")) and all(shown)
    rows = [json.loads(line) for line in (out / "transcripts.jsonl").read_text().splitlines()]
    assert sorted(row["audio_filepath"] for row in rows) == sorted(given[0])


def test_errors_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, message in (
        (("nosuch://a/b.wav",), "nosuch://a/b.wav: Protocol not known: nosuch"),
        (("a.wav", "--model", "s3://bucket/model.nemo"), "models are not read from URLs"),
    ):
        assert message in refused("transcribe", *arguments)
    out_of_reach = fastscribe("transcribe", "ftp://127.0.0.1:9/a.wav")
    assert out_of_reach.returncode == 1, "another try may help"
    assert out_of_reach.stderr.startswith("fastscribe: ftp://127.0.0.1:9/a.wav: no answer, also after retries: ")
