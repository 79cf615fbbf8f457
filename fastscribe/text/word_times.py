"""From a hypothesis without times to the text that an aligner is asked for, and from its tokens' frames to words' frames. Pure.

The words are those of the transcript; the aligner reads them one by one with its own tokenizer. Rules are NeMo 3.0's
(`get_forced_aligned_timestamps_with_external_model`): a word has the frames from its first token's first to its last token's
last, but a punctuation mark that ends it takes no time. Inside a word the hypothesis' own tokens share its frames evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fastscribe.text.encoder import WordEncoder
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.text.transcript import group_words
from fastscribe.types import Hypothesis

_MARKS = frozenset(",.!?")  # which take no time at the end of a word, whatever else the vocabulary has
Span = tuple[int, int]  # first frame, and the one after the last


@dataclass(frozen=True)
class AlignmentText:
    """What is aligned for one hypothesis."""

    token_ids: tuple[int, ...]  # the aligner's
    words: tuple[tuple[int, ...], ...]  # of the hypothesis: the places of each word's tokens in it
    spoken: tuple[range, ...]  # for each word its tokens among `token_ids`
    is_mark: tuple[bool, ...]  # for each of `token_ids`

    @classmethod
    def of(cls, hypothesis: Hypothesis, tokenizer: Tokenizer, encoder: WordEncoder) -> AlignmentText:
        ids: list[int] = []
        texts: list[str] = []
        words = group_words(hypothesis.token_ids, tokenizer)
        spoken = []
        for places in words:
            first = None
            for part in tokenizer.text([hypothesis.token_ids[place] for place in places]).split():
                if ids:
                    ids += encoder.space_ids
                    texts += " " * len(encoder.space_ids)
                first = len(ids) if first is None else first
                encoded = encoder.encode(part)
                ids += encoded.ids
                texts += encoded.texts
            spoken.append(range(len(ids) if first is None else first, len(ids)))
        return cls(tuple(ids), tuple(map(tuple, words)), tuple(spoken), tuple(text in _MARKS for text in texts))

    def word_spans(self, token_spans: Sequence[Span]) -> list[Span]:
        """Frames of each token -> frames of each word; a word without tokens lies at the end of the one before."""
        spans: list[Span] = []
        for tokens in self.spoken:
            if not tokens:
                end = spans[-1][1] if spans else 0
                spans.append((end, end))
                continue
            first = token_spans[tokens.start][0]
            spoken = [token_spans[place][1] for place in tokens if not self.is_mark[place]]
            ends_in_mark = self.is_mark[tokens[-1]]
            end = token_spans[tokens[-1]][1] if not ends_in_mark else spoken[-1] if spoken else first
            spans.append((first, end))
        return spans

    def timed(self, hypothesis: Hypothesis, token_spans: Sequence[Span]) -> Hypothesis:
        """The hypothesis with its words' frames; a token of no word lies at the end of the word before, if there is one."""
        borders: list[Span] = [(0, 0)] * len(hypothesis.token_ids)
        word_spans = self.word_spans(token_spans)
        for places, (first, end) in zip(self.words, word_spans, strict=True):
            edges = spread(first, end, len(places))
            for place, span in zip(places, pairwise(edges), strict=True):
                borders[place] = span
        in_words = {place for places in self.words for place in places}
        end = word_spans[0][0] if word_spans else 0
        for place, span in enumerate(borders):
            borders[place] = span if place in in_words else (end, end)
            end = borders[place][1]
        return _with_frames(hypothesis, borders, is_timed=True)


def spread_evenly(hypothesis: Hypothesis, num_frames: int) -> Hypothesis:
    """The hypothesis over all frames, for a text that has no alignment."""
    edges = spread(0, num_frames, len(hypothesis.token_ids))
    return _with_frames(hypothesis, list(pairwise(edges)), is_timed=False)


def spread(first: int, end: int, count: int) -> list[int]:
    """Borders of `count` parts of nearly equal length, both ends included."""
    return [first + index * max(0, end - first) // max(1, count) for index in range(count + 1)]


def _with_frames(hypothesis: Hypothesis, spans: Sequence[Span], is_timed: bool) -> Hypothesis:
    frames, durations = tuple(first for first, _ in spans), tuple(end - first for first, end in spans)
    return replace(hypothesis, token_frames=frames, token_durations=durations, is_timed=is_timed)
