"""What scripts share that measure over a folder of speech: clips, recordings joined from them, and the JSON result."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from fastscribe._system.processors import cpu_name, usable_processors
from fastscribe.bench import machine
from fastscribe.segmentation.loudness import FRAME_S, floor_and_level
from fastscribe.types import AnyArray, Float32Array, Float64Array

ROOT = Path(__file__).resolve().parents[2]

RATE = 16_000
CLIPS = "clips"
PAUSE_S = (0.2, 1.5)
SEED = 20_261_123


@dataclass(frozen=True)
class Recording:
    path: Path
    reference: str


def read_split(manifest: Path, max_hours: float) -> list[tuple[AnyArray, str]]:
    """Return samples and texts; of a larger split, evenly picked utterances."""
    rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    share = max_hours * 3600 / sum(row["duration"] for row in rows)
    if share < 1:
        rows = [row for place, row in enumerate(rows) if int(place * share) < int((place + 1) * share)]
    found = []
    for row in rows:
        samples, rate = soundfile.read(manifest.parent / row["audio_filepath"], dtype="float32")
        assert rate == RATE and samples.ndim == 1, row["audio_filepath"]
        found.append((samples, row["text"]))
    return found


def make_corpus(
    clips: Sequence[tuple[Float32Array, str]], split: str, kind: str, length_s: float, folder: Path
) -> tuple[Recording, ...]:
    """Write recordings of clips and return them.

    Args:
        clips: Samples and texts.
        split: For the name of their folder.
        kind: CLIPS, "joined", or "pauses" between what is joined.
        length_s: Seconds of clips that make a recording; 0: one clip each.
        folder: Where their folder is made.
    """
    where = folder / f"{split}-{kind}-{length_s:g}"
    where.mkdir()
    recordings = []
    for place, group in enumerate(groups(clips, length_s)):
        random = np.random.default_rng((SEED, place))
        samples_S = np.concatenate([joint for clip_S, _ in group for joint in changed(clip_S, kind, random)])
        path = where / f"{place:04d}.wav"
        soundfile.write(path, np.clip(samples_S, -1, 1), RATE, subtype="PCM_16")
        recordings.append(Recording(path, " ".join(text for _, text in group)))
    return tuple(recordings)


def changed(clip_S: Float32Array, kind: str, random: np.random.Generator) -> list[Float32Array]:
    """Return the clip as it is joined to the others, with what comes after it."""
    if kind == "pauses":
        level = np.sqrt(10 ** (floor_and_level(energy(clip_S))[0] / 10))
        pause_S = random.normal(0.0, level, int(random.uniform(*PAUSE_S) * RATE)).astype(np.float32)
        return [clip_S, pause_S]
    return [clip_S]


def energy(clip_S: Float32Array) -> Float64Array:
    frame = round(FRAME_S * RATE)
    whole = clip_S[: len(clip_S) // frame * frame].reshape(-1, frame)
    return np.asarray(whole.var(axis=1, dtype=np.float64))


def groups(split: Sequence[tuple[AnyArray, str]], least_s: float) -> Iterator[list[tuple[AnyArray, str]]]:
    """Group neighbours that together last `least_s`; the last group may be shorter."""
    group: list[tuple[AnyArray, str]] = []
    for utterance in split:
        group.append(utterance)
        if sum(len(samples) for samples, _ in group) >= least_s * RATE:
            yield group
            group = []
    if group:
        yield group


def publish(benchmark: str, statistic: str, arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Print the JSON document of a benchmark, and store it where `--json` says."""
    document = {
        "benchmark": benchmark,
        "date": date.today().isoformat(),
        "hardware": f"{cpu_name()}, {usable_processors()} cores",
        "dtype": getattr(arguments, "dtype", None) or "fp32",
        "model": arguments.model or "packaged",
        "statistic": statistic,
        "commit": machine.commit(ROOT),
        "versions": machine.versions(),
        "results": rows,
    }
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document))
