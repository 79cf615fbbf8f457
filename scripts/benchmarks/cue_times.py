"""How far the cues of `fastscribe align` begin and end from where speech does.

    python -m scripts.benchmarks.cue_times test_native.jsonl --json docs/bench/align/cues-native.json

Clips of a manifest are joined with 1 to 3 s of faint noise between them, and each is a line of the text. Speech begins and ends
with a clip's first and last 10 ms within BELOW_DB of its loud ones, so clips should be read in quiet rooms. Beside the ends
stand those of the frames of all tokens, the full stop included, which is where words ended before 2026-11-30.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from fastscribe import Aligner, Transcript
from fastscribe.bench.result import document, leave
from fastscribe.segmentation.loudness import decibels
from fastscribe.types import Float32Array

RATE = 16_000
BELOW_DB = 35.0
_FRAME = RATE // 100
_PAUSE_S, _NOISE = (1.0, 3.0), 1e-4


def speech_span_s(clip_S: Float32Array) -> tuple[float, float]:
    """Return when speech begins and ends in a clip."""
    loudness = decibels(np.square(clip_S[: len(clip_S) // _FRAME * _FRAME].reshape(-1, _FRAME)).mean(axis=1))
    loud = np.flatnonzero(loudness > np.percentile(loudness, 95.0) - BELOW_DB)
    return float(loud[0] * _FRAME / RATE), float((loud[-1] + 1) * _FRAME / RATE)


def join(rows: list[dict[str, Any]], folder: Path, out: Path) -> list[tuple[float, float]]:
    """Write the recording and its text, OUT/joined.flac and .txt. Return when each line is spoken."""
    rng, parts, spans, now_s = np.random.default_rng(0), list[Float32Array](), list[tuple[float, float]](), 0.0
    for row in rows:
        clip_S, rate = soundfile.read(folder / row["audio_filepath"], dtype="float32")
        assert rate == RATE, row["audio_filepath"]
        begin_s, end_s = speech_span_s(clip_S)
        spans.append((now_s + begin_s, now_s + end_s))
        pause_S = (_NOISE * rng.standard_normal(int(rng.uniform(*_PAUSE_S) * RATE))).astype(np.float32)
        parts += [clip_S, pause_S]
        now_s += (len(clip_S) + len(pause_S)) / RATE
    soundfile.write(out / "joined.flac", np.concatenate(parts), RATE)
    (out / "joined.txt").write_text("\n".join(" ".join(row["text"].split()) for row in rows), encoding="utf-8")
    return spans


def errors(found: Transcript, spans: list[tuple[float, float]]) -> list[tuple[float, float, float]]:
    """Return how much later than speech each line begins and ends, and ends with all of its tokens; lines heard whole."""
    late_s = []
    nexts_s = [*(one.start_s for one in found.segments[1:]), found.audio.duration_s]
    for segment, next_s, (begin_s, end_s) in zip(found.segments, nexts_s, spans, strict=True):
        if not any(word.missing for word in segment.words):
            tokens_s = max(one.end_s for one in found.tokens if segment.start_s <= one.start_s < next_s)
            late_s.append((segment.start_s - begin_s, segment.end_s - end_s, tokens_s - end_s))
    return late_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--clips", type=int, default=100, help="clips to join")
    parser.add_argument("--model", default="default")
    parser.add_argument("--json", type=Path, help="store the result here too")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.manifest.read_text(encoding="utf-8").splitlines()]
    rows = random.Random(0).sample(rows, min(arguments.clips, len(rows)))
    with tempfile.TemporaryDirectory() as folder:
        spans = join(rows, arguments.manifest.parent, Path(folder))
        [found] = Aligner.load(arguments.model, "cpu").align(f"{folder}/joined.flac", f"{folder}/joined.txt")
    assert isinstance(found, Transcript), found
    late_s = np.array(errors(found, spans))
    measured = [
        {
            "edge": edge,
            "lines": len(column_s),
            "mean_distance_s": float(np.abs(column_s).mean()),
            **{f"late_{share}_percent_s": float(np.percentile(column_s, share)) for share in (0, 5, 50, 95, 100)},
        }
        for edge, column_s in zip(("begin", "end", "end with all tokens"), late_s.T, strict=True)
    ]
    settings = {"manifest": arguments.manifest.name, "model": arguments.model, "audio_s": found.audio.duration_s}
    leave(document("cue_times", torch.device("cpu"), {**settings, "rows": measured}, ["edge"]), arguments.json)


if __name__ == "__main__":
    main()
