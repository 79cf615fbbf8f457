"""What it costs to finish long recordings in turn: padding and batches, computed without a model.

    python -m scripts.benchmarks.in_turn SPEECH --json docs/bench/long/in-turn.json

SPEECH holds NeMo manifests. Their clips, with pauses between them, make recordings, which are cut as a run cuts them: at 40
seconds, and at every clear pause as for a model that learnt on short utterances. Recordings of each kind below are drawn from
these utterances, and planned in parts of so many batches, 64 being a whole window (fastscribe/pipeline/run.py). `time` is the
padded frames, with 2 % of a full batch for each batch, against those of the whole windows: budgets of a GPU are chosen so that
a batch costs that much beside its frames. `first` and `median` say after which share of this time the first and the median
recording is done.

`--model` transcribes recordings of 20 minutes on this machine's CPU as well, twice with each number of batches, and stores the
smaller of the processor times of both, which other programs disturb less than wall times.

A table goes to stderr; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import soundfile

from fastscribe import Transcriber
from fastscribe._system.processors import cpu_name, usable_processors
from fastscribe.audio.probe import probe
from fastscribe.bench import machine
from fastscribe.pipeline import run
from fastscribe.pipeline.batching import Budget, in_turn, plan
from fastscribe.segmentation.loudness import FRAME_S, floor_and_level
from fastscribe.segmentation.segment import split
from fastscribe.types import Float32Array, Source, Transcript

ROOT = Path(__file__).resolve().parents[2]
RATE = 16_000
PAUSE_S, PAUSE_SEED, JOINED_S = (0.2, 1.5), 20_261_123, 900.0
WINDOW = 64  # batches
TIMED = (8, 16, WINDOW)
PARTS = (1, 2, 4, 8, 16, 32, WINDOW)
BATCH_OVERHEAD = 0.02  # of a full batch
MODELS = {  # seconds of a frame, limit of an utterance, cut at every clear pause
    "packaged": (0.04, 19.6, True),
    "40 s": (0.08, 40.0, False),
}
BUDGETS = {
    "cpu, packaged": ("packaged", 3200),
    "cpu": ("40 s", 1600),
    "gpu": ("40 s", 32_768),
    "small gpu": ("40 s", 8192),
}
KINDS = {  # number of recordings, for each batch of a GPU's or 20 of a CPU's; shortest and longest in seconds
    "episodes": ((900.0, 2700.0),),
    "meetings": ((180.0, 600.0),),
    "calls": ((45.0, 150.0),),
    "episodes among clips": ((900.0, 2700.0), (1.0, 20.0)),
}
EPISODE_S = 1200
SEED = 20_261_128


@dataclass(frozen=True)
class Piece:
    """An utterance of a recording."""

    recording: int
    frames: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speech", type=Path)
    parser.add_argument("--splits", nargs="+", default=["train_native", "train_accented"])
    parser.add_argument("--max-hours", type=float, default=1.0, help="of each split")
    parser.add_argument("--model", dest="models", action="append", default=[])
    parser.add_argument("--episodes", type=int, default=4, help="recordings of 20 minutes for --model")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = recordings_of(arguments, Path(folder))
        lengths = dict(utterances(paths))
        timed = [
            row for model in arguments.models for row in transcribed(model, episodes(paths, arguments.episodes, folder))
        ]
    rows = []
    for (budget, (model, frames)), kind in itertools.product(BUDGETS.items(), KINDS):
        recordings = drawn(kind, lengths[model], frames * MODELS[model][0])
        found = [measured(recordings, frames, MODELS[model][0], parts) for parts in PARTS]
        for parts, row in zip(PARTS, found, strict=True):
            row = {"budget": budget, "recordings": kind, "batches_in_turn": parts, **row}
            row["time"] = round(row["time"] / found[-1]["time"], 4)
            rows.append(row)
            print(" ".join(f"{value!s:>20}" for value in row.values()), file=sys.stderr)
    document = {
        "benchmark": "in turn",
        "date": date.today().isoformat(),
        "hardware": f"{cpu_name()}, {usable_processors()} cores",
        "dtype": "fp32",
        "model": ", ".join(arguments.models) or "none",
        "statistic": "padding, batches and when recordings are done, by the batches that are sorted together",
        "commit": machine.commit(ROOT),
        "versions": machine.versions(),
        "results": rows + timed,
    }
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document))


def recordings_of(arguments: argparse.Namespace, folder: Path) -> list[Path]:
    """Write clips with pauses between them as recordings of a quarter of an hour."""
    paths = []
    for name in arguments.splits:
        clips = clips_of(arguments.speech / f"{name}.jsonl", arguments.max_hours)
        (folder / name).mkdir()
        for place, group in enumerate(groups(clips, JOINED_S)):
            random = np.random.default_rng((PAUSE_SEED, place))
            samples_S = np.concatenate([part for clip_S in group for part in (clip_S, pause(clip_S, random))])
            paths.append(folder / name / f"{place:04d}.wav")
            soundfile.write(paths[-1], np.clip(samples_S, -1, 1), RATE, subtype="PCM_16")
    return paths


def clips_of(manifest: Path, max_hours: float) -> list[Float32Array]:
    """Return a manifest's recordings; of a larger one, evenly picked ones."""
    rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    share = max_hours * 3600 / sum(row["duration"] for row in rows)
    if share < 1:
        rows = [row for place, row in enumerate(rows) if int(place * share) < int((place + 1) * share)]
    found = []
    for row in rows:
        samples_S, rate = soundfile.read(manifest.parent / row["audio_filepath"], dtype="float32")
        assert rate == RATE and samples_S.ndim == 1, row["audio_filepath"]
        found.append(samples_S)
    return found


def groups(clips: Sequence[Float32Array], least_s: float) -> Iterator[list[Float32Array]]:
    """Group neighbours that together last `least_s`; the last group may be shorter."""
    group: list[Float32Array] = []
    for clip_S in clips:
        group.append(clip_S)
        if sum(map(len, group)) >= least_s * RATE:
            yield group
            group = []
    if group:
        yield group


def pause(clip_S: Float32Array, random: np.random.Generator) -> Float32Array:
    """Return noise at the level of the clip's quietest part."""
    frame = round(FRAME_S * RATE)
    energy = clip_S[: len(clip_S) // frame * frame].reshape(-1, frame).var(axis=1, dtype=np.float64)
    level = np.sqrt(10 ** (floor_and_level(energy)[0] / 10))
    return random.normal(0.0, level, int(random.uniform(*PAUSE_S) * RATE)).astype(np.float32)


def utterances(paths: Sequence[Path]) -> Iterator[tuple[str, list[float]]]:
    """Yield the lengths in seconds of the utterances into which each model's recordings are cut."""
    sources = [Source(str(path), str(path), path.stem) for path in paths]
    for model, (frame_s, limit_s, by_phrase) in MODELS.items():
        cut = [split(probe(source), limit_s, frame_s, "energy", by_phrase) for source in sources]
        yield model, [one.duration_s for utterances in cut for one in utterances]


def episodes(paths: Sequence[Path], number: int, folder: str) -> list[Path]:
    """Write recordings of 20 minutes from parts of all of these."""
    samples_S = np.concatenate([soundfile.read(path, dtype="int16")[0] for path in paths])
    found = []
    for place in range(number):
        found.append(Path(folder) / f"episode{place}.wav")
        soundfile.write(found[-1], np.roll(samples_S, -place * EPISODE_S * RATE)[: EPISODE_S * RATE], RATE)
    return found


def transcribed(model: str, paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yield what it costs to transcribe the recordings, by the batches that are sorted together."""
    transcriber = Transcriber.load(model, "cpu", "fp32")
    cpu_s: dict[int, list[float]] = {}
    first: dict[int, float] = {}
    texts = set()
    for parts in (*TIMED, *reversed(TIMED)):
        run._BATCHES_IN_TURN = parts
        start_s, start = process_time(), perf_counter()
        results, ends = [], []
        for result in transcriber.transcribe(paths, ordered=False):
            assert isinstance(result, Transcript), result
            results.append((result.index, result.text))
            ends.append(perf_counter() - start)
        cpu_s.setdefault(parts, []).append(process_time() - start_s)
        first[parts] = ends[0] / ends[-1]
        texts.add(tuple(sorted(results)))
        print(model, parts, cpu_s[parts], first[parts], file=sys.stderr)
    assert len(texts) == 1, "the texts differ"
    for parts in TIMED:
        cost = min(cpu_s[parts])
        yield {
            "model": Path(model).parent.name if "/" in model else model,
            "episodes": len(paths),
            "batches_in_turn": parts,
            "cpu_s": round(cost, 1),
            "passes": len(cpu_s[parts]),
            "time": round(cost / min(cpu_s[WINDOW]), 4),
            "first": round(first[parts], 4),
        }


def drawn(kind: str, lengths: Sequence[float], batch_s: float) -> list[list[float]]:
    """Return recordings of two windows, as the lengths of their utterances; half of a mixture's audio is clips."""
    random = np.random.default_rng(SEED)
    found: list[list[float]] = []
    for shortest_s, longest_s in KINDS[kind]:
        left_s = 2 * WINDOW * batch_s / len(KINDS[kind])
        while left_s > 0:
            wanted_s = random.uniform(shortest_s, longest_s)
            recording = [wanted_s] if longest_s <= 20 else []
            while sum(recording) < wanted_s:
                recording.append(float(random.choice(lengths)))
            found.append(recording)
            left_s -= sum(recording)
    return [found[place] for place in random.permutation(len(found))]


def measured(recordings: Sequence[Sequence[float]], budget: int, frame_s: float, parts: int) -> dict[str, Any]:
    """Plan recordings as a run does, and return what it costs and when they are done."""
    items = [[Piece(place, int(s / frame_s)) for s in recording] for place, recording in enumerate(recordings)]
    frames_of = sum_of_frames
    time, padded, real, batches = 0.0, 0, 0, 0
    left = {place: len(item) for place, item in enumerate(items)}
    done = []
    for window in in_turn(items, frames_of, WINDOW * budget):
        wanted = (lambda item: frames_of(item) if len(item) > 1 else 0.0) if parts < WINDOW else frames_of
        for part in in_turn(window, wanted, parts * budget):
            pieces = [piece for item in part for piece in item]
            for batch in plan(pieces, lambda piece: piece.frames, Budget(budget), None):
                cost = len(batch) * batch[0].frames
                time += cost + BATCH_OVERHEAD * budget
                padded, real, batches = padded + cost, real + sum(piece.frames for piece in batch), batches + 1
                for piece in batch:
                    left[piece.recording] -= 1
                    if not left[piece.recording] and len(items[piece.recording]) > 1:
                        done.append(time)
    return {
        "long_recordings": len(done),
        "batches": batches,
        "padding": round(1 - real / padded, 4),
        "time": time,
        "first": round(done[0] / time, 4),
        "median": round(done[len(done) // 2] / time, 4),
    }


def sum_of_frames(item: Sequence[Piece]) -> float:
    return float(sum(piece.frames for piece in item))


if __name__ == "__main__":
    main()
