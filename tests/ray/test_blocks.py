"""Blocks of recordings: each is in one, small ones come last, and none takes a worker long."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.config import Options
from fastscribe.pipeline.interfaces import IDLE
from fastscribe.pipeline.stats import Progress
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.ray import blocks as ray_blocks
from fastscribe.ray.blocks import (
    MAX_RECORDINGS,
    MAX_WORK_S,
    MIN_BLOCK_S,
    MIN_RTFX,
    Recording,
    in_blocks,
    list_inputs,
)
from fastscribe.types import Failure, Source
from tests.conftest import AUDIO


def recordings(lengths: list[float]) -> list[Recording]:
    return [Recording(Source(f"{i}.wav", f"{i}.wav", f"{i}", index=i), length) for i, length in enumerate(lengths)]


@contextmanager
def windows(
    inputs: Iterable[object], progress: Progress, options: Options | None = None
) -> Iterator[Iterator[list[Recording | Failure]]]:
    """Yield what a driver with two actors gives them at a time."""
    pool = ReplacingThreadPool(2, "list")
    with (
        closing(pool),
        closing(list_inputs(inputs, None, options or Options(), progress, pool, 2)) as listed,  # type: ignore[arg-type]
    ):
        yield (window for window in listed if window is not IDLE)


@settings(max_examples=50)
@given(st.lists(st.floats(0, 5000), max_size=50), st.integers(1, 64), st.booleans())
def test_each_recording_is_in_one_block(lengths: list[float], num_workers: int, is_gpu: bool) -> None:
    blocks = list(in_blocks(recordings(lengths), num_workers, is_gpu))
    assert sorted(one.source.index for block in blocks for one in block) == list(range(len(lengths)))
    for block in blocks:
        assert len(block) == 1 or sum(one.seconds for one in block) <= MAX_WORK_S * MIN_RTFX[is_gpu] + 1e-6


def test_blocks_get_smaller_towards_the_end() -> None:
    seconds = [sum(one.seconds for one in block) for block in in_blocks(recordings([10.0] * 1000), 4, is_gpu=False)]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] == 1250 and seconds[-1] <= MIN_BLOCK_S and len(seconds) < 40


def test_the_longest_come_first_and_few_are_together() -> None:
    blocks = list(in_blocks(recordings([0.001] * 5000 + [30.0]), 1, is_gpu=True))
    assert blocks[0][0].seconds == 30.0 and [len(block) for block in blocks] == [MAX_RECORDINGS, 5001 - MAX_RECORDINGS]


def test_inputs_are_listed_with_their_lengths(tmp_path: Path) -> None:
    """A manifest's length, else one by the size of the file; what only this process can read is no worker's."""
    clip, progress = next(AUDIO.glob("01_*.flac")), Progress()
    (tmp_path / "list.jsonl").write_text(f'{{"audio_filepath": "{clip}", "duration": 2.5, "a": [{{"b": 1}}]}}\n')
    given = [str(clip), Source("gone.wav", "gone.wav", "a"), str(tmp_path / "list.jsonl"), io.BytesIO(b"RIFF")]
    with windows(given, progress, Options(channel=1)) as listed:
        [window] = listed
    found = [one for one in window if isinstance(one, Recording)]
    assert [one.source.index for one in found] == [0, 1, 2]
    stated = found[2]
    assert (stated.seconds, stated.source.row and stated.source.row["a"]) == (2.5, [{"b": 1}])
    assert found[0].seconds == clip.stat().st_size / 16_000 and found[1].seconds > 0
    assert all(one.source.channel == 1 and str(one.source.file).startswith("/") for one in found)
    [held] = [one for one in window if isinstance(one, Failure)]
    assert held.index == 3 and "where the workers cannot read it: give a path or a URL" in held.message


def test_a_window_is_listed_ahead_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's memory does not grow with the number of inputs: a list without an end is begun, and read as it is done."""
    monkeypatch.setattr(ray_blocks, "WINDOW", 50)
    num_read = itertools.count()

    def endless() -> Iterator[Source]:
        for number in num_read:
            yield Source(f"{number}.wav", f"{number}.wav", f"{number}", duration_s=1.0)

    with windows(endless(), Progress()) as listed:
        indices = [[one.source.index for one in next(listed) if isinstance(one, Recording)] for _ in range(3)]
    assert indices == [list(range(100 * number, 100 * number + 100)) for number in range(3)]
    assert next(num_read) <= 402  # a window ahead, and what the reading thread holds


def test_recordings_of_a_list_that_pauses_are_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_blocks, "MAX_WAIT_S", 0.1)
    goes_on = Event()

    def slow() -> Iterator[Source]:
        yield Source("a.wav", "a.wav", "a", duration_s=1.0)
        goes_on.wait()
        yield Source("b.wav", "b.wav", "b", duration_s=1.0)

    with windows(slow(), Progress()) as listed:
        [first] = next(listed)
        goes_on.set()
        [second] = next(listed)
    assert [one.source.path for one in (first, second) if isinstance(one, Recording)] == ["a.wav", "b.wav"]
