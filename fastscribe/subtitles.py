"""Words with times -> subtitle cues. Pure: no files, no format; writers.py turns cues into SRT and VTT.

Words become pieces: what may stand at either side of a break. A word is one piece, unless it is wider than a line or
longer than a cue may last, as whole sentences are in scripts that put no spaces between words. Then the cheapest way to
cut all pieces into cues is found by dynamic programming, as Knuth and Plass cut a paragraph into lines (1981). A break
costs nothing at the end of a sentence, more after a comma, more at a pause, most between any two words; cues too short
to read, lone words and joined sentences cost as well. What must hold (width, duration) is not a cost: cues without it
are never looked at. Times become integer ms once, before anything is decided by them, and lines are balanced last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from fastscribe.plain_text import CLAUSE_MARKS, CLOSERS, OPENERS, SENTENCE_MARKS, clean_text, num_columns, split_word
from fastscribe.types import Transcript, Word

LINE_COLUMNS = 42
NUM_LINES = 2
MIN_CUE_MS = 1000
MAX_CUE_MS = 7000
GAP_MS = 84  # two frames at 24 fps

_PAUSE_MS = 300  # people breathe here
_SILENCE_MS = 1500  # as good as the end of a sentence, and no cue should reach across it

# Costs of a break after a sentence, after a clause, at a pause, between words, inside a word; and of what spoils a cue.
_SENTENCE, _CLAUSE, _PAUSE, _WORD, _INSIDE = 0.0, 3.0, 6.0, 12.0, 18.0
_JOINED_SENTENCES, _JOINED_SILENCE, _LONE_WORD, _TOO_SHORT, _FULL = 1.5, 30.0, 15.0, 20.0, 2.0
_LONE_WORD_LINE = 100.0

_TITLES = frozenset(("mr.", "mrs.", "ms.", "dr.", "prof.", "st.", "vs.", "gen.", "sen.", "rep.", "gov.", "hr.", "fr."))


@dataclass(frozen=True)
class Cue:
    start_ms: int
    end_ms: int
    lines: tuple[str, ...]


class _Piece(NamedTuple):
    text: str
    start_ms: int
    end_ms: int
    glued: bool  # True: the rest of a split word, no space before it


def to_cues(transcript: Transcript) -> list[Cue]:
    """All words of the transcript once and in order, in cues that neither overlap nor outlast the audio."""
    audio = transcript.audio
    return words_to_cues(transcript.words, audio.num_samples * 1000 // audio.sample_rate)


def words_to_cues(words: Iterable[Word], audio_ms: int) -> list[Cue]:
    """The same from bare words; `audio_ms` is where the audio ends on the words' clock."""
    pieces = _pieces(words, audio_ms)
    text = _Text(pieces, audio_ms)
    cuts = _cheapest_cuts(text)
    starts_ms = [*_distinct([pieces[first].start_ms for first in cuts[:-1]], audio_ms), audio_ms]
    cues = []
    for cue, (first, end) in enumerate(pairwise(cuts)):
        spoken_ms = max(piece.end_ms for piece in pieces[first:end])
        room_ms = starts_ms[cue + 1] - (GAP_MS if end < len(pieces) else 0)
        end_ms = _end_ms(starts_ms[cue], spoken_ms, room_ms, starts_ms[cue + 1])
        cues.append(Cue(starts_ms[cue], end_ms, _lines(text, first, end)))
    return cues


def _pieces(words: Iterable[Word], audio_ms: int) -> list[_Piece]:
    """Clean, split where needed, with starts that never decrease and nothing beyond the audio."""
    pieces: list[_Piece] = []
    for word in words:
        earliest_ms = pieces[-1].start_ms if pieces else 0
        start_ms = _to_ms(word.start_s, earliest_ms, audio_ms)
        end_ms = _to_ms(word.end_s, start_ms, audio_ms)
        units = list(_units(clean_text(word.text), end_ms - start_ms > MAX_CUE_MS))
        if len(units) == 1:
            pieces.append(_Piece(units[0][0], start_ms, end_ms, False))
        else:
            pieces.extend(_share_time(units, start_ms, end_ms))
    return pieces


def _to_ms(time_s: float, earliest_ms: int, latest_ms: int) -> int:
    return round(min(max(time_s * 1000, earliest_ms), latest_ms)) if math.isfinite(time_s) else earliest_ms


def _share_time(units: Sequence[tuple[str, bool]], start_ms: int, end_ms: int) -> Iterator[_Piece]:
    """A split word's time, shared by width."""
    edges = list(accumulate((num_columns(unit) for unit, _ in units), initial=0))
    times_ms = [start_ms + (end_ms - start_ms) * edge // max(1, edges[-1]) for edge in edges]
    for unit, (text, glued) in enumerate(units):
        yield _Piece(text, times_ms[unit], times_ms[unit + 1], glued)


def _units(text: str, must_split: bool) -> Iterator[tuple[str, bool]]:
    """(text, glued) of a word's pieces; none if the word is blank."""
    for part in text.split():
        if not must_split and num_columns(part) <= LINE_COLUMNS:
            yield part, False
        else:
            for position, unit in enumerate(split_word(part, LINE_COLUMNS)):
                yield unit, position > 0


class _Text:
    """Pieces with what the search for cuts asks again and again, computed once.

    `break_costs[k]` and `keep_costs[k]` belong to the place before piece k: the price of a cue that ends there and of
    one that runs across it; keep costs are summed from the start. `line_ends[k]` is the first piece that no longer
    fits on a line that begins with piece k.
    """

    def __init__(self, pieces: Sequence[_Piece], audio_ms: int) -> None:
        self.pieces = pieces
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

    def join(self, first: int, end: int) -> str:
        return "".join(piece.text if piece.glued else " " + piece.text for piece in self.pieces[first:end]).strip()

    def _line_ends(self) -> list[int]:
        line_ends, end = [], 0
        for first in range(len(self.pieces)):
            while end < len(self.pieces) and self.columns(first, end + 1) <= LINE_COLUMNS:
                end += 1
            line_ends.append(end)
        return [*line_ends, len(self.pieces)]


def _place_costs(before: _Piece, after: _Piece) -> tuple[float, float]:
    """(price of a cue's end between the two, price of a cue that holds both)."""
    pause_ms = after.start_ms - before.end_ms
    if pause_ms >= _SILENCE_MS:
        return _SENTENCE, _JOINED_SILENCE
    text = before.text.rstrip(CLOSERS)
    if text and text[-1] in SENTENCE_MARKS and not _is_abbreviation(text, after.text):
        return _SENTENCE, _JOINED_SENTENCES
    if text and text[-1] in CLAUSE_MARKS:
        return _CLAUSE, 0.0
    if pause_ms >= _PAUSE_MS:
        return _PAUSE, 0.0
    return (_INSIDE if after.glued else _WORD), 0.0


def _is_abbreviation(text: str, following: str) -> bool:
    """True for "Mr.", initials, and dots with a lower-case word after them."""
    text = text.lstrip(OPENERS)
    is_initial = len(text) == 2 and text[0].isupper() and text[0] != "I"
    return text[-1] in ".…" and (is_initial or text.lower() in _TITLES or following[0].islower())


def _cheapest_cuts(text: _Text) -> list[int]:
    """Indices of the first piece of each cue, and the number of pieces last."""
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
    """(end, cost) of every possible cue that begins with piece `first`: it fits two lines and lasts at most 7 s."""
    start_ms, kept = text.starts_ms[first], text.keep_costs[first]
    latest = text.line_ends[text.line_ends[first]]
    for end in range(first + 1, latest + 1):
        spoken_ms = text.pieces[end - 1].end_ms - start_ms
        is_lone = end == first + 1
        if spoken_ms > MAX_CUE_MS and not is_lone:
            return
        fullness = text.columns(first, end) / (NUM_LINES * LINE_COLUMNS)
        cost = text.break_costs[end] + text.keep_costs[end - 1] - kept + _FULL * fullness * fullness
        shown_ms = max(spoken_ms, text.starts_ms[end] - GAP_MS - start_ms)
        if shown_ms < MIN_CUE_MS:
            cost += _TOO_SHORT + (MIN_CUE_MS - shown_ms) / 100
        if is_lone and text.break_costs[first] + text.break_costs[end] > _SENTENCE:
            cost += _LONE_WORD
        yield end, cost


def _lines(text: _Text, first: int, end: int) -> tuple[str, ...]:
    if text.columns(first, end) <= LINE_COLUMNS:
        return (text.join(first, end),)

    def cost(cut: int) -> float:
        upper, lower = text.columns(first, cut), text.columns(cut, end)
        is_lone = end - first > 2 and (cut - first == 1 or end - cut == 1)
        return abs(upper - lower) + (upper > lower) + text.break_costs[cut] + _LONE_WORD_LINE * is_lone

    fits = (cut for cut in range(first + 1, text.line_ends[first] + 1) if end <= text.line_ends[cut])
    cut = min(fits, key=cost)
    return text.join(first, cut), text.join(cut, end)


def _distinct(starts_ms: Sequence[int], audio_ms: int) -> list[int]:
    """The same starts, moved by the few ms it takes that no two are equal and the last is before the end."""
    later: list[int] = []
    for start_ms in starts_ms:
        later.append(max(start_ms, later[-1] + 1) if later else start_ms)
    latest_ms = audio_ms
    for index in range(len(later) - 1, -1, -1):
        latest_ms = max(0, min(later[index], latest_ms - 1))
        later[index] = latest_ms
    return later


def _end_ms(start_ms: int, spoken_ms: int, room_ms: int, next_ms: int) -> int:
    """When the last word ends, or later where the cue would be too short and there is room before the next one."""
    end_ms = max(min(spoken_ms, start_ms + MAX_CUE_MS), min(start_ms + MIN_CUE_MS, room_ms))
    end_ms = min(end_ms, next_ms)
    return end_ms if end_ms > start_ms else next_ms
