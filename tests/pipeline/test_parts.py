"""On a CPU, the rows of a batch run in parts side by side: the same results, errors and settings as in one part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.pipeline import engine
from fastscribe.pipeline.engine import Engine, equal_shares
from fastscribe.pipeline.loader import collate
from fastscribe.types import Batch
from tests.conftest import AUDIO, MODELS, recognizer, torch_threads, waveform
from tests.test_golden import utterance

NAMES = sorted(path.name for path in Path(AUDIO).glob("*.flac"))[:6]


def batch() -> Batch:
    waves = [waveform(AUDIO / name) for name in NAMES]
    return collate([utterance(wave) for wave in waves], waves)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 8))
def test_equal_shares(sizes: list[int], num_parts: int) -> None:
    """Every row once; no part is empty, nor larger than a fair share by more than a row."""
    parts = equal_shares(np.array(sizes), num_parts)
    assert sorted(row for part in parts for row in part) == list(range(len(sizes)))
    assert all(parts) and len(parts) <= num_parts
    assert all(part == sorted(part) for part in parts)
    largest = max(sum(sizes[row] for row in part) for part in parts)
    assert largest <= max(1.1 * sum(sizes) / num_parts, sum(sizes) / num_parts + max(sizes))


def test_neighbours_stay_together() -> None:
    assert equal_shares(np.array([30, 29, 28, 20, 19, 18, 17, 16]), 2) == [[0, 1, 2], [3, 4, 5, 6, 7]]
    assert equal_shares(np.array([30, 26, 20, 14]), 2) == [[0, 3], [1, 2]]


@pytest.mark.parametrize("folder", ["tdt_demo", "hybrid"])
def test_equal_to_one_part(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = recognizer(MODELS / folder)
    expected = dict(zip(NAMES, model.transcribe(batch()), strict=True))
    monkeypatch.setattr(engine, "_MIN_PART_S", 2.0)
    with torch_threads(3):
        ours = Engine(model)
        outcomes = list(ours.push(batch()))
        assert torch.get_num_threads() == 3
    assert len(outcomes) == 3
    found = {
        row.num_samples: one.token_ids
        for part, rows in outcomes
        for row, one in zip(part.utterances, rows, strict=True)
    }
    assert found == {len(waveform(AUDIO / name)): one.token_ids for name, one in expected.items()}
    assert {"features", "encode", "decode"} <= set(ours.stopwatch.seconds)


def test_a_failure_stays_in_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row fails whenever it is encoded; the others have their texts."""
    model = recognizer(MODELS / "tdt_demo")
    bad = max(batch().utterances, key=lambda row: row.num_samples)
    monkeypatch.setattr(engine, "_MIN_PART_S", 2.0)
    encode = Engine._encode

    def fails(self: Engine, one: Batch) -> object:
        if bad in one.utterances:
            raise RuntimeError("broken")
        return encode(self, one)

    monkeypatch.setattr(Engine, "_encode", fails)
    with torch_threads(2):
        outcomes = list(Engine(model).push(batch()))
    failed = [row for part, result in outcomes if isinstance(result, Exception) for row in part.utterances]
    done = [row for part, result in outcomes if not isinstance(result, Exception) for row in part.utterances]
    assert failed == [bad] and len(done) == len(NAMES) - 1
