"""Word times from forced alignment: the aligner's tokens of a hypothesis, and from their frames to frames of words. Pure.

The words are those of the transcript; the aligner encodes each with its own tokenizer. The rules are those of NeMo 3.0
(`get_forced_aligned_timestamps_with_external_model`): a word lasts from the first frame of its first token to the last frame
of its last one, but a final punctuation mark has no duration. The hypothesis's own tokens share the word's frames evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fastscribe.decode.prompt import spread
from fastscribe.text.encoder import WordEncoder
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.text.transcript import group_words
from fastscribe.types import Hypothesis

_MARKS = frozenset(",.!?")  # zero duration at the end of a word
Span = tuple[int, int]  # first frame, and the frame after the last


@dataclass(frozen=True)
class AlignmentText:
    """The text of one hypothesis, as tokens of the aligner."""

    token_ids: tuple[int, ...]
    words: tuple[tuple[int, ...], ...]  # for each word the indices of its tokens in the hypothesis
    word_tokens: tuple[range, ...]  # for each word the indices of its tokens in `token_ids`
    is_mark: tuple[bool, ...]  # for each of `token_ids`

    @classmethod
    def of(cls, hypothesis: Hypothesis, tokenizer: Tokenizer, encoder: WordEncoder) -> AlignmentText:
        ids: list[int] = []
        texts: list[str] = []
        words = group_words(hypothesis.token_ids, tokenizer)
        word_tokens = []
        for indices in words:
            first = None
            for part in tokenizer.text([hypothesis.token_ids[token_index] for token_index in indices]).split():
                if ids:
                    ids += encoder.space_ids
                    texts += " " * len(encoder.space_ids)
                first = len(ids) if first is None else first
                encoded = encoder.at(part, is_first=not ids)
                ids += encoded.ids
                texts += encoded.texts
            word_tokens.append(range(len(ids) if first is None else first, len(ids)))
        return cls(tuple(ids), tuple(map(tuple, words)), tuple(word_tokens), tuple(text in _MARKS for text in texts))

    def word_spans(self, token_spans: Sequence[Span]) -> list[Span]:
        """Convert frames of tokens to frames of words. A word without tokens is empty, at the end of the previous one."""
        spans: list[Span] = []
        for tokens in self.word_tokens:
            if not tokens:
                end = spans[-1][1] if spans else 0
                spans.append((end, end))
                continue
            first = token_spans[tokens.start][0]
            ends = [token_spans[token_index][1] for token_index in tokens if not self.is_mark[token_index]]
            ends_in_mark = self.is_mark[tokens[-1]]
            end = token_spans[tokens[-1]][1] if not ends_in_mark else ends[-1] if ends else first
            spans.append((first, end))
        return spans

    def with_times(self, hypothesis: Hypothesis, token_spans: Sequence[Span]) -> Hypothesis:
        """Set the frames of a hypothesis. A token outside words is empty, at the end of the previous word."""
        borders: list[Span] = [(0, 0)] * len(hypothesis.token_ids)
        word_spans = self.word_spans(token_spans)
        for indices, (first, end) in zip(self.words, word_spans, strict=True):
            edges = spread(first, end, len(indices))
            for token_index, span in zip(indices, pairwise(edges), strict=True):
                borders[token_index] = span
        in_words = {token_index for indices in self.words for token_index in indices}
        end = word_spans[0][0] if word_spans else 0
        for token_index, span in enumerate(borders):
            borders[token_index] = span if token_index in in_words else (end, end)
            end = borders[token_index][1]
        return _with_frames(hypothesis, borders, is_timed=True)


def spread_evenly(hypothesis: Hypothesis, num_frames: int) -> Hypothesis:
    """Spread the tokens of a hypothesis without an alignment evenly over all frames."""
    edges = spread(0, num_frames, len(hypothesis.token_ids))
    return _with_frames(hypothesis, list(pairwise(edges)), is_timed=False)


def _with_frames(hypothesis: Hypothesis, spans: Sequence[Span], is_timed: bool) -> Hypothesis:
    frames, durations = tuple(first for first, _ in spans), tuple(end - first for first, end in spans)
    return replace(hypothesis, token_frames=frames, token_durations=durations, is_timed=is_timed)
