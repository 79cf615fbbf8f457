"""Words to tokens for vocabularies that are not one SentencePiece model: tokenizer.json and NeMo's aggregates. Pure.

A tokenizer.json of the kind BPE lists its merges in order: the earliest merge that applies is next, the leftmost first
(Sennrich et al. 2016). A byte-level one (GPT-2) merges the bytes of each word, number or row of other characters. One of the
kind Unigram has a score for each piece, and the best sum wins. An aggregate of SentencePiece vocabularies has neither for a
text whose language is unknown: the fewest pieces win.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from fastscribe.text.tokenizer import WORD_MARK, Tokenizer, byte_characters, is_byte_level

_SPACES = re.compile(r"\s+")
# What a byte-level BPE merges by itself, in a text and in its kinds of characters (letter, number, other, space).
_CONTRACTION = re.compile("'(?:s|t|re|ve|m|ll|d)")
_SAME_KIND = re.compile(" ?L+| ?N+| ?O+| +")


class MergeEncoder:
    """BPE by a list of merges."""

    def __init__(self, ids: Mapping[str, int], merges: Sequence[tuple[str, str]], unknown_id: int) -> None:
        self._ids, self._unknown_id = ids, unknown_id
        self._ranks = {pair: rank for rank, pair in reversed(list(enumerate(merges)))}

    def __call__(self, word: str) -> tuple[int, ...]:
        return self.merged(_marked(word))

    def merged(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text whose characters are pieces or parts of them."""
        parts = list(text)
        while True:
            ranks = [self._ranks.get(pair, math.inf) for pair in pairwise(parts)]
            best = min(ranks, default=math.inf)
            if best == math.inf:
                return tuple(self._ids.get(part, self._unknown_id) for part in parts)
            first = ranks.index(best)
            parts[first : first + 2] = ["".join(parts[first : first + 2])]


class ByteLevelEncoder:
    """BPE of the bytes of a text, each written as a printable character."""

    def __init__(self, ids: Mapping[str, int], merges: Sequence[tuple[str, str]], unknown_id: int) -> None:
        self._merges = MergeEncoder(ids, merges, unknown_id)

    def __call__(self, word: str) -> tuple[int, ...]:
        return self.first(" " + word)

    def first(self, word: str) -> tuple[int, ...]:
        """Return the tokens of a text's first word, before which there is no space."""
        return tuple(id for part in _byte_level_parts(word) for id in self._merges.merged(byte_characters(part)))


def _byte_level_parts(text: str) -> Iterator[str]:
    kinds = "".join(
        " " if character.isspace() else _KINDS.get(unicodedata.category(character)[0], "O") for character in text
    )
    position = 0
    while position < len(text):
        found = _CONTRACTION.match(text, position) or _SAME_KIND.match(kinds, position)
        assert found is not None
        yield text[position : found.end()]
        position = found.end()


_KINDS = {"L": "L", "N": "N"}


class ScoreEncoder:
    """The pieces with the best sum of scores; a character without a piece is unknown."""

    def __init__(self, ids: Mapping[str, int], scores: Mapping[str, float], unknown_id: int) -> None:
        self._ids, self._scores, self._unknown_id = ids, scores, unknown_id
        self._longest = max(map(len, scores), default=1)
        self._unknown_score = min(scores.values(), default=0.0) - 10.0  # as SentencePiece

    def __call__(self, word: str) -> tuple[int, ...]:
        text = _marked(word)
        # For each length of the text: the sum, and where its last piece begins.
        best: list[tuple[float, int]] = [(0.0, 0)]
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


def piece_encoder(tokenizer: Tokenizer) -> MergeEncoder | ByteLevelEncoder | ScoreEncoder:
    """Return the encoder of a vocabulary with word marks. Raises ValueError for a tokenizer.json of another kind."""
    unknown_id = min(tokenizer.unknown_ids | tokenizer.silent_ids, default=len(tokenizer.pieces))
    usable = [i for i in range(len(tokenizer.pieces)) if i not in tokenizer.unknown_ids | tokenizer.silent_ids]
    ids = {tokenizer.pieces[i]: i for i in reversed(usable)}
    if "tokenizer.json" not in tokenizer.files:
        return ScoreEncoder(ids, dict.fromkeys(ids, -1.0), unknown_id)
    data = json.loads(tokenizer.files["tokenizer.json"])
    model = data["model"]
    if model.get("type") == "BPE":
        if not isinstance(model.get("merges"), list):
            raise ValueError("its tokenizer.json is of the kind BPE, and lists no merges")
        merges = [tuple(one.split(" ")) if isinstance(one, str) else tuple(one) for one in model["merges"]]
        pairs = [(pair[0], pair[1]) for pair in merges if len(pair) == 2]
        if is_byte_level(data):
            stored = {piece: i for piece, i in model["vocab"].items() if i in usable}
            return ByteLevelEncoder(stored, pairs, unknown_id)
        return MergeEncoder(ids, pairs, unknown_id)
    if model.get("type") == "Unigram":
        return ScoreEncoder(ids, {piece: score for piece, score in model["vocab"] if piece in ids}, unknown_id)
    raise ValueError(f"its tokenizer.json is of the kind {model.get('type')!r}, not BPE or Unigram")


def _marked(word: str) -> str:
    return WORD_MARK + _SPACES.sub(WORD_MARK, word)
