"""Devices' processes and helpers on a GPU: the same results as in one process, and no fast path is refused.

Skipped without a GPU. scripts/gpu_check runs it before anything else, and scripts/gpu_rehearsal on a simulated GPU.
"""

from __future__ import annotations

import threading

import pytest

from fastscribe import Failure, Transcriber, Transcript
from fastscribe.pipeline.workers.arena import Arena, SharedMemory
from tests.conftest import AUDIO, MODELS, model_path

pytestmark = pytest.mark.cuda

FILES = sorted(AUDIO.glob("0[1-4]*.flac"))
MODEL = model_path(MODELS / "tdt_demo")


def words(transcriber: Transcriber) -> dict[str, list[tuple[str, float, float]]]:
    results = list(transcriber.transcribe(FILES))
    assert not [one for one in results if isinstance(one, Failure)]
    assert not transcriber.refused_paths
    found = [one for one in results if isinstance(one, Transcript)]
    return {one.audio.path: [(word.text, word.start_s, word.end_s) for word in one.words] for one in found}


@pytest.fixture(scope="module")
def in_this_process() -> dict[str, list[tuple[str, float, float]]]:
    return words(Transcriber.load(MODEL, "cuda", "fp32", say=print))


@pytest.mark.parametrize(("devices", "segment_bytes"), [("0", 128 << 10), ("0,0", None)])
def test_processes_equal_one_and_pin_the_memory(
    devices: str,
    segment_bytes: int | None,
    in_this_process: dict[str, list[tuple[str, float, float]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A first segment that is smaller than any of the recordings: others are used too, and pinned."""
    if segment_bytes is not None:
        monkeypatch.setattr(Arena, "of_machine", lambda total_bytes, num_devices: Arena(64 << 20, segment_bytes))
    with Transcriber.load(MODEL, dtype="fp32", devices=devices, say=print) as transcriber:
        for _ in range(2):  # graphs are captured at the second use of a shape
            assert words(transcriber) == in_this_process
        shares = transcriber.shares()
    assert [one.name for one in shares] == ["cuda:0"] and shares[0].audio_s > 0
    assert shares[0].pinned_bytes > (segment_bytes or 0)


def test_registered_memory_is_pinned() -> None:
    """As the driver sees it, what those processes count: the first and the last page of each segment.

    A segment is pinned when a batch comes to lie there.
    """
    from functools import partial

    import numpy as np
    import torch

    from fastscribe.cuda.device import register

    arena = Arena(8 << 20, 2 << 20)
    said: list[str] = []
    try:
        memory = SharedMemory(arena.file)
        for thread in memory.pin_with(partial(register, say=said.append), refused=pytest.fail):
            thread.join()
        for begin, end in memory.segments:
            whole = memory.view(begin, end - begin)
            for thread in threading.enumerate():
                if thread.name == "pin":
                    thread.join()
            assert not said
            samples = torch.from_numpy(np.frombuffer(whole, np.int16))
            assert samples[:4].is_pinned() and samples[-4:].is_pinned()
            assert samples.to("cuda", non_blocking=True).sum().item() == 0
        for begin, end in memory.segments:
            torch.cuda.cudart().cudaHostUnregister(np.frombuffer(memory.view(begin, end - begin), np.uint8).ctypes.data)
    finally:
        arena.close()
