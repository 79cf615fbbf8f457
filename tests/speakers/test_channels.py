"""Channels with the same sound are found, and recordings whose channels differ are read only as far as that takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from fastscribe.audio.probe import probe
from fastscribe.audio.read import channel_blocks
from fastscribe.speakers import recordings
from fastscribe.speakers.recordings import ByChannel, distinct_channels
from fastscribe.types import AudioInfo, Source

RATE = 8_000
NOISE, OTHER = np.random.default_rng(0).normal(0, 0.1, (2, 4 * RATE))
SILENCE = np.zeros(4 * RATE)


def recording(folder: Path, *channels: np.ndarray) -> AudioInfo:
    path = str(folder / "a.wav")
    soundfile.write(path, np.stack(channels, axis=1), RATE)
    return probe(Source(path, path, "a.wav"))


@pytest.mark.parametrize(
    ("channels", "expected"),
    [
        ([NOISE], (0,)),
        ([NOISE, NOISE], (0,)),
        ([NOISE, NOISE + 1e-4 * OTHER], (0,)),  # what an encoder changes
        ([NOISE, 0.7 * NOISE], (0,)),  # a copy with another level
        ([0.02 * NOISE, 0.015 * NOISE], (0,)),  # rounding changes soft ones
        ([NOISE, -NOISE], (0,)),  # wires that are swapped
        ([NOISE, OTHER], (0, 1)),
        ([0.0005 * NOISE, 0.0005 * OTHER], (0, 1)),
        ([NOISE, NOISE + 0.1 * OTHER], (0, 1)),
        ([NOISE, 0.1 * NOISE], (0, 1)),  # a softer voice in the other's channel
        ([NOISE, SILENCE], (0, 1)),  # one is silent
        ([SILENCE, SILENCE], (0,)),
        ([NOISE, OTHER, NOISE], (0, 1)),
        ([NOISE, SILENCE, SILENCE, OTHER], (0, 1, 3)),
    ],
)
def test_copies_are_left_out(tmp_path: Path, channels: list[np.ndarray], expected: tuple[int, ...]) -> None:
    assert distinct_channels(recording(tmp_path, *channels)) == expected


def test_a_late_difference_counts(tmp_path: Path) -> None:
    late = np.where(np.arange(4 * RATE) < 3 * RATE, NOISE, OTHER)
    assert distinct_channels(recording(tmp_path, NOISE, late)) == (0, 1)


def test_reading_ends_where_all_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_blocks = []

    def counted(audio: AudioInfo, block_samples: int):
        for block in channel_blocks(audio, block_samples):
            num_blocks.append(block.shape)
            yield block

    monkeypatch.setattr(recordings, "channel_blocks", counted)
    begin = np.arange(4 * RATE) < RATE
    distinct_channels(recording(tmp_path, np.where(begin, 0, NOISE), np.where(begin, 0, OTHER)))
    assert num_blocks == [(RATE, 2)] * 2


def test_a_row_that_names_a_channel_has_that_one(tmp_path: Path) -> None:
    path = str(tmp_path / "a.wav")
    soundfile.write(path, np.random.default_rng(0).normal(0, 0.1, (RATE, 6)), RATE)
    inputs = ByChannel(None)
    named = probe(Source(path, path, "a", channel=4))
    assert [one.channel for one in inputs.channels(named)] == [4]
    surround = probe(Source(path, path, "a"))
    assert surround.channel == 2 and surround.notes
    assert [(one.channel, one.notes) for one in inputs.channels(surround)] == [(number, ()) for number in range(6)]
