"""Words and the marks around them, and transcripts whose words are changed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from fastscribe._system.text_layout import CLAUSE_MARKS, CLOSERS, OPENERS, SENTENCE_MARKS, join_texts
from fastscribe.text.transcript import make_segment
from fastscribe.types import Segment, Transcript, Word

_CLOSING = "".join({*CLOSERS, *SENTENCE_MARKS, *CLAUSE_MARKS})
EditWords = Callable[[Sequence[Word]], Sequence[Word]]


class Parts(NamedTuple):
    """A word's text: the marks before it, its core, and the marks after it. A word of marks alone has no core."""

    opening: str
    core: str
    closing: str


def parts_of(text: str) -> Parts:
    """Split a word's text.

    >>> parts_of('"Um,')
    Parts(opening='"', core='Um', closing=',')
    """
    rest = text.lstrip(OPENERS)
    core = rest.rstrip(_CLOSING)
    if not core:
        return Parts("", "", text)
    return Parts(text[: len(text) - len(rest)], core, rest[len(core) :])


def ends_sentence(text: str) -> bool:
    """Return True if a word's text ends in a sentence mark, perhaps inside a quotation."""
    return not SENTENCE_MARKS.isdisjoint(text.rstrip(CLOSERS)[-1:])


def join_words(words: Iterable[Word]) -> str:
    """Return the text of words, as segments have it."""
    return " ".join(word.text for word in words)


def edit_segments(transcript: Transcript, edit: EditWords) -> Transcript:
    """Return the transcript with other words. Segments that lose all words are dropped; others than the changed ones stay.

    Args:
        transcript: Each of its segments has its own words.
        edit: Returns the words that take the place of a segment's.
    """
    segments = [_with_words(segment, edit(segment.words)) for segment in transcript.segments]
    kept = tuple(segment for segment in segments if segment is not None)
    if kept == transcript.segments:
        return transcript
    return replace(transcript, text=join_texts(one.text for one in kept), segments=kept)


def edit_alternatives(transcript: Transcript, edit: EditWords) -> Transcript:
    """Return the transcript with other words in its alternatives."""
    edited = [(one, tuple(edit(one.words))) for one in transcript.nbest]
    nbest = (one if words == one.words else replace(one, text=join_words(words), words=words) for one, words in edited)
    return replace(transcript, nbest=tuple(nbest))


def _with_words(segment: Segment, words: Sequence[Word]) -> Segment | None:
    if tuple(words) == segment.words:
        return segment
    if not words:
        return None
    made = make_segment(words)
    return replace(made, line=segment.line, speaker=segment.speaker)


def with_own_words(transcript: Transcript) -> Transcript | None:
    """Return a stored transcript, whose first segment has all words, with each segment's own words.

    None if the texts of the segments are not those of the words.
    """
    words, segments, at = transcript.words, [], 0
    for segment in transcript.segments:
        end = _end_of(words, at, segment.text)
        if end is None:
            return None
        segments.append(replace(segment, words=tuple(words[at:end])))
        at = end
    return replace(transcript, segments=tuple(segments)) if at == len(words) else None


def _end_of(words: Sequence[Word], first: int, text: str) -> int | None:
    """Return the number of the word after those that make the text; None if they make another one."""
    left = "".join(text.split())
    for end in range(first, len(words) + 1):
        if not left:
            return end
        if end == len(words):
            return None
        word = "".join(words[end].text.split())
        if not left.startswith(word):
            return None
        left = left[len(word) :]
    return None
