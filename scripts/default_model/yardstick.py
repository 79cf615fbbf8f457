"""Error rates of models under what recordings go through, and the words that they write where nobody speaks.

    python -m scripts.default_model.yardstick RUN/validation_native.jsonl RUN/validation_accented.jsonl \\
        --model RUN/robust/best --model default --sounds OTHER/manifest.jsonl --json yardstick.json

Each manifest gives its clips; the same through a telephone, Opus, an overloaded input and a room (transmission.py, every clip
through each); and joined to five minutes, end to end and with pauses (scripts/benchmarks/speech.py). Rates are of
words after Whisper's English normaliser, with their standard error over recordings; joined recordings are too few for one. Of
`--sounds`, recordings without speech, the words per minute count.

A table goes to stderr; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from fastscribe import Transcriber
from fastscribe._system.standard_streams import log_to_stderr
from fastscribe.checkpoint.location import locate
from fastscribe.evaluation.scores import Pair, evaluate, normalizer
from fastscribe.types import Transcript
from scripts.benchmarks.speech import CLIPS, RATE, Recording, make_corpus, publish, read_split
from scripts.default_model.transmission import CHANNELS

JOINED = ("joined", "pauses")
JOINED_S = 300.0


def main() -> None:
    arguments = parsed()
    with tempfile.TemporaryDirectory() as folder:
        sets = {
            f"{manifest.stem} {kind}": recordings
            for manifest in arguments.manifests
            for kind, recordings in sets_of(manifest, Path(folder))
        }
        sounds = sounds_of(arguments.sounds) if arguments.sounds else []
        found = {
            model: measured(Transcriber.load(str(locate(model, log_to_stderr))), sets, sounds)
            for model in arguments.models
        }
    for name in [*sets, *(["sounds"] if sounds else [])]:
        print(f"{name:32}" + "".join(f"{shown(found[model][name]):>24}" for model in found), file=sys.stderr)
    arguments.model = ", ".join(arguments.models)
    statistic = "word error rates in % with the standard error over recordings; words per minute without speech"
    rows = [{"model": model, "set": name, **row} for model, sets in found.items() for name, row in sets.items()]
    publish("yardstick", statistic, arguments, rows)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifests", type=Path, nargs="+")
    parser.add_argument("--model", dest="models", action="append", required=True)
    parser.add_argument("--sounds", type=Path, help="manifest of recordings without speech, or a folder of them")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def sets_of(manifest: Path, folder: Path) -> Iterator[tuple[str, Sequence[Recording]]]:
    clips = read_split(manifest, math.inf)
    yield CLIPS, make_corpus(clips, manifest.stem, CLIPS, 0.0, folder)
    for name, (channel, _) in CHANNELS.items():
        where = folder / f"{manifest.stem}-{name}"
        where.mkdir()
        recordings = []
        for place, (clip_S, text) in enumerate(clips):
            path = where / f"{place:04d}.wav"
            changed_S = channel(clip_S, np.random.default_rng(place))
            soundfile.write(path, np.clip(changed_S, -1, 1), RATE, subtype="PCM_16")
            recordings.append(Recording(path, text))
        yield name, recordings
    for kind in JOINED:
        yield kind, make_corpus(clips, manifest.stem, kind, JOINED_S, folder)


def sounds_of(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.suffix in (".ogg", ".wav", ".flac"))
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [path.parent / row["audio_filepath"] for row in rows]


def measured(
    transcriber: Transcriber, sets: dict[str, Sequence[Recording]], sounds: Sequence[Path]
) -> dict[str, dict[str, Any]]:
    normalize = normalizer("whisper-en")
    found: dict[str, dict[str, Any]] = {}
    for name, recordings in sets.items():
        results = transcripts(transcriber, [recording.path for recording in recordings])
        texts = zip(recordings, results, strict=True)
        pairs = [Pair(normalize(one.reference), normalize(result.text)) for one, result in texts]
        score = evaluate(pairs).total
        is_joined = name.endswith(JOINED)
        error = None if is_joined or score.standard_error is None else round(100 * score.standard_error, 2)
        assert score.words.rate is not None
        found[name] = {"words": score.words.units, "wer": round(100 * score.words.rate, 2), "standard_error": error}
    if sounds:
        results = transcripts(transcriber, sounds)
        words = [len(normalize(result.text).split()) for result in results]
        minutes = sum(result.audio.duration_s for result in results) / 60
        found["sounds"] = {
            "minutes": round(minutes, 1),
            "words": sum(words),
            "words_per_minute": round(sum(words) / minutes, 3),
            "recordings": len(words),
            "recordings_with_words": sum(count > 0 for count in words),
        }
    return found


def transcripts(transcriber: Transcriber, paths: Sequence[Path]) -> list[Transcript]:
    results: dict[int, Transcript] = {}
    for result in transcriber.transcribe(paths):
        if not isinstance(result, Transcript):
            raise SystemExit(f"{result.path}: {result.message}")
        results[result.index] = result
    return [results[index] for index in range(len(paths))]


def shown(found: dict[str, Any]) -> str:
    if "wer" not in found:
        return f"{found['words']} words, {found['words_per_minute']:.2f}/min"
    return f"{found['wer']:.1f}" + (f" ± {found['standard_error']:.1f}" if found["standard_error"] else "")


if __name__ == "__main__":
    main()
