"""Word and character error rates of pairs of texts. Pure: no files, no output.

Errors are those of one cheapest alignment (Levenshtein: each edit costs 1), as jiwer finds it. Another one may divide the
same number of errors differently into substitutions, insertions and deletions. Rates are a corpus's: all errors over
all units of the references, so that a long utterance weighs more than a short one. Characters include single spaces.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, cast

from fastscribe._system.urls import is_url
from fastscribe.errors import ManifestError, MissingExtra

_BLOCK_PAIRS, _BLOCK_CHARACTERS = 1000, 250_000  # aligned in one call of jiwer
# Replacements that the whisper-normalizer package adds to those of Whisper's English normaliser.
_EXTRA_REPLACEMENTS = (r"\bkinda\b", r"\bsorta\b", r"\bdunno\b", r"\bcause\b")

Kind = Literal["equal", "substitute", "insert", "delete"]
NormalizerName = Literal["whisper-en", "unicode", "none"]
_APOSTROPHES = str.maketrans("\u2018\u2019\u02bb\u02bc\u00b4`", "''''''")  # before NFKC, which takes an accent apart
# Scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Chinese characters.
_UNSPACED = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff]"
)
_INNER_SPACE = re.compile(f"(?<={_UNSPACED}) (?={_UNSPACED})")
_BORDER = re.compile(rf"(?<={_UNSPACED})(?!{_UNSPACED})(?=\w)|(?<=\w)(?<!{_UNSPACED})(?={_UNSPACED})")
_INVISIBLE = {"\u0640", *map(chr, range(0xFE00, 0xFE10))}  # Arabic's stretched line, and variants of glyphs


_SAME_MS = 20  # durations this close are equal: another program may have rounded them


class Recording(NamedTuple):
    """A file or a part of it. A text stands for a value that is not usable: rows with the same one are the same recording."""

    file: str = ""  # absolute path or URL
    offset: int | str = 0  # ms
    track: int | str = 0
    channel: int | str | None = None  # that a row names
    duration: int | str | None = None  # ms; None: to the end, or unknown
    id: str = ""  # of a row that has one

    @property
    def start(self) -> tuple[str, int | str, int | str, int | str | None]:
        """What it is but for the duration, which two runs may know differently, and the id, which one may lack."""
        return self[:4]

    @property
    def offset_s(self) -> float:
        return self.offset / 1000 if isinstance(self.offset, int) else 0.0

    def lasts_as(self, other: Recording) -> bool:
        """Return True if both have the same duration."""
        if isinstance(self.duration, int) and isinstance(other.duration, int):
            return abs(self.duration - other.duration) <= _SAME_MS
        return self.duration == other.duration

    def has_other_id(self, other: Recording) -> bool:
        """Return True if both have ids that differ: they are different recordings, even of the same audio."""
        return "" not in (self.id, other.id) and self.id != other.id


def recording_of(fields: Mapping[str, Any], file: str) -> Recording:
    """Return the recording of a row.

    Args:
        fields: A row of results or of a manifest.
        file: Its path, absolute or relative to the current folder, or its URL.
    """
    track, channel = (
        one if one is None or type(one) is int else json.dumps(one)
        for one in (fields.get("audio_track"), fields.get("audio_channel"))
    )
    id = fields.get("id")
    return Recording(
        file if is_url(file) or not file else os.path.abspath(file),
        _unusable_row(fields) or _milliseconds(fields.get("offset")) or 0,
        track or 0,
        channel,
        _milliseconds(fields.get("duration")) or None,
        "" if id is None else id if isinstance(id, str) else json.dumps(id),  # as lists that are no JSON have it
    )


def _unusable_row(fields: Mapping[str, Any]) -> str:
    """Return the number of the manifest's line and its problem, if the row's error is that the manifest's row is unusable."""
    error = fields.get("error")
    is_unusable = isinstance(error, dict) and error.get("type") == ManifestError.__name__
    return str(error.get("message")).partition(": line ")[2] if isinstance(error, dict) and is_unusable else ""


def _milliseconds(value: object) -> int | str | None:
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9:
        return round(value * 1000)
    return json.dumps(value)


class Pair(NamedTuple):
    """One utterance, normalised."""

    reference: str
    hypothesis: str | None  # None: the recording failed
    groups: tuple[str | None, ...] = ()  # value of each group field; None if it is missing
    audio_path: str = ""
    where: str = ""  # file and line
    key: Recording = Recording()

    @property
    def name(self) -> str:
        """The recording, for people: its path, with the offset if it is a part."""
        return self.audio_path + (f"@{self.key.offset_s:g}" if self.key.offset_s else "")


@dataclass(frozen=True)
class Edits:
    """Numbers of edits that turn references of `units` words or characters into their hypotheses."""

    units: int = 0
    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0

    @property
    def errors(self) -> int:
        return self.substitutions + self.insertions + self.deletions

    @property
    def rate(self) -> float | None:
        """Errors per unit; may exceed 1. None if the references are empty."""
        return self.errors / self.units if self.units else None

    def __add__(self, other: Edits) -> Edits:
        return Edits(
            self.units + other.units,
            self.substitutions + other.substitutions,
            self.insertions + other.insertions,
            self.deletions + other.deletions,
        )


@dataclass
class Score:
    """Error counts summed over utterances."""

    utterances: int = 0
    failed: int = 0  # counted even if they are left out of `utterances`
    with_errors: int = 0
    without_reference_words: int = 0
    words: Edits = field(default_factory=Edits)
    characters: Edits = field(default_factory=Edits)
    # Sums over utterances, for the standard error: errors squared, errors times words, words squared.
    _ee: int = field(default=0, compare=False, repr=False)
    _en: int = field(default=0, compare=False, repr=False)
    _nn: int = field(default=0, compare=False, repr=False)

    def add(self, scored: Scored) -> None:
        words = scored.words
        self.utterances += 1
        self.failed += scored.pair.hypothesis is None
        self.with_errors += words.errors > 0
        self.without_reference_words += words.units == 0
        self.words += words
        self.characters += scored.characters
        self._ee += words.errors**2
        self._en += words.errors * words.units
        self._nn += words.units**2

    @property
    def standard_error(self) -> float | None:
        """Standard error of the word error rate: what it would vary by if other utterances of the same kind were taken.

        It is that of a ratio of sums (Cochran 1977, 6.4), with utterances as independent draws. None for fewer than two, and
        without reference words.
        """
        rate, count = self.words.rate, self.utterances
        if rate is None or count < 2:
            return None
        squares = self._ee - 2 * rate * self._en + rate**2 * self._nn
        return math.sqrt(max(squares, 0.0) * count / (count - 1)) / self.words.units

    @property
    def sentence_error_rate(self) -> float | None:
        return self.with_errors / self.utterances if self.utterances else None


class Span(NamedTuple):
    """A run of words with one kind of edit; a substitution has the same number on both sides."""

    kind: Kind
    reference: tuple[str, ...]
    hypothesis: tuple[str, ...]


class Aligned(NamedTuple):
    """The alignment of an utterance with errors, for display."""

    pair: Pair
    words: Edits
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Scored:
    """A pair with its edits. `by_word` is jiwer's result for its block, at `index`."""

    pair: Pair
    words: Edits
    characters: Edits
    by_word: Any
    index: int

    def aligned(self) -> Aligned:
        return Aligned(self.pair, self.words, _spans(self.by_word, self.index))


@dataclass
class Evaluation:
    total: Score
    groups: list[dict[str | None, Score]]  # for each group field, the score of each value
    worst: list[Aligned]  # by errors, then rate, then input order; without failed recordings


def evaluate(
    pairs: Iterable[Pair], num_group_fields: int = 0, num_worst: int = 0, count_failed: bool = True
) -> Evaluation:
    """Score pairs as they come. Memory grows with the number of groups and `num_worst` only.

    Args:
        num_group_fields: length of each pair's `groups`.
        num_worst: utterances with the most errors to keep.
        count_failed: True: all words of a failed recording count as deleted; False: it is left out.
    """
    groups: list[dict[str | None, Score]] = [{} for _ in range(num_group_fields)]
    result = Evaluation(Score(), groups, [])
    worst: list[tuple[tuple[int, float, int], Aligned]] = []  # a heap: the lowest rank on top; ranks are unique
    for number, scored in enumerate(score_pairs(pairs if count_failed else _without_failed(pairs, result))):
        words, is_failed = scored.words, scored.pair.hypothesis is None
        for score in _scores_of(scored.pair, result):
            score.add(scored)
        rank = (words.errors, words.errors / words.units if words.units else math.inf, -number)
        if words.errors and not is_failed and len(worst) < num_worst:
            heapq.heappush(worst, (rank, scored.aligned()))
        elif words.errors and not is_failed and worst and rank > worst[0][0]:
            heapq.heapreplace(worst, (rank, scored.aligned()))
    result.worst = [aligned for _, aligned in sorted(worst, reverse=True)]
    return result


def score_pairs(pairs: Iterable[Pair]) -> Iterator[Scored]:
    """Yield every pair with its edits, in order. All words of a failed recording are deleted. Works in blocks."""
    from jiwer import process_characters, process_words

    for block in _blocks(pairs):
        references, hypotheses = [pair.reference for pair in block], [pair.hypothesis or "" for pair in block]
        by_word, by_character = process_words(references, hypotheses), process_characters(references, hypotheses)
        for index, pair in enumerate(block):
            words = _edits(by_word.alignments[index], len(by_word.references[index]))
            characters = _edits(by_character.alignments[index], len(by_character.references[index]))
            yield Scored(pair, words, characters, by_word, index)


def _without_failed(pairs: Iterable[Pair], result: Evaluation) -> Iterator[Pair]:
    for pair in pairs:
        if pair.hypothesis is not None:
            yield pair
            continue
        for score in _scores_of(pair, result):
            score.failed += 1


def check_installed(normalizer: NormalizerName, command: str = "evaluate", extra: str = "eval") -> None:
    """Raise MissingExtra if a package is missing that scoring with this normaliser needs."""
    for package in packages_of(normalizer):
        if find_spec(package.replace("-", "_")) is None:
            raise MissingExtra(command, package, extra)


def packages_of(normalizer: NormalizerName) -> tuple[str, ...]:
    """Return the packages that scoring with this normaliser needs."""
    return "jiwer", *NORMALIZERS[normalizer].packages


def normalizer(name: NormalizerName) -> Callable[[str], str]:
    """Return a text normaliser. Its output has single spaces between words, and none around them or inside scripts without
    spaces. "…" is "...".

    whisper-en is for English: it drops the marks of other scripts (the vowels of Hindi) and accents. It raises AssertionError
    or ValueError for numbers of thousands of digits. unicode keeps the letters, marks and digits of every script.
    """
    normalize = NORMALIZERS[name].make()
    return lambda text: _spaced(normalize(text.replace("\u2026", "...")))


def _whisper_en() -> Callable[[str], str]:
    from whisper_normalizer.english import EnglishTextNormalizer

    whisper = EnglishTextNormalizer()
    for pattern in _EXTRA_REPLACEMENTS:
        whisper.replacers.pop(pattern, None)
    return cast("Callable[[str], str]", whisper)


def _letters_of_any_script(text: str) -> str:
    """Fold case and compatibility forms; drop punctuation, symbols and invisible characters; keep apostrophes in words."""
    folded = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES)).casefold().replace("i\u0307", "i")
    folded = unicodedata.normalize("NFKC", folded.replace("\u0131", "i"))
    kept = []
    for place, character in enumerate(folded):
        category = unicodedata.category(character)
        if character == "'" and 0 < place < len(folded) - 1:
            is_kept = folded[place - 1].isalpha() and folded[place + 1].isalpha()
            kept.append(character if is_kept else " ")
        elif category[0] in "PS":
            kept.append(" ")
        elif category != "Cf" and character not in _INVISIBLE:  # Cf: joiners and their like
            kept.append(character)
    return "".join(kept)


class Normalizer(NamedTuple):
    """What a normaliser is called in messages, what its help says, what makes it, and the packages that it needs."""

    said: str
    help: str
    make: Callable[[], Callable[[str], str]]
    packages: tuple[str, ...] = ()


NORMALIZERS: dict[NormalizerName, Normalizer] = {
    "whisper-en": Normalizer(
        "Whisper's English normaliser", "Whisper's English normaliser", _whisper_en, ("whisper-normalizer",)
    ),
    "unicode": Normalizer(
        "the normaliser unicode", "letters, marks and digits of every script", lambda: _letters_of_any_script
    ),
    "none": Normalizer("no normaliser", "case and punctuation count", lambda: str),
}


def _spaced(text: str) -> str:
    """Put single spaces between words. Scripts that write none have none inside, and one where another script begins.

    >>> _spaced("今天 天气  很好, ok"), _spaced("用 iPhone拍")
    ('今天天气很好, ok', '用 iPhone 拍')
    """
    return _BORDER.sub(" ", _INNER_SPACE.sub("", " ".join(text.split())))


def _blocks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    block: list[Pair] = []
    num_characters = 0
    for pair in pairs:
        block.append(pair)
        num_characters += len(pair.reference) + len(pair.hypothesis or "")
        if len(block) == _BLOCK_PAIRS or num_characters >= _BLOCK_CHARACTERS:
            yield block
            block, num_characters = [], 0
    if block:
        yield block


def _scores_of(pair: Pair, result: Evaluation) -> Iterator[Score]:
    yield result.total
    for scores, value in zip(result.groups, pair.groups, strict=True):
        yield scores.setdefault(value, Score())


def _edits(alignment: Iterable[Any], num_units: int) -> Edits:
    """Count the edits of one utterance in jiwer's alignment, a list of chunks."""
    counts = {"equal": 0, "substitute": 0, "insert": 0, "delete": 0}
    for chunk in alignment:
        counts[chunk.type] += max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx)
    return Edits(num_units, counts["substitute"], counts["insert"], counts["delete"])


def _spans(by_word: Any, index: int) -> tuple[Span, ...]:
    reference, hypothesis = by_word.references[index], by_word.hypotheses[index]
    return tuple(
        Span(
            chunk.type,
            tuple(reference[chunk.ref_start_idx : chunk.ref_end_idx]),
            tuple(hypothesis[chunk.hyp_start_idx : chunk.hyp_end_idx]),
        )
        for chunk in by_word.alignments[index]
    )
