"""Join recordings of a manifest end to end, for scripts/default_model/train_default_model.py.

A model that learns from single sentences loses words where an utterance holds several: it expects one, and its features are
normalised per utterance, so pauses and changes of level shift them. Joins show it such utterances: up to five clips, mostly of
one speaker, of up to MAX_S seconds; at once after each other or with pauses of room noise; some without their quiet edges; some
with clips at other levels; some that begin and end within silence. Single clips, changed in the same ways, are among them.
In some, music or noise (sounds.py) fills a pause or lies behind the speech, and some have passed a channel (transmission.py).
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from fastscribe.segmentation.loudness import FRAME_S, decibels, floor_and_level
from fastscribe.types import Float32Array, Float64Array
from scripts.default_model.transmission import disturbed

RATE = 16_000
MAX_S = 20.0
CLIPS = {1: 0.25, 2: 0.25, 3: 0.2, 4: 0.15, 5: 0.15}  # in a join, with their shares
SAME_SPEAKER_CHANCE = 0.8
PAUSE_CHANCE, MAX_PAUSE_S = 0.55, 1.5  # between clips
EDGE_CHANCE, MAX_BEFORE_S, MAX_AFTER_S = 0.4, 0.6, 1.2  # silence around a join
TRIM_CHANCE, TRIM_DB, MAX_EDGE_S = 0.35, 20.0, 0.3  # the loudness of an edge below the clip's level; what stays of it
LEVEL_CHANCE, LEVEL_DB = 0.3, (-12.0, 3.0)
DIGITAL_SILENCE_CHANCE = 0.15
SOUND_CHANCE, SOUND_DB = 0.2, (-25.0, 0.0)  # a pause that a sound fills; its level, of the speech's
BEHIND_CHANCE, BEHIND_DB = 0.1, (-30.0, -8.0)  # a sound behind the speech


def write_joins(
    manifests: Mapping[Path, int], out: Path, hours: float, sounds: Sequence[Path] = (), seed: int = 0
) -> Path:
    """Write joined recordings (FLAC, 16 kHz) and their manifest, OUT/manifest.jsonl.

    Args:
        manifests: how often the rows of each manifest are taken beside those of the others. A row has audio_filepath
            (absolute), duration, text and speaker; recordings are mono, of 16 kHz.
        out: folder for the recordings.
        hours: of audio to write, without pauses.
        sounds: recordings without speech for pauses and background, mono, of 16 kHz.
        seed: the same seed gives the same joins.

    Returns:
        The path of the manifest.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = [
        json.loads(line)
        for manifest, times in manifests.items()
        for line in manifest.read_text(encoding="utf-8").splitlines() * times
    ]
    groups = list(enumerate(chosen(rows, hours, random.Random(seed))))
    with ThreadPoolExecutor() as pool:
        made = pool.map(lambda group: written(group[1], out / f"{group[0]:06d}.flac", (seed, group[0]), sounds), groups)
        lines = [json.dumps(row) + "\n" for row in made]
    # Last, so that a manifest means that no recording is missing:
    (out / "manifest.jsonl").write_text("".join(lines), encoding="utf-8")
    return (out / "manifest.jsonl").resolve()


def chosen(rows: Sequence[dict[str, Any]], hours: float, rng: random.Random) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of one join after another; every row comes about as often as any other."""
    left_s, pool, others = 3600 * hours, _endless(rows, rng), defaultdict(list)
    for row in rows:
        others[row["speaker"]].append(row)
    while left_s > 0:
        [count] = rng.choices(list(CLIPS), list(CLIPS.values()))
        group = [next(pool)]
        for _ in range(count - 1):
            is_same = rng.random() < SAME_SPEAKER_CHANCE
            group.append(rng.choice(others[group[-1]["speaker"]]) if is_same else next(pool))
        while len(group) > 1 and sum(row["duration"] for row in group) > MAX_S - MAX_PAUSE_S:
            group.pop()
        left_s -= sum(row["duration"] for row in group)
        yield group


def _endless(rows: Sequence[dict[str, Any]], rng: random.Random) -> Iterator[dict[str, Any]]:
    while True:
        yield from rng.sample(rows, len(rows))


def written(
    group: Sequence[dict[str, Any]], path: Path, seed: tuple[int, int], sounds: Sequence[Path]
) -> dict[str, Any]:
    """Write a join and return its row."""
    rng = np.random.default_rng(seed)
    samples_S = joined([_read(row["audio_filepath"]) for row in group], rng, sounds)
    if sounds and rng.random() < BEHIND_CHANCE:
        samples_S = samples_S + _sound(sounds, len(samples_S), _level(samples_S) + rng.uniform(*BEHIND_DB), rng)
    samples_S = disturbed(samples_S, rng)
    soundfile.write(path, np.clip(samples_S, -1, 1), RATE, subtype="PCM_16")
    text = " ".join(row["text"] for row in group)
    return {"audio_filepath": path.name, "duration": len(samples_S) / RATE, "text": text}


def _read(path: str) -> Float32Array:
    samples_S, rate = soundfile.read(path, dtype="float32")
    if rate != RATE or samples_S.ndim != 1:
        raise SystemExit(f"{path}: joins are made of mono recordings of {RATE} Hz")
    return np.asarray(samples_S)


def joined(clips: Sequence[Float32Array], rng: np.random.Generator, sounds: Sequence[Path] = ()) -> Float32Array:
    """Return clips as one utterance of up to MAX_S, if the clips leave room for pauses; mono float32 samples at 16 kHz."""
    changed = [_changed(clip_S, rng) for clip_S in clips]
    left = int(MAX_S * RATE) - sum(map(len, changed))
    has_edges = rng.random() < EDGE_CHANCE
    parts = []
    for place, clip_S in enumerate(changed):
        most_s = (MAX_BEFORE_S if has_edges else 0.0) if place == 0 else MAX_PAUSE_S * (rng.random() < PAUSE_CHANCE)
        pause_S = _pause(clip_S, min(int(rng.uniform(0, most_s) * RATE), max(left, 0)), rng, sounds)
        left -= len(pause_S)
        parts += [pause_S, clip_S]
    after = int(rng.uniform(0, MAX_AFTER_S) * RATE) if has_edges else 0
    return np.concatenate([*parts, _pause(changed[-1], min(after, max(left, 0)), rng, sounds)])


def _changed(clip_S: Float32Array, rng: np.random.Generator) -> Float32Array:
    if rng.random() < TRIM_CHANCE:
        clip_S = _without_edges(clip_S, rng.uniform(0, MAX_EDGE_S))
    if rng.random() < LEVEL_CHANCE:
        clip_S = clip_S * np.float32(10 ** (rng.uniform(*LEVEL_DB) / 20))
    return clip_S


def _without_edges(clip_S: Float32Array, edge_s: float) -> Float32Array:
    loudness = decibels(_energy(clip_S))
    loud = np.flatnonzero(loudness > np.percentile(loudness, 95.0) - TRIM_DB)
    frame, edge = round(FRAME_S * RATE), round(edge_s * RATE)
    return clip_S[max(0, int(loud[0]) * frame - edge) : (int(loud[-1]) + 1) * frame + edge]


def _level(samples_S: Float32Array) -> float:
    return float(20 * np.log10(max(float(samples_S.std()), 1e-6)))


def _sound(sounds: Sequence[Path], num_samples: int, level_db: float, rng: np.random.Generator) -> Float32Array:
    sound_S = _read(str(sounds[int(rng.integers(len(sounds)))]))
    sound_S = np.resize(sound_S, num_samples)  # repeated if it is too short
    return np.asarray(sound_S * (10 ** (level_db / 20) / max(float(sound_S.std()), 1e-4)), np.float32)


def _pause(clip_S: Float32Array, num_samples: int, rng: np.random.Generator, sounds: Sequence[Path]) -> Float32Array:
    """Return noise at the level of the clip's quietest part, white to pink, or digital silence, or one of the sounds."""
    if num_samples and sounds and rng.random() < SOUND_CHANCE:
        return _sound(sounds, num_samples, _level(clip_S) + rng.uniform(*SOUND_DB), rng)
    if num_samples == 0 or rng.random() < DIGITAL_SILENCE_CHANCE:
        return np.zeros(num_samples, np.float32)
    noise_S = rng.standard_normal(num_samples)
    hertz = np.maximum(np.fft.rfftfreq(num_samples, 1 / RATE), 50.0)
    noise_S = np.fft.irfft(np.fft.rfft(noise_S) / hertz ** (rng.choice((0.0, 0.0, 0.25, 0.5))), num_samples)
    level = 10 ** (floor_and_level(_energy(clip_S))[0] / 20)
    return np.asarray(noise_S * level / max(noise_S.std(), 1e-12), np.float32)


def _energy(clip_S: Float32Array) -> Float64Array:
    frame = round(FRAME_S * RATE)
    return np.asarray(clip_S[: len(clip_S) // frame * frame].reshape(-1, frame).var(axis=1, dtype=np.float64))
