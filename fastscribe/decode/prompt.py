"""Prompts of Canary and Cohere models: languages, punctuation and timestamps as tokens of the vocabulary.

Canary's two forms are NeMo's prompt formats "canary" and "canary2"; Cohere's is the latter after a word mark. Timestamps are
tokens too, <|n|> for n encoder frames. The tokens between two of them form a word, even if the first piece has no word mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fastscribe.config import Options, PromptForm
from fastscribe.errors import UsageError
from fastscribe.languages import find_language, list_languages
from fastscribe.text.tokenizer import WORD_MARK, Tokenizer
from fastscribe.types import Hypothesis

DEFAULT_LANGUAGE = "en"
_END, _PAD, _NO_SPEECH = "<|endoftext|>", "<pad>", "<|nospeech|>"
_TIME = re.compile(r"<\|([0-9]{1,6})\|>")
_SPECIAL = re.compile(r"<(?!0x)[^<>]+>")  # no bytes
_LANGUAGE = re.compile(r"<\|[a-z]{2}(-[A-Z]{2})?\|>")


@dataclass(frozen=True)
class Prompt:
    ids: tuple[int, ...]
    end_id: int
    pad_id: int | None
    no_speech_id: int | None
    frames_by_id: dict[int, int]  # frame of each timestamp token; empty without timestamps
    space_ids: tuple[int, ...] = ()  # lone word marks; an aggregate tokenizer has several
    word_ids: frozenset[int] = frozenset()  # pieces that begin with a word mark
    text_ids: frozenset[int] = frozenset()  # pieces with text, which phrases to boost may have


def can_write_times(form: PromptForm, pieces: Sequence[str]) -> bool:
    return form == "canary2" and "<|timestamp|>" in pieces and any(_TIME.fullmatch(piece) for piece in pieces)


def known_languages(pieces: Iterable[str]) -> tuple[str, ...]:
    """Return the languages that a vocabulary has prompt tokens for."""
    return tuple(sorted({piece[2:-2] for piece in pieces if _LANGUAGE.fullmatch(piece)}))


def prompt_languages(pieces: Iterable[str], options: Options) -> tuple[str, str]:
    """Return the spoken and the written language of a prompt. Raises UsageError if the vocabulary lacks one."""
    source = DEFAULT_LANGUAGE if options.language is None else options.language
    target = source if options.target_language is None else options.target_language
    known = known_languages(pieces)
    return _known("--language", source, known), _known("--target-language", target, known)


def make_prompt(form: PromptForm, tokenizer: Tokenizer, options: Options, max_tokens: int) -> Prompt:
    """Build the prompt that the options ask for.

    Args:
        form: prompt format of the checkpoint.
        tokenizer: tokenizer of the checkpoint.
        options: language, target_language, pnc and timestamps are used.
        max_tokens: maximum length of the decoder's input.

    Returns:
        The prompt.

    Raises:
        UsageError: the vocabulary lacks a language, timestamps or another prompt token, or the prompt exceeds max_tokens.
    """
    pieces = tokenizer.pieces
    ids = {piece: index for index, piece in reversed(list(enumerate(pieces)))}
    source, target = prompt_languages(pieces, options)
    if form == "cohere" and source != target:
        raise UsageError(f"--target-language {options.target_language}: this model does not translate")
    if options.timestamps and not can_write_times(form, pieces):
        raise UsageError("--timestamps: this checkpoint does not write times; --align-with takes them from a CTC model")
    frames = {index: int(found[1]) for piece, index in ids.items() if (found := _TIME.fullmatch(piece))}
    prompt_pieces = _pieces_of(form, source, target, options)
    if tokenizer.begins_with_space and prompt_pieces[0] != WORD_MARK:
        prompt_pieces.insert(0, WORD_MARK)
    missing = [piece for piece in (*prompt_pieces, _END) if piece not in ids]
    if missing:
        raise UsageError(f"this checkpoint's vocabulary has no {missing[0]}, which a prompt needs")
    prompt_ids = tuple(ids[piece] for piece in prompt_pieces)
    special = tokenizer.silent_ids | tokenizer.unknown_ids
    if len(prompt_ids) > max_tokens:
        raise UsageError(f"this checkpoint's prompt has {len(prompt_ids)} tokens, but its decoder {max_tokens} places")
    return Prompt(
        prompt_ids,
        ids[_END],
        ids.get(_PAD),
        ids.get(_NO_SPEECH),
        frames if options.timestamps else {},
        tuple(index for index, piece in enumerate(pieces) if piece == WORD_MARK),
        frozenset(index for index, piece in enumerate(pieces) if piece.startswith(WORD_MARK)),
        frozenset(
            index for index, piece in enumerate(pieces) if index not in special and not _SPECIAL.fullmatch(piece)
        ),
    )


def _pieces_of(form: PromptForm, source: str, target: str, options: Options) -> list[str]:
    pnc = "pnc" if options.pnc is not False else "nopnc"
    if form == "canary":
        names = ["startoftranscript", source, "transcribe" if source == target else "translate", target, pnc]
    else:
        timestamp = "timestamp" if options.timestamps else "notimestamp"
        names = [
            "startofcontext",
            "startoftranscript",
            "emo:undefined",
            source,
            target,
            pnc,
            "noitn",
            timestamp,
            "nodiarize",
        ]
    return [WORD_MARK] * (form == "cohere") + [f"<|{name}|>" for name in names]


def _known(name: str, tag: str, known: Sequence[str]) -> str:
    language = find_language(tag, known)
    if language is None:
        some = list_languages(known) or "none"
        raise UsageError(f"{name} {tag}: not a language of this checkpoint, such as {some}")
    return language


def hypothesis(ids: Sequence[int], logprobs: Sequence[float], num_frames: int, prompt: Prompt) -> Hypothesis:
    """Make a Hypothesis of the decoder's tokens.

    Args:
        ids: tokens before the end token.
        logprobs: their natural-log probabilities.
        num_frames: encoder frames of the utterance.
        prompt: the prompt of these tokens.

    Returns:
        Words between two timestamps get these times. Without timestamps, tokens are spread evenly over the utterance.
    """
    if tuple(ids) in ((), (prompt.no_speech_id,)):
        return Hypothesis()
    spans = _timed_spans(ids, prompt)
    if not spans:
        return replace(_spread(ids, logprobs, 0, num_frames), is_timed=False)
    words: list[Hypothesis] = []
    for tokens, first, last in spans:
        if words and prompt.space_ids and ids[tokens.start] not in prompt.word_ids:
            words.append(Hypothesis(prompt.space_ids[:1], (first,), (0,), (0.0,)))
        part = slice(tokens.start, tokens.stop)
        words.append(_spread(ids[part], logprobs[part], first, last))
    return Hypothesis(
        tuple(token for word in words for token in word.token_ids),
        tuple(frame for word in words for frame in word.token_frames),
        tuple(duration for word in words for duration in word.token_durations),
        tuple(logprob for word in words for logprob in word.logprobs),
    )


def spread(first: int, end: int, count: int) -> list[int]:
    """Return the `count` + 1 borders of parts of nearly equal length."""
    return [first + index * max(0, end - first) // max(1, count) for index in range(count + 1)]


def _spread(ids: Sequence[int], logprobs: Sequence[float], first: int, last: int) -> Hypothesis:
    """Spread tokens evenly over the frames."""
    borders = spread(first, last, len(ids))
    durations = tuple(end - start for start, end in pairwise(borders))
    return Hypothesis(tuple(ids), tuple(borders[:-1]), durations, tuple(logprobs))


def _timed_spans(ids: Sequence[int], prompt: Prompt) -> list[tuple[range, int, int]]:
    """Return token range and frames of each pair of timestamps. Tokens outside a pair are dropped, as in NeMo."""
    spans, frames_by_id = [], prompt.frames_by_id
    start: int | None = None
    for index, token in enumerate(ids):
        if token in frames_by_id:
            if start is None:
                start = index
                continue
            if not set(ids[start + 1 : index]) <= set(prompt.space_ids):
                spans.append((range(start + 1, index), frames_by_id[ids[start]], frames_by_id[token]))
            start = None
    return spans
