"""A run under bad conditions: inputs that hang do not hold up the others."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

from fastscribe import Options, Transcriber, Transcript
from fastscribe.audio.probe import probe
from fastscribe.pipeline import preparation, thread_pool
from tests.conftest import AUDIO, MODELS


def test_hung_inputs_do_not_hold_up_probed_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads that may probe hang; recordings probed before them are read, decoded and yielded all the same."""
    monkeypatch.setattr(thread_pool, "STUCK_S", 0.1)
    monkeypatch.setattr(thread_pool, "_CHECK_INTERVAL_S", 0.02)
    monkeypatch.setattr(thread_pool, "_MAX_SPARE", 2)
    release = threading.Event()

    def hang(source):
        if "hung" in source.path:
            release.wait()
        return probe(source)

    monkeypatch.setattr(preparation, "probe", hang)
    options = Options(threads=2)
    transcriber = Transcriber.load(MODELS / "tdt_demo" / "model.nemo", device="cpu", dtype="fp32", options=options)
    clip = next(AUDIO.glob("01*.flac"))
    paths = [clip]
    for number in range(12):
        paths.append(tmp_path / f"hung{number}.flac")
        paths[-1].symlink_to(clip)
    results: SimpleQueue[object] = SimpleQueue()

    def transcribe() -> None:
        for result in transcriber.transcribe(paths):
            results.put(result)

    thread = threading.Thread(target=transcribe, daemon=True)
    thread.start()
    try:
        first = results.get(timeout=60)
        assert isinstance(first, Transcript) and first.audio.path == str(clip)
    finally:
        release.set()
    thread.join(60)
    assert results.qsize() == 12
