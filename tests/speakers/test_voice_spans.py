"""Where speakers are heard alone, against a grid of milliseconds, and which stretches a print is made of."""

from __future__ import annotations

import numpy as np
import pytest

from fastscribe.speakers.voice_prints import alone, choose_stretches, example, turns_of_words
from fastscribe.types import AudioInfo, Segment, Transcript, Turn, Word


@pytest.mark.parametrize("seed", range(8))
def test_a_speaker_is_alone_where_no_other_one_speaks(seed: int) -> None:
    random = np.random.RandomState(seed)
    starts, lengths = random.randint(0, 900, 12), random.randint(0, 150, 12)
    turns = [
        Turn(start / 8, (start + length) / 8, "abc"[random.randint(3)])
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]
    speaks = {name: np.zeros(1100, bool) for name in "abc"}
    for turn in turns:
        speaks[turn.speaker][round(turn.start_s * 8) : round(turn.end_s * 8)] = True
    found = alone(turns)
    for name, own in speaks.items():
        others = np.any([speaks[other] for other in speaks if other != name], axis=0)
        grid = np.zeros(1100, bool)
        for begin_s, end_s in found.get(name, []):
            assert begin_s < end_s
            assert not grid[round(begin_s * 8) : round(end_s * 8)].any()
            grid[round(begin_s * 8) : round(end_s * 8)] = True
        assert (grid == (own & ~others)).all()


@pytest.mark.parametrize(
    ("spans", "lengths"),
    [
        ([(0.0, 2.9)], []),
        ([(0.0, 3.0)], [3.0]),
        ([(0.0, 0.9), (5.0, 7.5), (9.0, 9.9), (20.0, 21.0)], [2.5, 1.0]),
        ([(0.0, 16.0)], [8.0, 8.0]),
        ([(0.0, 100.0)], [10.0, 10.0]),
        ([(0.0, 14.0), (20.0, 29.0)], [9.0, 7.0, 4.0]),
        ([(0.0, 10.0), (20.0, 29.5)], [10.0, 9.5]),
        ([], []),
    ],
)
def test_stretches_are_the_longest_within_limits(spans: list[tuple[float, float]], lengths: list[float]) -> None:
    found = choose_stretches(spans)
    assert [end_s - begin_s for begin_s, end_s in found] == pytest.approx(lengths)
    assert all(any(begin <= one[0] and one[1] <= end for begin, end in spans) for one in found)


def test_an_example_is_the_longest_span() -> None:
    assert example([(0.0, 2.0), (5.0, 30.0), (40.0, 41.0)]) == (5.0, 15.0)
    assert example([]) == (0.0, 0.0)


def test_turns_of_words_end_at_pauses() -> None:
    words = [
        Word(str(number), start_s, end_s, 1.0, speaker=speaker)
        for number, (start_s, end_s, speaker) in enumerate(
            [(0.0, 0.5, "a"), (0.6, 1.0, "b"), (1.0, 1.4, "a"), (2.1, 2.5, "a"), (2.2, 2.3, "b")]
        )
    ]
    segment = Segment("", 0.0, 2.5, 1.0, tuple(words))
    transcript = Transcript(AudioInfo("a", "a", 1000, 1, 3000), "", (segment,), (), speakers=("a", "b", "c"))
    assert turns_of_words(transcript) == [
        Turn(0.0, 1.4, "a"),
        Turn(2.1, 2.5, "a"),
        Turn(0.6, 1.0, "b"),
        Turn(2.2, 2.3, "b"),
    ]
