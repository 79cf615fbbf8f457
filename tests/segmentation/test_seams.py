"""Joining overlaps loses no word and doubles none, whatever the words at the utterances' edges."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from fastscribe.segmentation.seams import join, join_untimed
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.text.transcript import assemble
from fastscribe.types import AudioInfo, Hypothesis, Utterance, Word

FRAME_S = 0.08
NAMES = [f"w{i}" for i in range(12)]
VOCABULARY = Tokenizer(
    pieces=tuple(f"▁{name}" for name in NAMES) + tuple(f"▁x{name}" for name in NAMES), kind="subword"
)
RATE = 16000


def words(text: str, start_s: float = 0.0, length_s: float = 0.3) -> list[Word]:
    """Words in sequence, half a second each."""
    return [
        Word(name, start_s + 0.5 * i, start_s + 0.5 * i + length_s, 0.9)
        for i, name in enumerate(text.split())
        if name != "-"
    ]


def joined(left: list[Word], right: list[Word], begin_s: float, end_s: float) -> str:
    kept, first = join(left, right, begin_s, end_s)
    return " ".join(word.text for word in [*left[:kept], *right[first:]])


def test_join_ignores_case_and_keeps_repetitions() -> None:
    left, right = words("and so on, no no no No. then"), words("On no no No, no then he", 1.0)
    assert joined(left, right, 1.0, 4.0).lower().replace(",", "").replace(".", "") == "and so on no no no no then he"


def test_overlaps_without_common_words_join_by_time() -> None:
    assert joined(words("a b c d e f g h"), words("E1 F1 G1 H1 i j", 2.0), 2.0, 4.0) == "a b c d e f G1 H1 i j"


def test_side_without_words_takes_the_others() -> None:
    assert joined(words("a b c d"), words("e f g h i", 2.0), 2.0, 4.0) == "a b c d e f g h i"
    assert joined(words("a b c d e f g h"), words("- - - - i j", 2.0), 2.0, 4.0) == "a b c d e f g h i j"
    assert joined([], words("e f", 2.0), 2.0, 4.0) == "e f"
    assert joined(words("e f", 2.0), [], 2.0, 4.0) == "e f"
    assert joined([], [], 2.0, 4.0) == ""


def test_word_across_the_overlaps_start_is_not_repeated() -> None:
    for start_s in (1.4, 1.8):
        left = [Word("hello", start_s, 2.4, 0.9)]
        assert joined(left, [Word("lo", 2.0, 2.4, 0.9), Word("you", 4.5, 4.8, 0.9)], 2.0, 4.0) == "hello you"


spoken = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(2, 8), st.integers(0, 6)), min_size=1, max_size=120)


@given(spoken, st.integers(60, 150), st.integers(0, 2**20), st.booleans())
def test_every_word_comes_once_and_in_order(
    speech: list[tuple[str, int, int]], piece: int, seed: int, jitter: bool
) -> None:
    """A simulated decoder gives each word up to a frame early or late; at the edges, a partial word becomes nothing, itself
    or another word. Text, words, segments and tokens agree.
    """
    rng = random.Random(seed)
    truth, frame = [], 5
    for name, length, pause in speech:
        truth.append((name, frame, length))
        frame += length + pause
    num_frames = frame + 5
    overlap = 50  # frames, 4 s
    whole = AudioInfo("a", "a", RATE, 1, num_frames * 1280)
    spans, begin = [], 0
    while begin + piece < num_frames:
        spans.append((begin, begin + piece))
        begin += piece - overlap
    spans.append((begin, num_frames))
    parts = [
        (
            Utterance(whole, first * 1280, (last - first) * 1280),
            simulated_words(truth, first, last, num_frames, rng, jitter),
        )
        for first, last in spans
    ]
    rng.shuffle(parts)
    result = assemble(whole, parts, VOCABULARY, FRAME_S, zero_duration_punctuation=True)
    expected = [name for name, _, _ in truth]
    assert [word.text for word in result.words] == expected
    assert result.text.split() == expected
    assert [token.piece for token in result.tokens] == [f"▁{name}" for name in expected]
    assert " ".join(segment.text for segment in result.segments) == result.text
    for word, (_, start, _) in zip(result.words, truth, strict=True):
        assert abs(word.start_s - start * FRAME_S) <= FRAME_S + 1e-6


def simulated_words(
    truth: list[tuple[str, int, int]], first: int, last: int, num_frames: int, rng: random.Random, jitter: bool
) -> Hypothesis:
    ids, frames, durations = [], [], []
    for name, start, length in truth:
        begin, end = max(start, first), min(start + length, last)
        if begin >= end:
            continue
        token = NAMES.index(name)
        if (begin, end) != (start, start + length) and (first > 0 or last < num_frames):
            choice = rng.choice(["wrong", "nothing", "right"])
            if choice == "nothing":
                continue
            token += len(NAMES) if choice == "wrong" else 0
        shift = rng.choice([-1, 0, 1]) if jitter and length > 2 else 0
        ids.append(token)
        frames.append(min(max(begin - first + shift, frames[-1] if frames else 0), last - first - 1))
        durations.append(end - begin)
    return Hypothesis(tuple(ids), tuple(frames), tuple(durations), (math.log(0.9),) * len(ids))


def untimed(left: str, right: str) -> str:
    before, after = words(left), words(right)
    kept, first = join_untimed(before, after)
    return " ".join(word.text for word in [*before[:kept], *after[first:]])


def test_untimed_join_at_longest_common_sequence() -> None:
    assert untimed("a b c d e fxx", "xxc d e f g h") == "a b c d e f g h"
    assert untimed("a b c d", "c d e") == "a b c d e"
    assert untimed("a b", "b c") == "a b b c"  # one word may be said twice
    assert untimed("a b", "c d") == "a b c d"
    assert untimed("", "a b") == untimed("a b", "") == "a b"


@given(st.integers(0, 20), st.integers(2, 8), st.integers(0, 20))
def test_untimed_join_loses_and_doubles_nothing(before: int, shared: int, after: int) -> None:
    said = [f"w{number}" for number in range(before + shared + after)]
    left, right = said[: before + shared], said[before:]
    assert untimed(" ".join(left), " ".join(right)) == " ".join(said)
