"""TextGrid: intervals tile the recording, as Praat demands, and another parser reads them. Every word is in one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from praatio import textgrid

from fastscribe.results.formats.textgrid import to_textgrid
from fastscribe.speakers.dialogues import merge
from fastscribe.text.transcript import segments_of
from fastscribe.types import AudioInfo, Segment, Transcript, Word
from tests.speakers.test_merge_channels import spoken

AUDIO = AudioInfo("a.wav", "a.wav", 1000, 1, 3000)
Intervals = Mapping[str, list[tuple[float, float, str]]]


def of_words(*words: Word) -> Transcript:
    return Transcript(AUDIO, " ".join(word.text for word in words), tuple(segments_of(words)), ())


def parsed(written: str, path: Path) -> Intervals:
    path.write_text(written, encoding="utf-8")
    grid = textgrid.openTextgrid(str(path), includeEmptyIntervals=True, reportingMode="error")
    return {tier.name: [(float(start), float(end), text) for start, end, text in tier.entries] for tier in grid.tiers}


def test_by_example(tmp_path: Path) -> None:
    words = Word('say "yes"', 0.5, 1.0, 0.9), Word("now", 1.5, 2.25, 0.9)
    written = to_textgrid(of_words(*words))
    assert written.splitlines()[:19] == [
        'File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0.0 ", "xmax = 3.0 ", "tiers? <exists> ",
        "size = 2 ", "item []: ", "    item [1]:", '        class = "IntervalTier" ', '        name = "words" ',
        "        xmin = 0.0 ", "        xmax = 3.0 ", "        intervals: size = 5 ", "        intervals [1]:",
        "            xmin = 0.0 ", "            xmax = 0.5 ", '            text = "" ', "        intervals [2]:",
    ]  # fmt: skip
    assert '            text = "say ""yes""" ' in written.splitlines()
    assert parsed(written, tmp_path / "a.textgrid") == {
        "words": [(0, 0.5, ""), (0.5, 1, 'say "yes"'), (1, 1.5, ""), (1.5, 2.25, "now"), (2.25, 3, "")],
        "segments": [(0, 0.5, ""), (0.5, 2.25, 'say "yes" now'), (2.25, 3, "")],
    }


def test_each_speaker_has_two_tiers(tmp_path: Path) -> None:
    call = merge([spoken((0, "Hello."), (2, "Bye.")), spoken((2.2, "Good bye.")), spoken()], ('a "b"', "c", "silent"))
    found = parsed(to_textgrid(call), tmp_path / "a.textgrid")
    assert list(found) == [f"{name} - {kind}" for name in ('a "b"', "c", "silent") for kind in ("words", "segments")]
    assert found["c - words"][1:4] == [(2.2, 2.6, "Good"), (2.6, 2.7, ""), (2.7, 3.1, "bye.")]
    assert found["silent - segments"] == [(0, 60, "")]


def test_overlaps_end_with_the_next_and_nothing_is_empty(tmp_path: Path) -> None:
    overlapping = of_words(
        Word("a", 0, 2, 0.9), Word("b", 1, 1.5, 0.9), Word(".", 1.5, 1.5, 0.9), Word("c", 2.9, 4, 0.9)
    )
    found = parsed(to_textgrid(overlapping), tmp_path / "a.textgrid")["words"]
    assert found == [(0, 1, "a"), (1, 1.5, "b"), (1.5, 1.501, "."), (1.501, 2.9, ""), (2.9, 4, "c")]
    nothing = replace(of_words(), audio=replace(AUDIO, num_samples=0))
    assert parsed(to_textgrid(nothing), tmp_path / "a.textgrid")["words"] == [(0, 0.001, "")]


TIMES = st.sampled_from([0.0, 0.0004, 0.5, 0.9996, 1.0, 2.5, 3.0, 3.2, float("nan")])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("grids") / "a.textgrid"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(['x "y"', "两", "a\nb"]), TIMES, TIMES), max_size=8), st.integers(0, 3500))
def test_intervals_tile_and_no_word_is_lost(path: Path, words: list[tuple[str, float, float]], length_ms: int) -> None:
    found = tuple(Word(*one, 0.5) for one in words)
    audio = replace(AUDIO, num_samples=length_ms)
    for intervals in parsed(to_textgrid(Transcript(audio, "", (Segment("s", 0, 1, 0.5, found),), ())), path).values():
        assert intervals[0][0] == 0 and intervals[-1][1] >= length_ms / 1000
        assert all(before[1] == after[0] for before, after in pairwise(intervals))
        assert all(start < end for start, end, _ in intervals)
        texts = sorted(text for _, _, text in intervals if text)
        assert texts in (["s"], sorted(" ".join(text.split()) for text, _, _ in words))
