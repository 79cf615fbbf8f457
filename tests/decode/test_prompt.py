"""What a Canary is told, and what is made of what it writes."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.config import Options, PromptForm
from fastscribe.decode.prompt import Prompt, can_write_times, hypothesis, make_prompt
from fastscribe.errors import UsageError
from fastscribe.text.tokenizer import from_pieces
from fastscribe.types import Hypothesis

SWITCHES = ("pnc", "nopnc", "itn", "noitn", "timestamp", "notimestamp", "diarize", "nodiarize")
CONTROLS = ("startofcontext", "startoftranscript", "endoftext", "nospeech", "emo:undefined", "en", "de", "pt-BR")
PIECES = [f"<|{name}|>" for name in (*CONTROLS, "transcribe", "translate", *SWITCHES, *range(12))] + [
    "▁a",
    "b",
    "<|en|>",
]


def told(form: str, options: Options) -> str:
    return "".join(PIECES[index] for index in make_prompt(form, from_pieces(PIECES), options, 99).ids)


@pytest.mark.parametrize(
    ("options", "canary", "canary2"),
    [
        (Options(), "<|en|><|transcribe|><|en|><|pnc|>", "<|en|><|en|><|pnc|><|noitn|><|notimestamp|><|nodiarize|>"),
        (
            Options(language="de", pnc=False),
            "<|de|><|transcribe|><|de|><|nopnc|>",
            "<|de|><|de|><|nopnc|><|noitn|><|notimestamp|><|nodiarize|>",
        ),
        (
            Options(language="de", target_language="en", pnc=True),
            "<|de|><|translate|><|en|><|pnc|>",
            "<|de|><|en|><|pnc|><|noitn|><|notimestamp|><|nodiarize|>",
        ),
        (
            Options(target_language="pt-BR"),
            "<|en|><|translate|><|pt-BR|><|pnc|>",
            "<|en|><|pt-BR|><|pnc|><|noitn|><|notimestamp|><|nodiarize|>",
        ),
    ],
)
def test_forms(options: Options, canary: str, canary2: str) -> None:
    assert told("canary", options) == "<|startoftranscript|>" + canary
    assert told("canary2", options) == "<|startofcontext|><|startoftranscript|><|emo:undefined|>" + canary2


def test_times_are_asked_for() -> None:
    assert told("canary2", Options(timestamps=True)).endswith("<|pnc|><|noitn|><|timestamp|><|nodiarize|>")
    prompt = make_prompt("canary2", from_pieces(PIECES), Options(timestamps=True), 99)
    assert [PIECES[index] for index in prompt.frames_by_id] == [
        f"<|{frame}|>" for frame in prompt.frames_by_id.values()
    ]
    assert not make_prompt("canary2", from_pieces(PIECES), Options(), 99).frames_by_id
    assert can_write_times("canary2", PIECES) and not can_write_times("canary", PIECES)


@pytest.mark.parametrize(
    ("form", "pieces", "options", "message"),
    [
        ("canary", PIECES, Options(language="xx"), "--language xx: not a language .* such as de, en, pt-BR$"),
        ("canary2", PIECES, Options(target_language="b"), "--target-language b: not a language"),
        ("canary2", PIECES, Options(language="pnc"), "--language pnc: not a language"),
        ("canary2", PIECES, Options(language=""), "--language : not a language"),
        ("canary2", [f"<|{'9' * 5000}|>", *PIECES], Options(language="99"), "--language 99: not a language"),
        ("canary", PIECES, Options(timestamps=True), "--timestamps: this checkpoint does not write times"),
        ("canary2", PIECES[:18], Options(timestamps=True), "--timestamps: this checkpoint does not write times"),
        ("canary2", PIECES[1:], Options(), r"has no <\|startofcontext\|>, which a prompt needs"),
        ("canary", [*PIECES[:2], *PIECES[3:]], Options(), r"has no <\|endoftext\|>, which a prompt needs"),
        ("canary", ["▁a"], Options(), "--language en: not a language .* such as none"),
    ],
)
def test_what_cannot_be_asked(form: str, pieces: list[str], options: Options, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_prompt(form, from_pieces(pieces), options, 99)


def test_each_form_is_known() -> None:
    for form in get_args(PromptForm):
        assert make_prompt(form, from_pieces(PIECES), Options(), 99).ids[-1] >= 0


# Ids: 0 .. 9 are words' tokens, 100 + n is the time n.
TIMED = Prompt((50,), 60, None, 61, {100 + frame: frame for frame in range(30)})
PLAIN = Prompt((50,), 60, None, 61, {})


def spoken(ids: list[int], num_frames: int, prompt: Prompt) -> list[tuple[int, int, int]]:
    found = hypothesis(ids, [-0.1 * place for place in range(len(ids))], num_frames, prompt)
    assert len(found.logprobs) == len(found.token_ids)
    return list(zip(found.token_ids, found.token_frames, found.token_durations, strict=True))


def test_words_have_the_times_around_them() -> None:
    ids = [103, 1, 2, 107, 108, 3, 108, 115, 4, 5, 6, 120]
    assert spoken(ids, 29, TIMED) == [(1, 3, 2), (2, 5, 2), (3, 8, 0), (4, 15, 1), (5, 16, 2), (6, 18, 2)]
    found = hypothesis([103, 1, 107], [-1.0, -2.0, -3.0], 29, TIMED)
    assert found == Hypothesis((1,), (3,), (4,), (-2.0,)) and found.is_timed
    assert not hypothesis([1], [-1.0], 29, TIMED).is_timed


def test_what_lies_outside_of_two_times_is_nobodys() -> None:
    assert spoken([9, 103, 1, 107, 8, 110, 110, 104, 2], 29, TIMED) == [(1, 3, 4)]
    assert spoken([110, 1, 104], 29, TIMED) == [(1, 10, 0)]  # a word that ends before it begins


def test_what_stands_between_two_times_is_a_word_of_its_own() -> None:
    """Token 9 is a lone word mark, and 1 and 2 begin with one."""
    prompt = replace(TIMED, space_ids=(9, 8), word_ids=frozenset((1, 2, 9)))
    ids = [103, 3, 105, 106, 4, 108, 108, 1, 109, 110, 5, 5, 112]
    expected = [(3, 3, 2), (9, 6, 0), (4, 6, 2), (1, 8, 1), (9, 10, 0), (5, 10, 1), (5, 11, 1)]
    assert spoken(ids, 29, prompt) == expected
    assert spoken([101, 8, 9, 102, 103, 1, 104], 29, prompt) == [(1, 3, 1)]  # nothing is no word


def test_without_a_pair_of_times_all_are_spread() -> None:
    assert spoken([1, 2, 3, 4], 10, PLAIN) == [(1, 0, 2), (2, 2, 3), (3, 5, 2), (4, 7, 3)]
    assert spoken([1, 2], 10, TIMED) == [(1, 0, 5), (2, 5, 5)]


def test_no_speech_is_no_text() -> None:
    assert spoken([61], 10, PLAIN) == spoken([], 10, PLAIN) == spoken([], 0, TIMED) == []
    assert len(spoken([61, 1], 10, PLAIN)) == 2


@given(st.lists(st.one_of(st.integers(0, 9), st.integers(100, 129)), max_size=20), st.integers(0, 40))
def test_spread_tokens_fill_the_recording_in_order(ids: list[int], num_frames: int) -> None:
    found = spoken(ids, num_frames, PLAIN)
    assert [token for token, _, _ in found] == ids
    ends = [start + duration for _, start, duration in found]
    assert [start for _, start, _ in found] == [0, *ends][: len(ids)]
    assert not ids or ends[-1] == num_frames
