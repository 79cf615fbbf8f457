"""Turns of probabilities, and windows that are stitched."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.speakers.turns import stitched, turns_of, windows
from fastscribe.types import Turn

FRAME_S = 0.08


def test_turns_are_in_order_and_speakers_are_numbered_by_arrival() -> None:
    speech_TN = np.array([[0, 1, 0], [0, 1, 1], [0, 0, 1], [0, 0.5, 0], [0, 1, 0]], np.float32)
    assert turns_of(speech_TN, 1.0, 4.25) == (
        Turn(0.0, 2.0, "speaker 1"),
        Turn(1.0, 3.0, "speaker 2"),
        Turn(4.0, 4.25, "speaker 1"),
    )
    assert {turn.speaker for turn in turns_of(speech_TN, 1.0, 4.25, ["Ann"])} == {"Ann", "speaker 2"}


def test_no_frames_have_no_turns() -> None:
    assert turns_of(np.zeros((0, 4), np.float32), FRAME_S, 0.05) == ()


@given(st.integers(1, 4000), st.integers(2, 1200))
def test_windows_cover_all_frames_and_overlap(num_frames: int, max_frames: int) -> None:
    found = windows(num_frames, max_frames)
    assert found[0][0] == 0
    assert found[-1][1] == num_frames
    assert all(0 < end - begin <= max_frames for begin, end in found)
    for (_, end), (begin, _) in pairwise(found):
        assert end - begin >= max_frames // 3


def test_stitching_undoes_each_windows_own_numbers() -> None:
    """Each window numbers its speakers by arrival; the whole recording has them once."""
    generator = np.random.default_rng(3)
    speaks = np.concatenate([np.repeat(generator.permutation(4), 8) for _ in range(31)])  # all speak in each overlap
    whole_TN = (0.9 * (speaks[:, None] == np.arange(4)) + 0.05).astype(np.float32)
    parts = []
    for begin, end in windows(len(whole_TN), 300):
        own = whole_TN[begin:end]
        order = list(dict.fromkeys(speaks[begin:end].tolist()))
        parts.append((begin, own[:, order + [one for one in range(4) if one not in order]]))
    first = list(dict.fromkeys(speaks.tolist()))
    np.testing.assert_array_equal(stitched(parts), whole_TN[:, first])


def test_one_window_is_the_recording() -> None:
    part_TN = np.eye(4, dtype=np.float32)
    assert stitched([(0, part_TN)]) is part_TN
