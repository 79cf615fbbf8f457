"""What a Canary is told before it writes: languages, punctuation, times, as tokens of its vocabulary.

The two forms are NeMo's prompt formats "canary" and "canary2". Times are tokens as well, <|n|> for n encoder frames; what
stands between two of them is a word, also where its first piece does not say so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fastscribe.config import Options, PromptForm
from fastscribe.errors import UsageError
from fastscribe.text.tokenizer import WORD_MARK, Tokenizer
from fastscribe.text.word_times import spread
from fastscribe.types import Hypothesis

_DEFAULT_LANGUAGE = "en"
_END, _PAD, _NO_SPEECH = "<|endoftext|>", "<pad>", "<|nospeech|>"
_TIME = re.compile(r"<\|([0-9]{1,6})\|>")
_LANGUAGE = re.compile(r"<\|[a-z]{2}(-[A-Z]{2})?\|>")


@dataclass(frozen=True)
class Prompt:
    ids: tuple[int, ...]
    end_id: int
    pad_id: int | None
    no_speech_id: int | None
    frames_by_id: dict[int, int]  # of the tokens that are times; empty where none were asked for
    space_ids: tuple[int, ...] = ()  # of lone word marks, of which an aggregate has several
    word_ids: frozenset[int] = frozenset()  # of pieces that begin with a word mark


def options_for_prompt(options: Options) -> str | None:
    """The first option, as the command line has it, that only a model with a prompt can follow."""
    asked = {
        "--language": options.language,
        "--target-language": options.target_language,
        "--pnc": True if options.pnc else None,
        "--no-pnc": None if options.pnc is None or options.pnc else True,
        "--timestamps": options.timestamps or None,
    }
    return next((name for name, value in asked.items() if value is not None), None)


def can_write_times(form: PromptForm, pieces: Sequence[str]) -> bool:
    return form == "canary2" and "<|timestamp|>" in pieces and any(_TIME.fullmatch(piece) for piece in pieces)


def make_prompt(form: PromptForm, tokenizer: Tokenizer, options: Options, max_tokens: int) -> Prompt:
    """Raises UsageError for a language, or times, that the vocabulary has no token for, and where a model that has places
    for `max_tokens` has none for its prompt."""
    pieces = tokenizer.pieces
    ids = {piece: index for index, piece in reversed(list(enumerate(pieces)))}
    source = _DEFAULT_LANGUAGE if options.language is None else options.language
    target = source if options.target_language is None else options.target_language
    for name, language in (("--language", source), ("--target-language", target)):
        if f"<|{language}|>" not in ids or not _LANGUAGE.fullmatch(f"<|{language}|>"):
            raise UsageError(f"{name} {language}: not a language of this checkpoint, such as {_some_languages(ids)}")
    if options.timestamps and not can_write_times(form, pieces):
        raise UsageError("--timestamps: this checkpoint does not write times")
    frames = {index: int(found[1]) for piece, index in ids.items() if (found := _TIME.fullmatch(piece))}
    wanted = _FORMS[form](f"<|{source}|>", f"<|{target}|>", options.pnc is not False, options.timestamps)
    if tokenizer.begins_with_space:
        wanted.insert(0, WORD_MARK)
    missing = [piece for piece in (*wanted, _END) if piece not in ids]
    if missing:
        raise UsageError(f"this checkpoint's vocabulary has no {missing[0]}, which a prompt needs")
    prompt_ids = tuple(ids[piece] for piece in wanted)
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
    )


def _canary(source: str, target: str, pnc: bool, timestamps: bool) -> list[str]:
    task = "<|transcribe|>" if source == target else "<|translate|>"
    return ["<|startoftranscript|>", source, task, target, "<|pnc|>" if pnc else "<|nopnc|>"]


def _canary2(source: str, target: str, pnc: bool, timestamps: bool) -> list[str]:
    switches = {"pnc": pnc, "itn": False, "timestamp": timestamps, "diarize": False}
    told = [f"<|{name}|>" if is_on else f"<|no{name}|>" for name, is_on in switches.items()]
    return ["<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>", source, target, *told]


_FORMS: dict[PromptForm, Callable[[str, str, bool, bool], list[str]]] = {
    "canary": _canary,
    "canary2": _canary2,
}


def _some_languages(ids: dict[str, int]) -> str:
    languages = sorted(piece[2:-2] for piece in ids if _LANGUAGE.fullmatch(piece))
    return ", ".join(languages[:30]) + (" .." if len(languages) > 30 else "") if languages else "none"


def hypothesis(ids: Sequence[int], logprobs: Sequence[float], num_frames: int, prompt: Prompt) -> Hypothesis:
    """Tokens up to the end -> Hypothesis. Words between two times have these; without any, all are spread evenly."""
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


def _spread(ids: Sequence[int], logprobs: Sequence[float], first: int, last: int) -> Hypothesis:
    """Of tokens that share these frames."""
    borders = spread(first, last, len(ids))
    durations = tuple(end - start for start, end in pairwise(borders))
    return Hypothesis(tuple(ids), tuple(borders[:-1]), durations, tuple(logprobs))


def _timed_spans(ids: Sequence[int], prompt: Prompt) -> list[tuple[range, int, int]]:
    """Tokens between a time and the next one, pair by pair; those outside of a pair are nobody's, as in NeMo."""
    spans, frames_by_id = [], prompt.frames_by_id
    start: int | None = None
    for place, token in enumerate(ids):
        if token in frames_by_id:
            if start is None:
                start = place
                continue
            if not set(ids[start + 1 : place]) <= set(prompt.space_ids):
                spans.append((range(start + 1, place), frames_by_id[ids[start]], frames_by_id[token]))
            start = None
    return spans
