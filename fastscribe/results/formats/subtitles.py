"""Subtitle cues from words with times. Pure; writers.py turns cues into SRT and VTT, ass.py into ASS.

Words become pieces, the units between possible breaks. A word is one piece, unless it is wider than a line or longer than a
cue may last, as whole sentences are in scripts without spaces. Dynamic programming then finds the cheapest way to cut the
pieces into cues, as Knuth and Plass cut a paragraph into lines (1981). A break is free at the end of a sentence, and costs
more after a comma, at a pause and between any two words. Cues that are too short or too dense to read, lone words and joined
sentences cost as well. The lines of a known text (Segment.line) are never joined, and known subtitles keep their cues
(given_cues.py). Width, number of lines and duration are
constraints, not costs: the search skips cues that violate them. Times become integer milliseconds first. Lines are cut last,
by the same kind of search.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

from fastscribe._system.text_layout import (
    CLAUSE_MARKS,
    CLOSERS,
    OPENERS,
    SENTENCE_MARKS,
    clean_text,
    is_phrase_start,
    num_columns,
    split_word,
)
from fastscribe.config import SubtitleStyle
from fastscribe.results.formats.given_cues import GivenCue, cues_inside, found_cues, shown_ms, words_inside
from fastscribe.types import Transcript, Word

DEFAULT_STYLE = SubtitleStyle()
GAP_MS = 84  # two frames at 24 fps

_PAUSE_MS = 300  # a breath
_SILENCE_MS = 1500  # as good as the end of a sentence, and no cue should reach across it

# Costs of a break after a sentence, after a clause, at a pause, between words, inside a word; and of what spoils a cue.
_SENTENCE, _CLAUSE, _PAUSE, _WORD, _INSIDE = 0.0, 3.0, 6.0, 12.0, 18.0
_JOINED_SENTENCES, _JOINED_SILENCE, _LONE_WORD, _TOO_SHORT, _FULL = 1.5, 30.0, 40.0, 20.0, 2.0
_JOINED_LINES = 1e6  # more than all other costs of a cue
_UNREAD_COLUMN = 0.25  # of text that the reading speed leaves no time for; little, or fast talkers lose sentence ends
_LINE_BREAK = 3.0  # columns of unevenness for one of the costs of a break above
_LONE_WORD_LINE = 100.0
_TOP_HEAVY = 0.01  # for a column, times the lines below it: of equal layouts the one with short upper lines

_LABEL = re.compile("(channel|speaker) [0-9]+")  # of a speaker without a name
_TITLES = frozenset(("mr.", "mrs.", "ms.", "dr.", "prof.", "st.", "vs.", "gen.", "sen.", "rep.", "gov.", "hr.", "fr."))


class Span(NamedTuple):
    """Place of a word in a cue: characters `begin` to `end` of a line, and the start of its speech."""

    line: int
    begin: int
    end: int
    start_ms: int


@dataclass(frozen=True)
class Cue:
    start_ms: int
    end_ms: int
    lines: tuple[str, ...]
    spans: tuple[Span, ...] = field(default=(), compare=False, repr=False)
    speaker: str | None = None
    given: GivenCue | None = field(default=None, compare=False, repr=False)  # the known subtitle that it is


class _Piece(NamedTuple):
    text: str
    start_ms: int
    end_ms: int
    glued: bool  # True: the rest of a split word, no space before it
    ends_line: bool = False  # the last piece of a line of a known text


def to_cues(transcript: Transcript, style: SubtitleStyle = DEFAULT_STYLE, *, names_speakers: bool = False) -> list[Cue]:
    """Return cues with all words of the transcript, once and in order. They do not overlap, and end with the audio.

    Lines of a known text that were not heard have none: their place is a pause, in which nobody can read them. Neither has what
    the text says before the recording begins and after it ends.

    Known subtitles keep their other cues, which may overlap where their words do.
    A cue of a dialogue is of one speaker. Cues of two speakers overlap only where both speak.

    Args:
        transcript: The transcript.
        style: Layout of the cues.
        names_speakers: Write a speaker's name before the first word of a turn.
    """
    audio_ms = round(round(transcript.audio.duration_s, 3) * 1000)
    if (given := found_cues(transcript)) is not None:
        times = shown_ms(transcript.segments, given, audio_ms, GAP_MS, style)
        return [
            Cue(start_ms, end_ms, cue.lines, _spans_in(cue.lines, segment.words, audio_ms), segment.speaker, cue)
            for (start_ms, end_ms), cue, segment, is_inside in zip(
                times, given.cues, transcript.segments, cues_inside(transcript.segments), strict=True
            )
            if is_inside
        ]
    heard = [one for one in transcript.segments if not one.is_missing]
    words = [word for one in heard for word in one.words]
    inside = words_inside(words)
    words = words[inside.start : inside.stop]
    ends = accumulate(len(one.words) for one in heard)
    line_ends = {end - inside.start for end, one in zip(ends, heard, strict=True) if one.line is not None}
    if transcript.speakers:
        names_them = names_speakers and shows_speakers(transcript)
        return _dialogue_cues(words, audio_ms, style, names_them, line_ends)
    return words_to_cues(words, audio_ms, style, line_ends)


def shows_speakers(transcript: Transcript) -> bool:
    """Return True if a text to read says who speaks: not for one speaker whom nobody has named."""
    return len(transcript.speakers) > 1 or any(_LABEL.fullmatch(one) is None for one in transcript.speakers)


def _spans_in(lines: Sequence[str], words: Sequence[Word], audio_ms: int) -> tuple[Span, ...]:
    """Return the places of words in a cue's lines, which may have other text too; none if a word is not there."""
    spans, line, end = [], 0, 0
    for word in words:
        while (begin := lines[line].find(word.text, end)) < 0:
            line, end = line + 1, 0
            if line == len(lines):
                return ()
        end = begin + len(word.text)
        spans.append(Span(line, begin, end, _to_ms(word.start_s, 0, audio_ms)))
    return tuple(spans)


def _dialogue_cues(
    words: Sequence[Word], audio_ms: int, style: SubtitleStyle, names_speakers: bool, line_ends: Collection[int]
) -> list[Cue]:
    """Return the cues of each turn. They stay until the next turn begins, or longer if the turn lasts longer."""
    turns = [(speaker, list(group)) for speaker, group in groupby(words, lambda word: word.speaker)]
    cues, begin = [], 0
    for number, (speaker, turn) in enumerate(turns, start=1):
        next_ms = _to_ms(turns[number][1][0].start_s, 0, audio_ms) if number < len(turns) else audio_ms
        spoken_ms = max(_to_ms(word.end_s, 0, audio_ms) for word in turn)
        name = f"{speaker}:" if speaker and names_speakers else ""
        own_ends = {end - begin for end in line_ends}
        begin += len(turn)
        found = words_to_cues(turn, max(spoken_ms, next_ms), style, own_ends, name)
        cues += [replace(cue, speaker=speaker) for cue in found]
    return cues


def words_to_cues(
    words: Iterable[Word],
    audio_ms: int,
    style: SubtitleStyle = DEFAULT_STYLE,
    line_ends: Collection[int] = (),
    name: str = "",
) -> list[Cue]:
    """Return cues of words, as to_cues() does.

    Args:
        words: The words, in order.
        audio_ms: End of the audio in milliseconds.
        style: Layout of the cues.
        line_ends: Numbers of words after which a cue must end.
        name: Stands before the first word.
    """
    pieces = _with_name(clean_text(name), _pieces(words, audio_ms, style, line_ends), style.max_line_width)
    text = _Text(pieces, audio_ms, style)
    cuts = _cheapest_cuts(text)
    starts_ms = [*_distinct([pieces[first].start_ms for first in cuts[:-1]], 0, audio_ms), audio_ms]
    cues = []
    for cue, (first, end) in enumerate(pairwise(cuts)):
        spoken_ms = max(piece.end_ms for piece in pieces[first:end])
        next_ms = starts_ms[cue + 1]
        room_ms = next_ms if end == len(pieces) or next_ms - starts_ms[cue] < 2 * GAP_MS else next_ms - GAP_MS
        end_ms = text.end_ms(starts_ms[cue], spoken_ms, room_ms, text.columns(first, end))
        cues.append(Cue(starts_ms[cue], end_ms, *_layout(text, first, end)))
    return cues


def spoken_spans(cue: Cue) -> list[tuple[int, int, Span]]:
    """Return (start_ms, end_ms, span) of each word. Each lasts until the next one starts, and the last until the cue's end.

    Empty if the cue has no words, or more than milliseconds.
    """
    if not cue.spans or len(cue.spans) > cue.end_ms - cue.start_ms:
        return []
    starts_ms = [cue.start_ms, *(span.start_ms for span in cue.spans[1:])]
    times_ms = [*_distinct(starts_ms, cue.start_ms, cue.end_ms), cue.end_ms]
    return [(start, end, span) for (start, end), span in zip(pairwise(times_ms), cue.spans, strict=True)]


def _pieces(words: Iterable[Word], audio_ms: int, style: SubtitleStyle, line_ends: Collection[int]) -> list[_Piece]:
    """Return cleaned pieces. Their starts never decrease, and none is beyond the audio."""
    pieces: list[_Piece] = []
    max_cue_ms = style.max_cue_s * 1000
    for number, word in enumerate(words, start=1):
        earliest_ms = pieces[-1].start_ms if pieces else 0
        start_ms = _to_ms(word.start_s, earliest_ms, audio_ms)
        end_ms = _to_ms(word.end_s, start_ms, audio_ms)
        units = list(_units(clean_text(word.text), style.max_line_width, end_ms - start_ms > max_cue_ms))
        if len(units) == 1:
            pieces.append(_Piece(units[0][0], start_ms, end_ms, False))
        else:
            pieces.extend(_share_time(units, start_ms, end_ms))
        if number in line_ends and pieces:
            pieces[-1] = pieces[-1]._replace(ends_line=True)
    return pieces


def _with_name(name: str, pieces: list[_Piece], max_columns: int) -> list[_Piece]:
    """Return the pieces with a name before the first one, on the same line if it is wide enough for both."""
    if not (name and pieces):
        return pieces
    first = pieces[0]
    if num_columns(together := f"{name} {first.text}") <= max_columns:
        return [first._replace(text=together), *pieces[1:]]
    units = _units(name, max_columns, must_split=False)
    return [*(_Piece(text, first.start_ms, first.start_ms, glued) for text, glued in units), *pieces]


def _to_ms(time_s: float, earliest_ms: int, latest_ms: int) -> int:
    time_ms = round(time_s, 3) * 1000  # as in a stored row
    return round(min(max(time_ms, earliest_ms), latest_ms)) if math.isfinite(time_s) else earliest_ms


def _share_time(units: Sequence[tuple[str, bool]], start_ms: int, end_ms: int) -> Iterator[_Piece]:
    """Yield the pieces of a split word; each gets time in proportion to its width."""
    edges = list(accumulate((num_columns(unit) for unit, _ in units), initial=0))
    times_ms = [start_ms + (end_ms - start_ms) * edge // max(1, edges[-1]) for edge in edges]
    for unit, (text, glued) in enumerate(units):
        yield _Piece(text, times_ms[unit], times_ms[unit + 1], glued)


def _units(text: str, max_columns: int, must_split: bool) -> Iterator[tuple[str, bool]]:
    """Yield (text, glued) of a word's pieces; none if the word is blank."""
    for part in text.split():
        if not must_split and num_columns(part) <= max_columns:
            yield part, False
        else:
            for position, unit in enumerate(split_word(part, max_columns)):
                yield unit, position > 0


class _Text:
    """Pieces, and values that the search reads often, computed once.

    `break_costs[k]` is the cost of a cue that ends before piece k, and `keep_costs[k]` that of a cue that continues there,
    summed from the start. `line_ends[k]` is the first piece that no longer fits on a line that starts with piece k.
    """

    def __init__(self, pieces: Sequence[_Piece], audio_ms: int, style: SubtitleStyle) -> None:
        self.pieces = pieces
        self.line_columns, self.max_lines = style.max_line_width, style.max_lines
        self.max_cue_ms, self.min_cue_ms = max(1, round(style.max_cue_s * 1000)), max(1, round(style.min_cue_s * 1000))
        self.columns_per_ms = (style.max_chars_per_second or math.inf) / 1000
        self.leads = [0 if piece.glued else 1 for piece in pieces] + [0]
        widths = (num_columns(piece.text) + lead for piece, lead in zip(pieces, self.leads, strict=False))
        self.edges = list(accumulate(widths, initial=0))
        places = [_place_costs(before, after) for before, after in pairwise(pieces)]
        self.break_costs = [_SENTENCE, *(cost for cost, _ in places), _SENTENCE]
        self.keep_costs = list(accumulate((cost for _, cost in places), initial=0.0))
        self.line_ends = self._line_ends()
        self.starts_ms = [*(piece.start_ms for piece in pieces), audio_ms + GAP_MS]

    def columns(self, first: int, end: int) -> int:
        return self.edges[end] - self.edges[first] - self.leads[first]

    def end_ms(self, start_ms: int, spoken_ms: int, room_ms: int, num_columns: int) -> int:
        """Return the end of a cue: the last word's, or later if the cue would be too short to read and there is room."""
        read_ms = max(self.min_cue_ms, math.ceil(num_columns / self.columns_per_ms))
        return min(max(spoken_ms, start_ms + read_ms), start_ms + self.max_cue_ms, room_ms)

    def _line_ends(self) -> list[int]:
        line_ends, end = [], 0
        for first in range(len(self.pieces)):
            while end < len(self.pieces) and self.columns(first, end + 1) <= self.line_columns:
                end += 1
            line_ends.append(end)
        return [*line_ends, len(self.pieces)]


def _place_costs(before: _Piece, after: _Piece) -> tuple[float, float]:
    """Return (cost of a cue's end between the two pieces, cost of a cue that holds both)."""
    if before.ends_line:
        return _SENTENCE, _JOINED_LINES
    pause_ms = after.start_ms - before.end_ms
    if pause_ms >= _SILENCE_MS:
        return _SENTENCE, _JOINED_SILENCE
    if ends_sentence(before.text, after.text):
        return _SENTENCE, _JOINED_SENTENCES
    text = before.text.rstrip(CLOSERS)
    if text and text[-1] in SENTENCE_MARKS and after.text[0].isupper():
        return _INSIDE, 0.0  # a title or an initial, and the name it belongs to
    if text and text[-1] in CLAUSE_MARKS:
        return _CLAUSE, 0.0
    if pause_ms >= _PAUSE_MS:
        return _PAUSE, 0.0
    is_inside = after.glued and not is_phrase_start(before.text[-1], after.text[0])
    return (_INSIDE if is_inside else _WORD), 0.0


def ends_sentence(text: str, following: str) -> bool:
    """Return True if a text that others follow ends a sentence, which "Mr." and initials do not."""
    text = text.rstrip(CLOSERS)
    return bool(text) and text[-1] in SENTENCE_MARKS and not _is_abbreviation(text, following)


def _is_abbreviation(text: str, following: str) -> bool:
    """Return True for "Mr.", initials, and dots before a lower-case word."""
    text = text.lstrip(OPENERS)
    is_initial = len(text) == 2 and text[0].isupper() and text[0] != "I"
    return text[-1] in ".…" and (is_initial or text.lower() in _TITLES or following[:1].islower())


def _cheapest_cuts(text: _Text) -> list[int]:
    """Return the index of the first piece of each cue, and at the end the number of pieces."""
    num_pieces = len(text.pieces)
    costs = [0.0] + [math.inf] * num_pieces
    previous = [0] * (num_pieces + 1)
    for first in range(num_pieces):
        for end, cost in _cue_costs(text, first):
            if costs[first] + cost < costs[end]:
                costs[end], previous[end] = costs[first] + cost, first
    cuts = [num_pieces]
    while cuts[-1] > 0:
        cuts.append(previous[cuts[-1]])
    return cuts[::-1]


def _cue_costs(text: _Text, first: int) -> Iterator[tuple[int, float]]:
    """Yield (end, cost) of every cue that starts with piece `first`, fits its lines and does not last too long."""
    start_ms, kept = text.starts_ms[first], text.keep_costs[first]
    latest_end = first
    for _ in range(text.max_lines):
        latest_end = text.line_ends[latest_end]  # which the last one is itself
    for end in range(first + 1, latest_end + 1):
        spoken_ms = text.pieces[end - 1].end_ms - start_ms
        is_lone = end == first + 1
        if spoken_ms > text.max_cue_ms and not is_lone:
            return
        columns = text.columns(first, end)
        fullness = columns / (text.max_lines * text.line_columns)
        cost = text.break_costs[end] + text.keep_costs[end - 1] - kept + _FULL * fullness * fullness
        shown_ms = min(max(spoken_ms, text.starts_ms[end] - GAP_MS - start_ms), text.max_cue_ms)
        if shown_ms < text.min_cue_ms:
            cost += _TOO_SHORT + (text.min_cue_ms - shown_ms) / 100
        if columns > shown_ms * text.columns_per_ms:
            cost += _UNREAD_COLUMN * (columns - shown_ms * text.columns_per_ms)
        if is_lone and text.break_costs[first] + text.break_costs[end] > _SENTENCE:
            cost += _LONE_WORD
        yield end, cost


def _layout(text: _Text, first: int, end: int) -> tuple[tuple[str, ...], tuple[Span, ...]]:
    """Return a cue's lines, and the places of its pieces in them."""
    lines, spans = [], []
    for number, (begin, cut) in enumerate(pairwise(_line_cuts(text, first, end))):
        line = ""
        for piece in text.pieces[begin:cut]:
            line += " " if line and not piece.glued else ""
            spans.append(Span(number, len(line), len(line) + len(piece.text), piece.start_ms))
            line += piece.text
        lines.append(line)
    return tuple(lines), tuple(spans)


def _line_cuts(text: _Text, first: int, end: int) -> list[int]:
    """Return the first piece of each line, and `end`: the fewest lines, of similar widths, broken where cues would be."""
    num_lines, reach = 1, text.line_ends[first]
    while reach < end:
        num_lines, reach = num_lines + 1, text.line_ends[reach]
    if num_lines == 1:
        return [first, end]
    mean_columns = text.columns(first, end) / num_lines
    best = {first: (0.0, [first])}  # start of the next line -> (cost, first pieces of the lines before)
    for lines_below in range(num_lines - 1, -1, -1):
        reached: dict[int, tuple[float, list[int]]] = {}
        for begin, (so_far, cuts) in best.items():
            latest = min(text.line_ends[begin], end)
            for cut in range(begin + 1 if lines_below else end, latest + 1):
                columns = text.columns(begin, cut)
                cost = so_far + abs(columns - mean_columns) + _TOP_HEAVY * lines_below * columns
                cost += _LINE_BREAK * text.break_costs[cut] if lines_below else 0.0
                cost += _LONE_WORD_LINE if cut == begin + 1 else 0.0
                if cut not in reached or cost < reached[cut][0]:
                    reached[cut] = cost, [*cuts, cut]
        best = reached
    return best[end][1]


def _distinct(starts_ms: Sequence[int], first_ms: int, end_ms: int) -> list[int]:
    """Return the starts, moved by a few ms, so that all differ and lie between `first_ms` and the end."""
    later: list[int] = []
    for start_ms in starts_ms:
        later.append(max(start_ms, later[-1] + 1) if later else start_ms)
    latest_ms = end_ms
    for index in range(len(later) - 1, -1, -1):
        latest_ms = max(first_ms, min(later[index], latest_ms - 1))
        later[index] = latest_ms
    return later
