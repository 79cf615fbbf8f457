r"""A transcript to read, in paragraphs: plain text and Markdown. Pure.

A paragraph is of one speaker. It ends at a pause of _PAUSE_MS, and before it has more than _MAX_WORDS words or _MAX_SENTENCES
sentences; then it ends at the longest pause after its first _MIN_SENTENCES. A sentence is never cut, except one of more than
_MAX_WORDS words, or a text without any full stop: there a pause is all that tells where one thought ends. A known text with
blank lines between its lines (Segment.line) has paragraphs already, and these stay.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

from fastscribe._system.text_layout import clean_text, clock, join_texts, num_columns
from fastscribe.results.formats.subtitles import ends_sentence, shows_speakers
from fastscribe.types import Transcript, Word

_PAUSE_MS = 1500
_MIN_SENTENCES, _MAX_SENTENCES = 3, 8
_MIN_WORDS, _MAX_WORDS = 30, 120  # the fewest before a cut inside a sentence
_SHORT_S = 30.0  # up to this length a recording is a paragraph, or one a turn
_LONG_WORD, _WORD_COLUMNS = 30, 4  # a longer "word" is a phrase of a script without spaces, and counts by its columns
# & is markup where it begins an entity, _ where no letter is on one of its sides, and # where a line begins, as none does here.
_MARKDOWN = re.compile(r"[\\`*{}[\]<>|~$^@]|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")


class Paragraph(NamedTuple):
    start_ms: int
    speaker: str | None
    text: str


def to_txt(transcript: Transcript) -> str:
    """Return the text in paragraphs, with a blank line between them; those of a dialogue begin with the speaker's name."""
    return (
        "\n\n".join(
            f"{clean_text(one.speaker)}: {one.text}" if one.speaker and shows_speakers(transcript) else one.text
            for one in paragraphs(transcript)
        )
        + "\n"
    )


def to_md(transcript: Transcript) -> str:
    """Return Markdown: a heading with the file's name and length, then paragraphs with their times and speakers.

    No text of a recording is taken for markup, neither by CommonMark nor with pandoc's extensions.
    """
    name = _escaped(re.split(r"[/\\]", transcript.audio.id)[-1])
    blocks = [f"# {name} ({clock(round(transcript.audio.duration_s, 3))})"]
    for one in paragraphs(transcript):
        speaker = f"**{_escaped(one.speaker)}**: " if one.speaker and shows_speakers(transcript) else ""
        blocks.append(f"[{clock(one.start_ms / 1000)}] {speaker}{_escaped(one.text)}")
    return "\n\n".join(blocks) + "\n"


def _escaped(text: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", clean_text(text))


def paragraphs(transcript: Transcript) -> list[Paragraph]:
    """Return the paragraphs of a transcript that have a text, in order."""
    is_short = round(transcript.audio.duration_s, 3) <= _SHORT_S
    rest = iter(transcript.words)
    lines = [one.line or 0 for one in transcript.segments]
    # Numbers of given paragraphs, with blank lines between them: 0 alone without any.
    given = [0, *accumulate(after - before > 1 for before, after in pairwise(lines))]
    found = []
    for speaker, text in _turns(transcript, given):
        words = list(_words_of(text, rest))
        own = [words] if is_short or not words or any(given) else _cut_turn(words)
        starts_ms = [_ms(part[0].start_s) if part else 0 for part in own]
        texts = _texts(text, own)
        found += [
            Paragraph(start_ms, speaker, shown)
            for start_ms, one in zip(starts_ms, texts, strict=False)
            if (shown := clean_text(one))
        ]
    return found


def _turns(transcript: Transcript, given: Sequence[int]) -> Iterator[tuple[str | None, str]]:
    """Yield the speaker and the text of each turn, or of each given paragraph of one; without both, the whole text."""
    if not (transcript.speakers or any(given)):
        yield None, transcript.text
        return
    numbered = (one for one in zip(transcript.segments, given, strict=False) if one[0].text)
    for (speaker, _), own in groupby(numbered, lambda one: (one[0].speaker, one[1])):
        yield speaker, join_texts(segment.text for segment, _ in own)


def _words_of(text: str, words: Iterator[Word]) -> Iterator[Word]:
    """Yield the next words, up to as many letters as a text has: a stored row does not tell which words a segment has."""
    missing = _num_letters(text)
    while missing > 0 and (word := next(words, None)) is not None:
        missing -= _num_letters(word.text)
        yield word


def _texts(text: str, parts: Sequence[Sequence[Word]]) -> list[str]:
    """Return a text cut where its parts end; whole, if these are not its words."""
    places = [place for place, letter in enumerate(text) if not letter.isspace()]
    ends = list(accumulate(sum(_num_letters(word.text) for word in part) for part in parts))
    if not ends or ends[-1] != len(places):
        return [text]
    borders = [0, *(places[end] for end in ends[:-1]), len(text)]
    return [text[begin:end] for begin, end in pairwise(borders)]


def _num_letters(text: str) -> int:
    return sum(not letter.isspace() for letter in text)


def _cut_turn(words: Sequence[Word]) -> list[Sequence[Word]]:
    """Return the words of each paragraph of a turn."""
    pauses_ms = [_ms(after.start_s) - _ms(before.end_s) for before, after in pairwise(words)]
    is_stop = [ends_sentence(before.text, after.text) for before, after in pairwise(words)]
    may_cut = list(is_stop)
    has_stops = any(is_stop) or ends_sentence(words[-1].text, "")
    stops = [0, *(place + 1 for place, one in enumerate(is_stop) if one), len(words)]
    for begin, end in pairwise(stops):
        if not has_stops or sum(map(_num_words, words[begin:end])) > _MAX_WORDS:
            may_cut[begin : end - 1] = [pause_ms > 0 for pause_ms in pauses_ms[begin : end - 1]]
    ends = [0]
    while ends[-1] < len(words):
        ends.append(_next_end(words, ends[-1], pauses_ms, is_stop, may_cut))
    return [words[begin:end] for begin, end in pairwise(ends)]


def _next_end(
    words: Sequence[Word], begin: int, pauses_ms: Sequence[int], is_stop: Sequence[bool], may_cut: Sequence[bool]
) -> int:
    """Return the end of the paragraph that begins with a word."""
    cuts: list[tuple[bool, int, int]] = []  # whether enough stands before it, the pause, and the word after it
    num_words, num_sentences = 0, 0
    for place in range(begin, len(words)):
        num_words += _num_words(words[place])
        if cuts and (num_words > _MAX_WORDS or num_sentences >= _MAX_SENTENCES):
            return max(cuts)[-1]
        if place < len(may_cut) and may_cut[place]:
            if pauses_ms[place] >= _PAUSE_MS:
                return place + 1
            num_sentences += is_stop[place]
            is_late = num_sentences >= _MIN_SENTENCES if is_stop[place] else num_words >= _MIN_WORDS
            cuts.append((is_late, pauses_ms[place], place + 1))
    return len(words)


def _num_words(word: Word) -> int:
    columns = num_columns(word.text)
    return columns // _WORD_COLUMNS if columns > _LONG_WORD else 1


def _ms(time_s: float) -> int:
    """Return a time as a stored row has it; 0 for none."""
    return round(1000 * round(time_s, 3)) if math.isfinite(time_s) else 0
