"""Words, segments and times on hand-made vocabularies; NeMo's results are in tests/test_golden.py."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.results.formats.writers import to_object
from fastscribe.text.tokenizer import Kind, Tokenizer, from_characters, from_pieces
from fastscribe.text.transcript import assemble, nbest, words_of
from fastscribe.types import AudioInfo, Hypothesis, Transcript, Utterance

SUBWORDS = Tokenizer(pieces=("▁the", "▁c", "at", ".", "▁", "s", ",", "▁Is", "?"), kind="subword")
IDS = {piece: i for i, piece in enumerate(SUBWORDS.pieces)}
CHARACTERS = from_characters([" ", "a", "b", ".", "'"])
PHRASES = from_characters(["好", "的", "。", "是", "ก", "า"])
FRAME_S = 0.08


def hypothesis_of(ids: list[int], frames: list[int] | None = None, durations: list[int] | None = None) -> Hypothesis:
    count = len(ids)
    frames = frames if frames is not None else list(range(0, 2 * count, 2))
    durations = durations if durations is not None else [1] * count
    return Hypothesis(tuple(ids), tuple(frames), tuple(durations), (math.log(0.5),) * count)


def audio(seconds: float = 100.0) -> AudioInfo:
    return AudioInfo("a.wav", "a.wav", 16000, 1, int(seconds * 16000))


def transcript_of(hypothesis: Hypothesis, tokenizer: Tokenizer = SUBWORDS, tdt: bool = False) -> Transcript:
    whole = audio()
    return assemble(whole, [(Utterance(whole, 0, whole.num_samples), hypothesis)], tokenizer, FRAME_S, tdt)


def words(transcript: Transcript) -> list[tuple[str, int, int]]:
    return [(w.text, round(w.start_s / FRAME_S), round(w.end_s / FRAME_S)) for w in transcript.words]


def pieces(*names: str) -> list[int]:
    return [IDS[name] for name in names]


def test_words_and_segments() -> None:
    result = transcript_of(hypothesis_of(pieces("▁the", "▁c", "at", "s", ".", "▁Is", "?", "▁the")))
    assert result.text == "the cats. Is? the"
    assert words(result) == [("the", 0, 1), ("cats.", 2, 9), ("Is?", 10, 13), ("the", 14, 15)]
    assert [segment.text for segment in result.segments] == ["the cats.", "Is?", "the"]
    assert [word.confidence for word in result.words] == pytest.approx([0.5] * 4)


MARKS = Tokenizer(pieces=("▁the", "▁c", "at", ".", ".)", "?!", "▁.", "▁?x"), kind="subword")
CAT = ([0, 2, 30], [2, 3, 4])
JINGLE = ([0, 50, 60, 70, 100], [1] * 5)


@pytest.mark.parametrize(
    ("tokenizer", "ids", "times", "is_tdt", "expected"),
    [
        (SUBWORDS, pieces("▁c", "at", "."), CAT, True, [("cat.", 0, 5)]),
        (SUBWORDS, pieces("▁c", "at", "."), CAT, False, [("cat.", 0, 34)]),
        # The first token keeps its duration.
        (SUBWORDS, pieces(".", ",", "▁c"), ([3, 7, 9], [2, 3, 1]), True, [(".,", 3, 5), ("c", 9, 10)]),
        # Only a token that is a single punctuation mark, with or without a word mark, has zero duration.
        (MARKS, [1, 2, 3], CAT, True, [("cat.", 0, 5)]),
        (MARKS, [1, 2, 6], CAT, True, [("cat .", 0, 5)]),
        (MARKS, [1, 2, 4], CAT, True, [("cat.)", 0, 34)]),
        (MARKS, [1, 2, 5], CAT, True, [("cat?!", 0, 34)]),
        (MARKS, [1, 2, 7], CAT, True, [("cat", 0, 5), ("?x", 30, 34)]),
        # The first word starts at a leading space, but hardly before its first letter.
        (CHARACTERS, [0, 0, 1, 2, 0, 1], (), False, [("ab", 3, 7), ("a", 10, 11)]),
        (CHARACTERS, [0, 1], ([0, 1], [1, 1]), False, [("a", 0, 2)]),
        # The space before a word may be anywhere in a jingle. A letter far from likelier ones is none of the word.
        (SUBWORDS, pieces("▁", "s", "▁c", "▁", "at"), JINGLE, False, [("s", 49, 51), ("c", 60, 61), ("at", 99, 101)]),
        (SUBWORDS, pieces("▁c", "at", "s", "."), ([0, 40, 42, 44], [1] * 4), True, [("cats.", 39, 43)]),
        (SUBWORDS, pieces("▁c", "at", "s", "."), ([0, 2, 42, 44], [1] * 4), True, [("cats.", 0, 4)]),
        (SUBWORDS, pieces("▁c", "at", "s", "."), ([0, 20, 42, 44], [1] * 4), True, [("cats.", 0, 43)]),
        # A phrase of a script without spaces is one word, with pauses in it.
        (PHRASES, [0, 1, 2, 3, 2], ([0, 1, 2, 70, 72], [1] * 5), False, [("好的。是。", 0, 73)]),
        (PHRASES, [0, 2, 3, 1, 2], ([0, 2, 70, 71, 72], [1] * 5), False, [("好。是的。", 0, 73)]),
        (PHRASES, [4, 5, 4, 5, 5], ([0, 1, 70, 71, 72], [1] * 5), False, [("กากาา", 0, 73)]),
    ],
)
def test_times_of_words(tokenizer: Tokenizer, ids: list[int], times: tuple, is_tdt: bool, expected: list) -> None:
    assert words(transcript_of(hypothesis_of(ids, *times), tokenizer, is_tdt)) == expected


@pytest.mark.parametrize(
    ("start_words", "expected"),
    [(True, [("ca", 0, 3), ("t", 5, 7), ("the", 10, 11)]), (False, [("cat", 0, 7), ("the", 10, 11)])],
)
def test_control_tokens_start_words(start_words: bool, expected: list[tuple[str, int, int]]) -> None:
    pieces = ("▁the", "▁c", "a", "t", "<s>")
    tokenizer = Tokenizer(pieces, kind="subword", silent_ids=frozenset({4}), silent_tokens_start_words=start_words)
    assert words(transcript_of(hypothesis_of([1, 2, 4, 3, 4, 0]), tokenizer)) == expected


def test_aggregate_words() -> None:
    """A lone word mark is a space, even before punctuation; punctuation with a word mark starts a word."""
    tokenizer = from_pieces(["▁the", "a", ".", "▁", "▁¿", "¿", "<0x41>"])
    result = transcript_of(hypothesis_of([3, 0, 1, 3, 2, 1, 4, 1, 2]), tokenizer)
    assert words(result) == [("thea.", 1, 9), ("a", 10, 11), ("¿a.", 13, 17)]
    assert result.text == "thea.a¿a."
    tdt = transcript_of(hypothesis_of([0, 4, 2], [0, 4, 8], [2, 2, 2]), tokenizer, tdt=True)
    assert words(tdt) == [("the", 0, 2), ("¿.", 4, 6)]


@pytest.mark.parametrize(
    ("tokenizer", "ids", "expected", "text"),
    [
        (SUBWORDS, pieces("▁c", "at", "▁", ",", "s"), ["cat", ",s"], "cat,s"),  # without the mark before punctuation
        (CHARACTERS, [1, 0, 2, 2, 0, 3, 0, 1, 4, 2], ["a", "bb.", "a'b"], "a bb. a'b"),
        (SUBWORDS, [], [], ""),
    ],
)
def test_words_and_text(tokenizer: Tokenizer, ids: list[int], expected: list[str], text: str) -> None:
    result = transcript_of(hypothesis_of(ids), tokenizer)
    assert ([word.text for word in result.words], result.text) == (expected, text)
    assert result.segments or not ids


def test_a_lone_word_mark_is_no_word() -> None:
    result = transcript_of(hypothesis_of(pieces("▁", "▁the", "▁")))
    assert [word.text for word in result.words] == ["the"] and result.segments[0].text == "the"
    assert len(result.tokens) == 3 and transcript_of(hypothesis_of(pieces("▁", "▁"))).segments == ()


def test_utterances_joined_in_order() -> None:
    whole = audio(60)
    first, second = Utterance(whole, 0, 16000 * 30), Utterance(whole, 16000 * 30, 16000 * 30)
    late = hypothesis_of(pieces("▁the"), [374], [4])  # its last frame extends into the second utterance
    result = assemble(
        whole,
        [(second, hypothesis_of(pieces("▁c", "at", "."))), (first, late)],
        SUBWORDS,
        FRAME_S,
        zero_duration_punctuation=False,
    )
    assert result.text == "the cat."
    assert [(w.text, w.start_s, w.end_s) for w in result.words] == [
        ("the", pytest.approx(29.92), 30.0),
        ("cat.", 30.0, pytest.approx(30.4)),
    ]
    assert len(result.segments) == 1 and result.is_timed
    untimed = assemble(whole, [(second, replace(late, is_timed=False)), (first, late)], SUBWORDS, FRAME_S, False)
    assert not untimed.is_timed


@pytest.mark.parametrize("row", [None, {"duration": 1.0006}], ids=["a file", "a row with its own duration"])
def test_no_time_is_behind_the_end(row: dict | None) -> None:
    """Frames of padding are; and where a row states its length more exactly than times are written, none is rounded up."""
    whole = replace(audio(), num_samples=16_010, row=row)
    late = hypothesis_of(pieces("▁the", "▁c", "at", "."), [0, 11, 40, 41], [1, 4, 2, 1])
    parts = [(Utterance(whole, 0, whole.num_samples), replace(late, nbest=(late,)))]
    for tdt in (False, True):
        result = assemble(whole, parts, SUBWORDS, FRAME_S, tdt)
        best = nbest(parts, 1, SUBWORDS, FRAME_S, tdt)
        timed = (*result.tokens, *result.words, *result.segments, *best, *(word for one in best for word in one.words))
        end_s = 1.0 if row else 16_010 / 16_000
        assert max(one.end_s for one in timed) == end_s and max(one.start_s for one in timed) == end_s
    written = to_object(result, tokens=True)
    ends = [one["end"] for key in ("segments", "words", "tokens") for one in written[key]]
    assert max(ends) <= written["duration"]


@given(st.lists(st.integers(0, len(SUBWORDS.pieces) - 1), max_size=25), st.booleans())
def test_words_in_order_tokens_once(ids: list[int], tdt: bool) -> None:
    result = transcript_of(hypothesis_of(ids), tdt=tdt)
    assert [token.id for token in result.tokens] == ids
    assert "".join(word.text for word in result.words).replace(" ", "") == result.text.replace(" ", "")
    starts = [word.start_s for word in result.words]
    assert starts == sorted(starts)
    assert all(word.start_s <= word.end_s for word in result.words)
    assert " ".join(segment.text for segment in result.segments) == " ".join(word.text for word in result.words)


def test_tags_leave_the_text() -> None:
    """Tags of a language and ends of utterances have no text and make no words; a control token has none either."""
    pieces = ("▁hello", "▁", "<en-US>", "<hi-IN>", "<EOU>", "▁there", "s", "<s>", "<|pnc|>", ".", "<EOB>")
    tokenizer = Tokenizer(pieces, "subword", silent_ids=frozenset([7]), silent_tokens_start_words=True)
    ids = {piece: index for index, piece in enumerate(pieces)}
    first, second = "▁hello <s> ▁ <hi-IN> <EOU>", "▁there s . ▁ <en-US> ▁hello <EOB> <|pnc|> ▁there <en-US>"
    said = [*first.split(), *second.split()]
    result = transcript_of(hypothesis_of([ids[piece] for piece in said]), tokenizer)
    assert result.text == "hello theres. hello <|pnc|> there"
    assert result.language == "en-US"
    assert [segment.text for segment in result.segments] == ["hello", "theres.", "hello", "<|pnc|> there"]
    assert words(result)[:3] == [("hello", 0, 1), ("theres.", 10, 15), ("hello", 20, 21)]
    assert [token.piece for token in result.tokens] == said
    assert transcript_of(hypothesis_of([0, 4]), tokenizer).language is None


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("▁principal <EOU> er ▁there", ["principal", "er there"]),  # its piece goes on, but another utterance begins
        ("▁principal <EOB> er <EOU> s", ["principal", "er", "s"]),
        ("▁principal <EOU> . er", ["principal.", "er"]),
        ("▁principal <EOU> <en-US> . er", ["principal.", "er"]),
        ("<EOU> er <en-US> s <EOU>", ["ers"]),
        ("<EOU> <EOU>", []),
    ],
)
@pytest.mark.parametrize("kind", ["subword", "aggregate"])
def test_words_and_text_agree_at_the_end_of_an_utterance(said: str, expected: list[str], kind: Kind) -> None:
    pieces = ("▁principal", "er", "s", ".", "▁", "▁there", "<EOU>", "<EOB>", "<en-US>")
    tokenizer = Tokenizer(pieces, kind)
    ids = [pieces.index(piece) for piece in said.split()]
    result = transcript_of(hypothesis_of(ids), tokenizer)
    assert [segment.text for segment in result.segments] == expected
    assert result.text == " ".join(word.text for word in result.words) == " ".join(expected)
    assert [word.text for word in words_of(result.tokens, tokenizer) if word.text] == " ".join(expected).split()


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("東京", "です", "東京です"),
        ("東京です。", "カ", "東京です。カ"),
        ("東京", "cat", "東京 cat"),
        ("서울", "이다", "서울 이다"),
        ("the", "🙂", "the 🙂"),
        ("🙂", "🙂", "🙂 🙂"),
        ("", "です", "です"),
    ],
)
def test_utterances_of_scripts_without_spaces(left: str, right: str, expected: str) -> None:
    """As transformers joins the parts of a long recording in Japanese or Chinese."""
    tokenizer = from_characters([" ", *sorted(set(left + right))])
    whole = audio()
    half = whole.num_samples // 2
    parts = [(left, Utterance(whole, 0, half)), (right, Utterance(whole, half, half))]
    spoken = [(part, hypothesis_of([tokenizer.pieces.index(character) for character in text])) for text, part in parts]
    assert assemble(whole, spoken, tokenizer, FRAME_S, False).text == expected
