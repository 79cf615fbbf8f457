"""Loose CTC alignment against brute force: every label sequence, and the best cost of what it says about the text."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from fastscribe.alignment.loose_alignment import LooseAlignment, align_loosely
from tests.helpers.forced_alignment import align_reference

STEP = 1 / 8  # scores are multiples, so that float32 sums are exact
SKIP, OTHER = 1.5, 0.75
BLANK = 3


def table(rng: random.Random, num_frames: int) -> list[list[float]]:
    return [[-STEP * rng.randrange(40) for _ in range(BLANK + 1)] for _ in range(num_frames)]


def best_score(logprobs_TV: list[list[float]], words: list[list[int]]) -> float:
    """Try every choice of spoken words, and every sequence of labels that says them with other speech between them."""
    best = -math.inf
    for is_spoken in itertools.product((True, False), repeat=len(words)):
        spoken = [word for word, kept in zip(words, is_spoken, strict=True) if kept]
        labels: list[int | str] = ["other"]
        for word in spoken:
            for token in word:
                labels += [token, BLANK]
            labels[-1] = "other"
        best = max(best, _best_sequence(logprobs_TV, labels) - SKIP * (len(words) - len(spoken)))
    return best


def _best_sequence(logprobs_TV: list[list[float]], labels: list[int | str]) -> float:
    """Return the best score of all paths through a lattice of these states, one by one."""
    best = -math.inf
    for path in itertools.product(range(len(labels)), repeat=len(logprobs_TV)):
        is_path = path[0] < 2 and path[-1] >= len(labels) - 2
        for left, right in itertools.pairwise(path):
            skips_blank = right - left == 2 and right % 2 == 1 and labels[right] != labels[left]
            is_path = is_path and (right - left in (0, 1) or skips_blank)
        if is_path:
            total = 0.0
            for row, state in zip(logprobs_TV, path, strict=True):
                label = labels[state]
                total += max(row[BLANK], max(row) - OTHER) if isinstance(label, str) else row[label]
            best = max(best, total)
    return best


def score_of(found: LooseAlignment, logprobs_TV: list[list[float]], words: list[list[int]]) -> float:
    """Return the score of a path by what it says: labels, skipped words and frames of other speech."""
    ids = [token for word in words for token in word]
    borders = [0, *(2 * end for end in itertools.accumulate(map(len, words)))]
    total = 0.0
    for row, state in zip(logprobs_TV, found.path_T.tolist(), strict=True):
        value = row[ids[state // 2]] if state % 2 else row[BLANK]
        total += max(value, max(row) - OTHER) if state in borders else value
    return total - SKIP * sum(found.is_skipped_W)


@pytest.mark.parametrize("seed", range(25))
def test_best_path(seed: int) -> None:
    rng = random.Random(seed)
    words = [[rng.randrange(BLANK) for _ in range(rng.randrange(1, 3))] for _ in range(rng.randrange(1, 4))][:3]
    logprobs_TV = table(rng, rng.randrange(1, 6))
    ids, spans, place = [token for word in words for token in word], [], 0
    for word in words:
        spans.append(range(place, place + len(word)))
        place += len(word)
    found = align_loosely(np.array(logprobs_TV, np.float32), ids, spans, BLANK, SKIP, OTHER)
    expected = best_score(logprobs_TV, words)
    assert found is not None and math.isfinite(expected)  # all words may be skipped
    assert score_of(found, logprobs_TV, words) == expected
    visited = set(found.path_T.tolist())
    for word, is_skipped in zip(spans, found.is_skipped_W, strict=True):
        states = {2 * token + 1 for token in word}
        assert not states & visited if is_skipped else states <= visited


@pytest.mark.parametrize("seed", range(12))
def test_a_text_as_spoken_has_the_exact_path(seed: int) -> None:
    """With costs that nothing outweighs, the lattice is that of exact alignment, ties included."""
    rng = random.Random(seed)
    words = [[rng.randrange(BLANK) for _ in range(2)] for _ in range(2)]
    logprobs_TV = table(rng, 9)
    ids = [token for word in words for token in word]
    found = align_loosely(np.array(logprobs_TV, np.float32), ids, [range(2), range(2, 4)], BLANK, 1e4, 1e4)
    assert found is not None and not any(found.is_skipped_W) and not found.other
    spans = [
        (path.index(2 * token + 1), len(path) - path[::-1].index(2 * token + 1))
        for path in [found.path_T.tolist()]
        for token in range(4)
    ]
    assert spans == align_reference(logprobs_TV, ids, BLANK)


def test_what_was_not_said_and_what_was() -> None:
    """The text is 0 1 2; 0 and 2 were spoken, with another 0 after the 2 that the text does not have."""
    spoken = [0, BLANK, 2, BLANK, 0, BLANK]
    logprobs_TV = np.full((len(spoken), BLANK + 1), -9.0, np.float32)
    logprobs_TV[range(len(spoken)), spoken] = -0.1
    found = align_loosely(logprobs_TV, [0, 1, 2], [range(1), range(1, 2), range(2, 3)], BLANK)
    assert found is not None and found.is_skipped_W == (False, True, False)
    assert found.path_T.tolist() == [1, 2, 5, 6, 6, 6] and found.other == ((4, 5),)


def test_nothing_to_align() -> None:
    assert align_loosely(np.zeros((0, 4), np.float32), [0], [range(1)], BLANK) is None
    assert align_loosely(np.full((3, 4), np.nan, np.float32), [0], [range(1)], BLANK) is None
