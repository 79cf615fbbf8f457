"""Word and character error rates: pairs of texts in, counts out. Pure: no files, and nothing is printed.

Errors are those of one cheapest alignment (Levenshtein: each edit costs 1), as jiwer finds it. Another one may divide the
same number of errors differently among substitutions, insertions and deletions. Rates are a corpus's: all errors over
all units of the references, so that a long utterance weighs more than a short one. Characters include single spaces.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

from fastscribe.errors import UsageError

_BLOCK_PAIRS, _BLOCK_CHARACTERS = 1000, 250_000  # aligned together: what jiwer holds at once
# Replacements of the whisper-normalizer package that Whisper's own English normaliser does not make.
_NOT_WHISPERS = (r"\bkinda\b", r"\bsorta\b", r"\bdunno\b", r"\bcause\b")

Kind = Literal["equal", "substitute", "insert", "delete"]
NormalizerName = Literal["whisper-en", "none"]


class Pair(NamedTuple):
    """One utterance, normalised."""

    reference: str
    hypothesis: str | None  # None: the recording failed
    groups: tuple[str | None, ...] = ()  # its value of each group field; None where it has none
    audio_path: str = ""
    where: str = ""  # its file and line


@dataclass(frozen=True)
class Edits:
    """What turns references of `units` words or characters into their hypotheses."""

    units: int = 0
    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0

    @property
    def errors(self) -> int:
        return self.substitutions + self.insertions + self.deletions

    @property
    def rate(self) -> float | None:
        """May exceed 1; None where the references hold nothing."""
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
    """Sums over utterances."""

    utterances: int = 0
    failed: int = 0  # whether they are among the utterances or were left out
    with_errors: int = 0
    without_reference_words: int = 0
    words: Edits = field(default_factory=Edits)
    characters: Edits = field(default_factory=Edits)

    def add(self, words: Edits, characters: Edits, failed: bool) -> None:
        self.utterances += 1
        self.failed += failed
        self.with_errors += words.errors > 0
        self.without_reference_words += words.units == 0
        self.words += words
        self.characters += characters

    @property
    def sentence_error_rate(self) -> float | None:
        return self.with_errors / self.utterances if self.utterances else None


class Span(NamedTuple):
    """A run of words that one kind of edit covers; a substitution has as many on both sides."""

    kind: Kind
    reference: tuple[str, ...]
    hypothesis: tuple[str, ...]


class Aligned(NamedTuple):
    """An utterance with errors, to be shown."""

    pair: Pair
    words: Edits
    spans: tuple[Span, ...]


@dataclass
class Evaluation:
    total: Score
    groups: list[dict[str | None, Score]]  # one for each group field: its values
    worst: list[Aligned]  # most errors first, then the highest rate, then the order given; no failed ones


def evaluate(
    pairs: Iterable[Pair], num_group_fields: int = 0, num_worst: int = 0, count_failed: bool = True
) -> Evaluation:
    """Scores pairs as they come, in memory that grows with the groups and `num_worst` only.

    `count_failed`: all words of a failed recording count as deleted; else it is left out.
    """
    from jiwer import process_characters, process_words

    groups: list[dict[str | None, Score]] = [{} for _ in range(num_group_fields)]
    result, worst = Evaluation(Score(), groups, []), _Worst(num_worst)
    for block in _blocks(pairs):
        left_out = [] if count_failed else [pair for pair in block if pair.hypothesis is None]
        for pair in left_out:
            for score in _scores_of(pair, result):
                score.failed += 1
        scored = [pair for pair in block if count_failed or pair.hypothesis is not None]
        references, hypotheses = [pair.reference for pair in scored], [pair.hypothesis or "" for pair in scored]
        by_word, by_character = process_words(references, hypotheses), process_characters(references, hypotheses)
        for index, pair in enumerate(scored):
            words = _edits(by_word.alignments[index], len(by_word.references[index]))
            characters = _edits(by_character.alignments[index], len(by_character.references[index]))
            for score in _scores_of(pair, result):
                score.add(words, characters, pair.hypothesis is None)
            worst.offer(pair, words, by_word, index)
    result.worst = worst.ranked()
    return result


def check_installed(normalizer: NormalizerName, command: str = "evaluate", extra: str = "eval") -> None:
    """Raises UsageError where a package is missing that scoring with this normaliser needs."""
    for module in ("jiwer",) if normalizer == "none" else ("jiwer", "whisper_normalizer"):
        if find_spec(module) is None:
            raise UsageError(f"{command} needs {module.replace('_', '-')}: pip install 'fastscribe[{extra}]'")


def normalizer(name: NormalizerName) -> Callable[[str], str]:
    """Text normaliser; what it returns has single spaces between words and none around them.

    whisper-en raises AssertionError or ValueError for numbers of thousands of digits.
    """
    if name == "none":
        return _single_spaces
    from whisper_normalizer.english import EnglishTextNormalizer

    whisper = EnglishTextNormalizer()
    for pattern in _NOT_WHISPERS:
        whisper.replacers.pop(pattern, None)
    return lambda text: _single_spaces(whisper(text))


def _single_spaces(text: str) -> str:
    return " ".join(text.split())


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
    """Of one utterance: jiwer's alignment, a list of chunks."""
    counts = {"equal": 0, "substitute": 0, "insert": 0, "delete": 0}
    for chunk in alignment:
        counts[chunk.type] += max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx)
    return Edits(num_units, counts["substitute"], counts["insert"], counts["delete"])


class _Worst:
    """Keeps the utterances that rank highest of all it was offered."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[tuple[int, float, int], Aligned]] = []  # the best of the worst on top; ranks are unique
        self._num_offered = 0

    def offer(self, pair: Pair, words: Edits, by_word: Any, index: int) -> None:
        """`by_word`: jiwer's result for a block, in which this pair stands at `index`."""
        self._num_offered += 1
        rank = (words.errors, words.errors / words.units if words.units else float("inf"), -self._num_offered)
        if not self._size or not words.errors or pair.hypothesis is None:
            return
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, (rank, Aligned(pair, words, _spans(by_word, index))))
        elif rank > self._heap[0][0]:
            heapq.heapreplace(self._heap, (rank, Aligned(pair, words, _spans(by_word, index))))

    def ranked(self) -> list[Aligned]:
        return [aligned for _, aligned in sorted(self._heap, reverse=True)]


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
