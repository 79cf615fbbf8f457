"""Canary prompts, and hypotheses from Canary's tokens."""

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


def prompt_text(form: str, options: Options) -> str:
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
    assert prompt_text("canary", options) == "<|startoftranscript|>" + canary
    assert prompt_text("canary2", options) == "<|startofcontext|><|startoftranscript|><|emo:undefined|>" + canary2


def test_timestamp_prompt() -> None:
    assert prompt_text("canary2", Options(timestamps=True)).endswith("<|pnc|><|noitn|><|timestamp|><|nodiarize|>")
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
        ("canary2", PIECES, Options(target_language="bb"), "--target-language bb: not a language"),
        ("canary2", PIECES, Options(language="pnc"), "--language pnc: not a language"),
        ("canary2", [f"<|{'9' * 5000}|>", *PIECES], Options(language="xx"), "--language xx: not a language"),
        ("canary", PIECES, Options(timestamps=True), "--timestamps: this checkpoint does not write times"),
        ("canary2", PIECES[:18], Options(timestamps=True), "--timestamps: this checkpoint does not write times"),
        ("canary2", PIECES[1:], Options(), r"has no <\|startofcontext\|>, which a prompt needs"),
        ("canary", [*PIECES[:2], *PIECES[3:]], Options(), r"has no <\|endoftext\|>, which a prompt needs"),
        ("canary", ["▁a"], Options(), "--language en: not a language .* such as none"),
    ],
)
def test_unsupported_options(form: str, pieces: list[str], options: Options, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_prompt(form, from_pieces(pieces), options, 99)


def test_every_form_is_known() -> None:
    for form in get_args(PromptForm):
        assert make_prompt(form, from_pieces([*PIECES, "▁"]), Options(), 99).ids[-1] >= 0


# Ids: 0 .. 9 are text tokens, 100 + n is timestamp n.
TIMED = Prompt((50,), 60, None, 61, {100 + frame: frame for frame in range(30)})
PLAIN = Prompt((50,), 60, None, 61, {})


def decoded_tokens(ids: list[int], num_frames: int, prompt: Prompt) -> list[tuple[int, int, int]]:
    found = hypothesis(ids, [-0.1 * place for place in range(len(ids))], num_frames, prompt)
    assert len(found.logprobs) == len(found.token_ids)
    return list(zip(found.token_ids, found.token_frames, found.token_durations, strict=True))


def test_words_take_surrounding_times() -> None:
    ids = [103, 1, 2, 107, 108, 3, 108, 115, 4, 5, 6, 120]
    assert decoded_tokens(ids, 29, TIMED) == [(1, 3, 2), (2, 5, 2), (3, 8, 0), (4, 15, 1), (5, 16, 2), (6, 18, 2)]
    found = hypothesis([103, 1, 107], [-1.0, -2.0, -3.0], 29, TIMED)
    assert found == Hypothesis((1,), (3,), (4,), (-2.0,)) and found.is_timed
    assert not hypothesis([1], [-1.0], 29, TIMED).is_timed


def test_tokens_outside_time_pairs_are_dropped() -> None:
    assert decoded_tokens([9, 103, 1, 107, 8, 110, 110, 104, 2], 29, TIMED) == [(1, 3, 4)]
    assert decoded_tokens([110, 1, 104], 29, TIMED) == [(1, 10, 0)]  # a word that ends before it begins


def test_time_pair_makes_a_word() -> None:
    """Token 9 is a lone word mark; tokens 1 and 2 begin with a word mark."""
    prompt = replace(TIMED, space_ids=(9, 8), word_ids=frozenset((1, 2, 9)))
    ids = [103, 3, 105, 106, 4, 108, 108, 1, 109, 110, 5, 5, 112]
    expected = [(3, 3, 2), (9, 6, 0), (4, 6, 2), (1, 8, 1), (9, 10, 0), (5, 10, 1), (5, 11, 1)]
    assert decoded_tokens(ids, 29, prompt) == expected
    assert decoded_tokens([101, 8, 9, 102, 103, 1, 104], 29, prompt) == [(1, 3, 1)]  # an empty pair makes no word


def test_tokens_without_times_are_spread() -> None:
    assert decoded_tokens([1, 2, 3, 4], 10, PLAIN) == [(1, 0, 2), (2, 2, 3), (3, 5, 2), (4, 7, 3)]
    assert decoded_tokens([1, 2], 10, TIMED) == [(1, 0, 5), (2, 5, 5)]


def test_no_speech() -> None:
    assert decoded_tokens([61], 10, PLAIN) == decoded_tokens([], 10, PLAIN) == decoded_tokens([], 0, TIMED) == []
    assert len(decoded_tokens([61, 1], 10, PLAIN)) == 2


@given(st.lists(st.one_of(st.integers(0, 9), st.integers(100, 129)), max_size=20), st.integers(0, 40))
def test_spread_covers_recording(ids: list[int], num_frames: int) -> None:
    found = decoded_tokens(ids, num_frames, PLAIN)
    assert [token for token, _, _ in found] == ids
    ends = [start + duration for _, start, duration in found]
    assert [start for _, start, _ in found] == [0, *ends][: len(ids)]
    assert not ids or ends[-1] == num_frames
