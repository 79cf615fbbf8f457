"""CTC forced alignment: batches against the definition, one text and one state at a time."""

from __future__ import annotations

import math
import random

import pytest
import torch

from fastscribe.alignment.forced_alignment import Span, align
from tests.helpers.forced_alignment import align_reference

CPU = torch.device("cpu")
STEP = 1 / 8  # log-probabilities are multiples, so that sums are exact in any order and ties are exact


def table(rng: random.Random, num_frames: int, num_labels: int) -> list[list[float]]:
    return [[-STEP * rng.randrange(40) for _ in range(num_labels)] for _ in range(num_frames)]


def text(rng: random.Random, num_tokens: int, blank_id: int) -> list[int]:
    return [rng.randrange(blank_id) for _ in range(num_tokens)]


def align_batch(tables: list, texts: list, blank_id: int, **limits: int) -> list[list[Span] | None]:
    longest = max(map(len, tables))
    # Padding has values that would change the path if it were read: random log-probabilities and NaN.
    logprobs_BTV = -torch.randint(40, (len(tables), max(1, longest), blank_id + 1)).float()
    logprobs_BTV[:, longest - 2 :] = torch.nan
    for row, logprobs_TV in enumerate(tables):
        if logprobs_TV:
            logprobs_BTV[row, : len(logprobs_TV)] = torch.tensor(logprobs_TV)
    lengths = [len(logprobs_TV) for logprobs_TV in tables]
    return align(lambda first, stop: logprobs_BTV[:, first:stop], lengths, texts, blank_id, CPU, **limits)


@pytest.mark.parametrize("seed", range(25))
def test_batch_equals_reference(seed: int) -> None:
    """Blocks of one frame, a few and all. Many batches have a row with too few frames."""
    rng = random.Random(seed)
    blank_id = rng.randrange(1, 6)
    tables = [table(rng, rng.randrange(25), blank_id + 1) for _ in range(4)]
    texts = [text(rng, rng.randrange(12), blank_id) for _ in range(4)]
    expected = [align_reference(*row, blank_id) for row in zip(tables, texts, strict=True)]
    for max_bytes in (1, 300, 1 << 20):
        assert align_batch(tables, texts, blank_id, max_bytes=max_bytes) == expected, max_bytes


def test_nan_stays_in_its_row() -> None:
    rng = random.Random(3)
    tables = [table(rng, 9, 4) for _ in range(3)]
    expected = align_reference(tables[0], [0, 1], 3)
    tables[1][4] = [math.nan] * 4
    tables[2][4] = [-math.inf] * 4
    assert align_batch(tables, [[0, 1]] * 3, 3) == [expected, None, None]


def test_long_recording_chunks() -> None:
    """Twenty minutes of 80 ms frames: chunks of log-probabilities respect the limit."""
    num_frames, num_tokens, requests = 15_000, 400, []
    texts = [[n % 7 for n in range(num_tokens)]]

    def logprobs(first: int, stop: int) -> torch.Tensor:
        requests.append(stop - first)
        frames_T = torch.arange(first, stop)
        places_T, offsets_T = frames_T // 37, frames_T % 37  # token n is spoken at the frames 37 n + 5 and 37 n + 6
        is_spoken_T = ((offsets_T == 5) | (offsets_T == 6)) & (places_T < num_tokens)
        made = torch.full((1, stop - first, 8), -4.0)
        made[0, frames_T - first, torch.where(is_spoken_T, places_T % 7, 7)] = -0.1
        return made

    (spans,) = align(logprobs, [num_frames], texts, 7, CPU, max_bytes=1 << 20)
    assert spans == [(37 * n + 5, 37 * n + 7) for n in range(num_tokens)]
    assert max(requests) < 200


def test_frames_are_computed_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine more threads take 50 times as long for an hour, because they wait for each other at every frame."""
    num_threads, seen = torch.get_num_threads(), []
    compare = torch.gt

    def counted(*values, **options):
        seen.append(torch.get_num_threads())
        return compare(*values, **options)

    monkeypatch.setattr(torch, "gt", counted)
    torch.set_num_threads(2)
    try:
        logprobs = torch.randn(1, 30, 5).log_softmax(-1)
        assert align(lambda first, stop: logprobs[:, first:stop], [30], [[0, 1, 2]], 4, torch.device("cpu"))[0]
        assert set(seen) == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(num_threads)
