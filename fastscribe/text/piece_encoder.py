"""Words to tokens for vocabularies that are not one SentencePiece model: tokenizer.json and NeMo's aggregates. Pure.

A tokenizer.json of the kind BPE lists its merges in order: the earliest merge that applies is next, the leftmost first
(Sennrich et al. 2016). One of the kind Unigram has a score for each piece, and the best sum wins. An aggregate of SentencePiece
vocabularies has neither for a text whose language is unknown: the fewest pieces win.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from fastscribe.text.tokenizer import WORD_MARK, Tokenizer

_SPACES = re.compile(r"\s+")


class MergeEncoder:
    """BPE by a list of merges."""

    def __init__(self, ids: Mapping[str, int], merges: Sequence[tuple[str, str]], unknown_id: int) -> None:
        self._ids, self._unknown_id = ids, unknown_id
        self._ranks = {pair: rank for rank, pair in reversed(list(enumerate(merges)))}

    def __call__(self, word: str) -> tuple[int, ...]:
        parts = list(_marked(word))
        while True:
            ranks = [self._ranks.get(pair, math.inf) for pair in pairwise(parts)]
            best = min(ranks, default=math.inf)
            if best == math.inf:
                return tuple(self._ids.get(part, self._unknown_id) for part in parts)
            first = ranks.index(best)
            parts[first : first + 2] = ["".join(parts[first : first + 2])]


class ScoreEncoder:
    """The pieces with the best sum of scores; a character without a piece is unknown."""

    def __init__(self, ids: Mapping[str, int], scores: Mapping[str, float], unknown_id: int) -> None:
        self._ids, self._scores, self._unknown_id = ids, scores, unknown_id
        self._longest = max(map(len, scores), default=1)
        self._unknown_score = min(scores.values(), default=0.0) - 10.0  # as SentencePiece

    def __call__(self, word: str) -> tuple[int, ...]:
        text = _marked(word)
        best: list[tuple[float, int]] = [
            (0.0, 0)
        ]  # for each length of the text: the sum, and where its last piece begins
        for end in range(1, len(text) + 1):
            found = [(best[end - 1][0] + self._unknown_score, end - 1)]
            for begin in range(max(0, end - self._longest), end):
                if (score := self._scores.get(text[begin:end])) is not None:
                    found.append((best[begin][0] + score, begin))
            best.append(max(found))
        ids: list[int] = []
        end = len(text)
        while end:
            begin = best[end][1]
            ids.append(self._ids.get(text[begin:end], self._unknown_id))
            end = begin
        return tuple(reversed(ids))


def piece_encoder(tokenizer: Tokenizer) -> MergeEncoder | ScoreEncoder:
    """Return the encoder of a vocabulary with word marks. Raises ValueError for a tokenizer.json of another kind."""
    unknown_id = min(tokenizer.unknown_ids | tokenizer.silent_ids, default=len(tokenizer.pieces))
    usable = [i for i in range(len(tokenizer.pieces)) if i not in tokenizer.unknown_ids | tokenizer.silent_ids]
    ids = {tokenizer.pieces[i]: i for i in reversed(usable)}
    if "tokenizer.json" not in tokenizer.files:
        return ScoreEncoder(ids, dict.fromkeys(ids, -1.0), unknown_id)
    model = json.loads(tokenizer.files["tokenizer.json"])["model"]
    if model.get("type") == "BPE":
        merges = [tuple(one.split(" ")) if isinstance(one, str) else tuple(one) for one in model["merges"]]
        return MergeEncoder(ids, [(pair[0], pair[1]) for pair in merges if len(pair) == 2], unknown_id)
    if model.get("type") == "Unigram":
        return ScoreEncoder(ids, {piece: score for piece, score in model["vocab"] if piece in ids}, unknown_id)
    raise ValueError(f"its tokenizer.json is of the kind {model.get('type')!r}, not BPE or Unigram")


def _marked(word: str) -> str:
    return WORD_MARK + _SPACES.sub(WORD_MARK, word)
