"""Joined recordings for training the packaged model (scripts/default_model/joins.py)."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.default_model.joins import CLIPS, MAX_S, RATE, chosen, joined, write_joins

CLIP_LENGTHS_S = st.lists(st.floats(0.3, MAX_S / 5), min_size=1, max_size=5)


def clip(length_s: float, hertz: float) -> np.ndarray:
    """A tone between soft noise."""
    num_samples = round(length_s * RATE)
    noise_S = 0.001 * np.random.default_rng(num_samples).standard_normal(num_samples)
    begin, end = num_samples // 4, num_samples - num_samples // 4
    noise_S[begin:end] += 0.3 * np.sin(2 * np.pi * hertz * np.arange(begin, end) / RATE)
    return noise_S.astype(np.float32)


def strength(samples_S: np.ndarray, hertz: float) -> np.ndarray:
    """How strong a tone is in each tenth of a second."""
    tenths = samples_S[: len(samples_S) // 1600 * 1600].reshape(-1, 1600)
    return np.abs(tenths @ np.exp(-2j * np.pi * hertz * np.arange(1600) / RATE))


@settings(max_examples=15)
@given(CLIP_LENGTHS_S, st.integers(0, 10_000))
def test_every_clip_is_heard_in_its_order(lengths_s: list[float], seed: int) -> None:
    tones = [400.0 * (1 + place) for place in range(len(lengths_s))]
    clips = [clip(length_s, hertz) for length_s, hertz in zip(lengths_s, tones, strict=True)]
    samples_S = joined(clips, np.random.default_rng(seed))
    assert samples_S.dtype == np.float32 and np.isfinite(samples_S).all()
    assert len(samples_S) <= max(MAX_S * RATE, sum(map(len, clips)))
    places = [float(np.argmax(strength(samples_S, hertz))) for hertz in tones]
    assert places == sorted(places)
    assert all(strength(samples_S, hertz).max() > 5 for hertz in tones)


def test_rows_are_taken_equally_often_and_mostly_with_their_speaker() -> None:
    rows = [{"text": f"{place}", "speaker": f"{place % 4}", "duration": 1.0} for place in range(40)]
    groups = list(chosen(rows, 2.0, random.Random(0)))
    assert sum(len(group) for group in groups) == pytest.approx(7200, abs=5)
    assert {len(group) for group in groups} == set(CLIPS)
    counts = Counter(row["text"] for group in groups for row in group)
    assert len(counts) == 40 and max(counts.values()) < 1.5 * min(counts.values())
    same = [a["speaker"] == b["speaker"] for group in groups for a, b in itertools.pairwise(group)]
    assert 0.8 < np.mean(same) < 0.9  # another row has the same speaker now and then


def test_joins_are_written_with_their_texts_and_lengths(tmp_path: Path) -> None:
    rows = []
    for place in range(6):
        path = tmp_path / f"{place}.wav"
        soundfile.write(path, clip(1.0, 500.0 + 100 * place), RATE)
        rows.append({"audio_filepath": str(path), "text": f"Word {place}.", "duration": 1.0, "speaker": "one"})
    manifest = tmp_path / "clips.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    written = [write_joins({manifest: 2}, tmp_path / name, 0.01, seed=3).read_text("utf-8") for name in "ab"]
    assert written[0] == written[1]
    for row in map(json.loads, written[0].splitlines()):
        samples_S, rate = soundfile.read(tmp_path / "a" / row["audio_filepath"])
        assert rate == RATE and row["duration"] == len(samples_S) / RATE
        again_S, _ = soundfile.read(tmp_path / "b" / row["audio_filepath"])
        assert np.array_equal(samples_S, again_S)
        assert 1 <= row["text"].count("Word") <= max(CLIPS)
        assert row["duration"] > 0.4 * row["text"].count("Word")


def test_recordings_of_another_rate_are_refused(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "fast.wav", clip(1.0, 500.0), 44_100)
    row = {"audio_filepath": str(tmp_path / "fast.wav"), "text": "Word.", "duration": 1.0, "speaker": "one"}
    (tmp_path / "clips.jsonl").write_text(json.dumps(row), "utf-8")
    with pytest.raises(SystemExit, match=r"fast\.wav: joins are made of mono recordings of 16000 Hz"):
        write_joins({tmp_path / "clips.jsonl": 1}, tmp_path / "out", 0.001)
