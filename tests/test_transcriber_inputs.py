"""All kinds of inputs of Transcriber.transcribe() give the text of the path of the same recording."""

from __future__ import annotations

import gc
import io
import pickle
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from fastscribe import Audio, Failure, Options, Transcriber, Transcript, UsageError
from fastscribe.pipeline import preparation, windows
from tests.conftest import AUDIO, MODELS
from tests.helpers.containers import encode

FILES = sorted(AUDIO.glob("0*.flac"))[:4]


@pytest.fixture(scope="module")
def transcriber() -> Transcriber:
    options = Options(window=8, batch_size=4, threads=2)
    return Transcriber.load(MODELS / "tdt_demo" / "model.nemo", "cpu", "fp32", options)


@pytest.fixture(scope="module")
def expected(transcriber: Transcriber) -> list[str]:
    texts = [result.text for result in transcriber.transcribe(FILES, ordered=True) if isinstance(result, Transcript)]
    assert len(set(texts)) == len(FILES)
    return texts


def texts_by_key(results) -> dict:
    return {
        result.key: f"failed: {result.message}" if isinstance(result, Failure) else result.text for result in results
    }


class Pipe(io.RawIOBase):
    """A stream that cannot seek."""

    def __init__(self, content: bytes) -> None:
        self._stream = io.BytesIO(content)

    def read(self, size: int = -1) -> bytes:
        return self._stream.read(size)


def test_every_kind_mixed(transcriber: Transcriber, expected: list[str], tmp_path: Path) -> None:
    path, content = FILES[0], FILES[0].read_bytes()
    array, rate = soundfile.read(path, dtype="int16")
    with open(path, "rb") as file:
        kinds = {
            "str": str(path),
            "path": path,
            "bytes": content,
            "bytearray": bytearray(content),
            "memoryview": memoryview(content),
            "file": file,
            "pipe": Pipe(content),
            "array": Audio(array, rate),
            "float": Audio(array / 32768, rate),
            "tensor": Audio(torch.from_numpy(array)[None], rate),
            "pickled": pickle.loads(pickle.dumps(Audio(array, rate, key="pickled"))),
        }
        inputs = [data if isinstance(data, Audio) else Audio(data) for data in kinds.values()]
        inputs = [Audio(one.data, one.sample_rate, key=key) for key, one in zip(kinds, inputs, strict=True)]
        found = texts_by_key(transcriber.transcribe([*inputs, (array, rate), {"array": array, "sampling_rate": rate}]))
    assert found == dict.fromkeys([*kinds, len(kinds), len(kinds) + 1], expected[0])


def test_a_container_in_memory(transcriber: Transcriber, tmp_path: Path) -> None:
    """Two threads read one file object: parts of it, and other recordings from the same object."""
    path = encode(tmp_path / "a.m4a", "aac", 44_100)
    reference = [(one.text, one.audio.duration_s) for one in transcriber.transcribe([path] * 4)]
    file = io.BytesIO(path.read_bytes())
    found = [(one.text, one.audio.duration_s) for one in transcriber.transcribe([file] * 4)]
    assert found == reference


def test_stereo_at_another_rate_and_parts(transcriber: Transcriber, tmp_path: Path) -> None:
    array, rate = soundfile.read(FILES[0], dtype="int16")
    doubled_SC = np.repeat(array, 2)[:, None].repeat(2, axis=1)
    path = tmp_path / "a.wav"
    soundfile.write(path, doubled_SC, 2 * rate)
    given = [path, (doubled_SC, 2 * rate), path.read_bytes()]
    for part in ({}, {"offset_s": 0.5, "duration_s": 2.0}):
        inputs = [Audio(*one, **part) if isinstance(one, tuple) else Audio(one, **part) for one in given]
        found = list(transcriber.transcribe(inputs))
        assert len({one.text for one in found}) == 1
        assert {one.audio.duration_s for one in found} == {2.0 if part else len(array) / rate}
    [rest] = transcriber.transcribe(Audio(path, offset_s=0.5, duration_s=0))  # to the end, as in a list's row
    assert rest.text and rest.audio.duration_s == len(array) / rate - 0.5


def test_of_samples_the_part_alone_goes_to_the_reader(
    transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device's process is sent that part; one that is cut only when it is read would take the whole array."""
    asked: list[str] = []
    promise = preparation.planned
    monkeypatch.setattr(preparation, "planned", lambda source, rate: asked.append(source.path) or promise(source, rate))
    array, rate = soundfile.read(FILES[0], dtype="int16")
    parts = [Audio(data, data_rate, key=key, offset_s=0.2, duration_s=0.5)
             for key, data, data_rate in (("path", FILES[0], None), ("samples", array, rate))]  # fmt: skip
    texts = texts_by_key(transcriber.transcribe(parts))
    assert texts["path"] == texts["samples"] and asked == [str(FILES[0])]


def test_bad_inputs_cost_one_failure_each(transcriber: Transcriber, expected: list[str]) -> None:
    nan = np.full(16_000, np.nan)
    closed = io.BytesIO(FILES[0].read_bytes())
    closed.close()
    bad = [np.zeros((99, 1)), (nan, 16_000), (np.zeros(0), 16_000), b"not audio", b"", 5, closed, "gone.wav"]
    found = {result.index: result for result in transcriber.transcribe([*bad, FILES[1]])}
    assert found.pop(len(bad)).text == expected[1]
    stages = [found[index].stage for index in range(len(bad))]
    assert stages == ["input", "load", "probe", "probe", "probe", "input", "input", "input"]
    words = [
        "without their rate",
        "NaN",
        "no samples",
        "not audio",
        "empty",
        "int is no",
        "closed file",
        "no such file",
    ]
    assert all(word in found[index].message for index, word in enumerate(words))


@pytest.mark.parametrize("stage", ["split", "load"])
def test_closing_a_file_cancels_its_recording_alone(transcriber: Transcriber, expected: list[str], stage: str) -> None:
    """While its pauses are searched, and after its first batch."""
    content = io.BytesIO()
    array, rate = soundfile.read(FILES[0], dtype="int16")
    soundfile.write(content, np.tile(array, 300), rate, format="WAV")
    half = len(content.getvalue()) // 2

    class Upload(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if stage == "split" and self.tell() > half:
                self.close()
            return super().read(size)

    upload = Upload(content.getvalue())
    if stage == "load":
        transcriber.watcher = lambda batch: upload.close() if batch[0].duration_s > 10 else None
    found = {result.key: result for result in transcriber.transcribe([Audio(upload, key="gone"), *FILES])}
    transcriber.watcher = None
    gone = found.pop("gone")
    assert isinstance(gone, Failure) and (gone.stage, gone.message) == (stage, "I/O operation on closed file.")
    assert [found[str(path)].text for path in FILES] == expected


def test_order_and_keys(transcriber: Transcriber, expected: list[str]) -> None:
    inputs = [Audio(path, key=f"call {number % 3}") for number, path in enumerate(FILES * 6)]
    found = list(transcriber.transcribe(iter(inputs), ordered=True, progress=True))
    assert [one.index for one in found] == list(range(len(inputs)))
    assert [one.key for one in found] == [one.key for one in inputs]
    assert [one.text for one in found] == expected * 6


def test_an_error_of_the_iterator_comes_last(transcriber: Transcriber, expected: list[str]) -> None:
    def inputs():
        yield from FILES
        raise RuntimeError("the queue broke")

    results = transcriber.transcribe(inputs())
    assert {next(results).text for _ in FILES} == set(expected)
    with pytest.raises(RuntimeError, match="the queue broke"):
        next(results)


def test_a_blocked_iterator_and_an_early_close(transcriber: Transcriber, expected: list[str]) -> None:
    released = threading.Event()

    def inputs():
        yield FILES[0].read_bytes()
        released.wait(20)
        yield FILES[1]

    results = transcriber.transcribe(inputs())
    assert next(results).text == expected[0]
    with pytest.raises(UsageError, match="not finished"):
        next(transcriber.transcribe(FILES))
    results.close()
    assert {one.text for one in transcriber.transcribe(FILES)} == set(expected)
    released.set()


def test_a_server_gets_a_result_before_it_gives_the_next_upload(transcriber: Transcriber, monkeypatch) -> None:
    """Also where the same content comes again."""
    monkeypatch.setattr(windows, "_MAX_WAIT_S", 600.0)
    content, answered = FILES[0].read_bytes(), threading.Semaphore(0)

    def uploads():
        for _ in range(3):
            yield content
            answered.acquire()

    assert [answered.release() for _ in transcriber.transcribe(uploads())] == [None] * 3


def test_results_do_not_hold_the_data(transcriber: Transcriber) -> None:
    """Only what the next windows need of a long iterator is alive."""
    made = io.BytesIO()
    soundfile.write(made, 0.01 * np.random.default_rng(0).standard_normal(1600), 16_000, format="WAV")
    alive: weakref.WeakSet = weakref.WeakSet()

    class Content(io.BytesIO):
        pass

    def inputs():
        for _ in range(100):
            file = Content(made.getvalue())
            alive.add(file)
            yield file

    kept, most = [], 0
    for result in transcriber.transcribe(inputs()):
        kept.append(result)
        if len(kept) % 40 == 0:
            gc.collect()
            most = max(most, len(alive))
    assert len(kept) == 100 and 0 < most < 60
    del result
    gc.collect()
    assert len(alive) == 0
