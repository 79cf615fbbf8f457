"""What a model writes and lists as gaps for sounds without speech, and which real speech without words stays a gap.

    python -m scripts.benchmarks.tones test_native.jsonl test_accented.jsonl --json docs/bench/tones.json

Sounds are those of tests/helpers/signals.py, SECONDS of each with SEEDS seeds. Speech is joins of four clips with pauses of
0.75 s of faint noise, alone and with white noise 10 dB below. The search for gaps gets it as if the model had written nothing.
`before` is the search without segmentation/speech_likeness.py.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import soundfile
import torch

from fastscribe import Options, Transcriber, Transcript
from fastscribe.audio.probe import probe
from fastscribe.bench.result import document, leave
from fastscribe.segmentation import gap_search
from fastscribe.types import Float32Array, Source
from tests.helpers.signals import RATE, signals

SECONDS, SEEDS = 20.0, 2
CLIPS, NOISE = 4, 10 ** (-10 / 20)
_PAUSE = 3 * RATE // 4


def gap_seconds(path: Path) -> tuple[float, float]:
    """Return the seconds of gaps of a recording without any words, before and now."""
    audio = probe(Source(str(path), str(path), path.name))
    assert not hasattr(audio, "error"), audio
    transcript, spans = Transcript(audio, "", (), ()), [(0.0, audio.duration_s)]

    def search() -> float:
        surroundings = gap_search.Surroundings(transcript, spans, Options())
        return sum(gap.end_s - gap.start_s for gap in gap_search.find_clear_speech(transcript, spans, surroundings))

    with patch.object(gap_search, "sounds_like_speech", return_value=True):
        before_s = search()
    return before_s, search()


def of_sounds(transcriber: Transcriber, folder: Path) -> list[dict[str, Any]]:
    made = [signals(SECONDS, seed) for seed in range(SEEDS)]
    rows = []
    for name in made[0]:
        found = {"audio_s": 0.0, "gaps_before_s": 0.0, "gaps_s": 0.0, "words": 0}
        for seed, sounds in enumerate(made):
            path = folder / f"{name} {seed}.wav"
            soundfile.write(path, sounds[name], RATE)
            [result] = transcriber.transcribe(str(path))
            assert isinstance(result, Transcript)
            before_s, _ = gap_seconds(path)
            found["audio_s"] += SECONDS
            found["gaps_before_s"] += before_s
            found["gaps_s"] += sum(gap.end_s - gap.start_s for gap in result.gaps)
            found["words"] += len(result.words)
        rows.append({"sound": name, **found})
    return rows


def of_speech(manifest: Path, count: int, folder: Path) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    rows = random.Random(0).sample(rows, min(count, len(rows) // CLIPS * CLIPS))
    clips = [soundfile.read(manifest.parent / row["audio_filepath"], dtype="float32")[0] for row in rows]
    found = []
    for name, level in (("speech", 0.0), ("speech in noise", NOISE)):
        total_s, num_lost = np.zeros(3), 0
        for place in range(0, len(clips), CLIPS):
            joined_S = np.concatenate([_with_pause(clip_S, rng) for clip_S in clips[place : place + CLIPS]])
            joined_S += np.float32(level * joined_S.std()) * rng.standard_normal(len(joined_S)).astype(np.float32)
            soundfile.write(folder / "joined.wav", joined_S, RATE)
            before_s, now_s = gap_seconds(folder / "joined.wav")
            total_s += len(joined_S) / RATE, before_s, now_s
            num_lost += bool(before_s) and not now_s
        seconds = dict(zip(("audio_s", "gaps_before_s", "gaps_s"), total_s.tolist(), strict=True))
        found.append({"sound": f"{name}, {manifest.stem}", **seconds, "recordings_without_their_gaps": num_lost})
    return found


def _with_pause(clip_S: Float32Array, rng: np.random.Generator) -> Float32Array:
    return np.concatenate([clip_S, (1e-3 * rng.standard_normal(_PAUSE)).astype(np.float32)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("manifests", type=Path, nargs="+", help="of 16 kHz")
    parser.add_argument("--clips", type=int, default=200, help="of each manifest")
    parser.add_argument("--model", default="default")
    parser.add_argument("--json", type=Path, help="store the result here too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = of_sounds(Transcriber.load(arguments.model, "cpu"), Path(folder))
        for manifest in arguments.manifests:
            rows += of_speech(manifest, arguments.clips, Path(folder))
    settings = {"model": arguments.model, "seconds": SECONDS, "seeds": SEEDS, "rows": rows}
    leave(document("tones", torch.device("cpu"), settings, ["sound"]), arguments.json)


if __name__ == "__main__":
    main()
