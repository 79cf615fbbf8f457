"""Word error rates of long recordings beside those of the clips that they are joined from.

    python -m scripts.benchmarks.long_recordings SPEECH --json docs/bench/long/cpu.json

SPEECH holds a NeMo manifest per split. Each split gives these kinds of recordings, at 16 kHz:

    clips    the split's utterances, each a recording of its own
    joined   utterances in the manifest's order, end to end
    pauses   the same with 0.2 to 1.5 s between them, filled with noise at the level of the clip's quietest part
    trimmed  the same without the quiet edges of the clips, so that one speaker follows another at once

All but `clips` come in each of the lengths, and are decoded with each limit: "default", as without --max-utterance-s, or
seconds. Rates are of words after Whisper's English normaliser, over whole recordings; `points` is a rate less that of the
clips, by the same decoder. `rtfx` is seconds of audio per second of wall time, without loading the model;
`audio_s_per_cpu_s` the same per second of processor time, which other programs disturb less.

Tables and progress go to stderr; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import soundfile

from fastscribe import Options, Transcriber
from fastscribe._system.standard_streams import log_to_stderr
from fastscribe.checkpoint.location import locate
from fastscribe.evaluation.scores import Pair, evaluate, normalizer
from fastscribe.segmentation.loudness import FRAME_S, decibels, floor_and_level
from fastscribe.types import Float32Array, Float64Array, Transcript, Utterance
from scripts.benchmarks.gap_recovery import RATE, Recording, counts, groups, parser_of, publish, read_split

CLIPS = "clips"
JOINED_KINDS = ("joined", "pauses", "trimmed")
DECODERS = {
    "tdt": Options(decoder="tdt"),
    "tdt --beam 1": Options(decoder="tdt", beam=1),
    "ctc": Options(decoder="ctc"),
}
PAUSE_S = (0.2, 1.5)
EDGE_DB = 20.0  # this far below the clip's level and more is a quiet edge
EDGE_S = 0.04  # left of it at either end
SEED = 20_261_123
DEFAULT = "default"


@dataclass(frozen=True)
class Corpus:
    """Recordings of one kind and length made from a split; a length of 0 stands for the clips."""

    split: str
    kind: str
    length_s: float
    recordings: tuple[Recording, ...]


@dataclass
class UtteranceCounter:
    """Counts the utterances that are decoded, and sums their lengths."""

    utterances: int = 0
    seconds: float = 0.0

    def batch(self, utterances: Sequence[Utterance], num_frames: Sequence[int]) -> None:
        self.utterances += len(utterances)
        self.seconds += sum(utterance.duration_s for utterance in utterances)


def make_corpora(speech: Path, split: str, arguments: argparse.Namespace, folder: Path) -> list[Corpus]:
    """Write the recordings of a split, its clips first."""
    clips = read_split(speech / f"{split}.jsonl", arguments.max_hours)
    kinds = [(CLIPS, 0.0), *itertools.product(arguments.kinds, arguments.lengths_s)]
    return [make_corpus(clips, split, kind, length_s, folder) for kind, length_s in kinds]


def make_corpus(
    clips: Sequence[tuple[Float32Array, str]], split: str, kind: str, length_s: float, folder: Path
) -> Corpus:
    """Write the recordings of one kind and length."""
    where = folder / f"{split}-{kind}-{length_s:g}"
    where.mkdir()
    recordings = []
    for place, group in enumerate(groups(clips, length_s)):
        random = np.random.default_rng((SEED, place))
        samples_S = np.concatenate([joint for clip_S, _ in group for joint in changed(clip_S, kind, random)])
        path = where / f"{place:04d}.wav"
        soundfile.write(path, np.clip(samples_S, -1, 1), RATE, subtype="PCM_16")
        recordings.append(Recording(path, " ".join(text for _, text in group)))
    return Corpus(split, kind, length_s, tuple(recordings))


def changed(clip_S: Float32Array, kind: str, random: np.random.Generator) -> list[Float32Array]:
    """Return the clip as it is joined to the others, with what comes after it."""
    if kind == "trimmed":
        return [without_edges(clip_S)]
    if kind == "pauses":
        level = np.sqrt(10 ** (floor_and_level(energy(clip_S))[0] / 10))
        pause_S = random.normal(0.0, level, int(random.uniform(*PAUSE_S) * RATE)).astype(np.float32)
        return [clip_S, pause_S]
    return [clip_S]


def without_edges(clip_S: Float32Array) -> Float32Array:
    loudness = decibels(energy(clip_S))
    loud = np.flatnonzero(loudness > np.percentile(loudness, 95.0) - EDGE_DB)
    frame, edge = round(FRAME_S * RATE), round(EDGE_S * RATE)
    return clip_S[max(0, int(loud[0]) * frame - edge) : (int(loud[-1]) + 1) * frame + edge]


def energy(clip_S: Float32Array) -> Float64Array:
    frame = round(FRAME_S * RATE)
    whole = clip_S[: len(clip_S) // frame * frame].reshape(-1, frame)
    return np.asarray(whole.var(axis=1, dtype=np.float64))


def measure(corpus: Corpus, transcriber: Transcriber) -> dict[str, Any]:
    """Transcribe and score a corpus."""
    transcriber._watcher = counter = UtteranceCounter()
    texts: dict[int, str] = {}
    start, cpu_start = perf_counter(), process_time()
    for result in transcriber.transcribe([recording.path for recording in corpus.recordings]):
        if not isinstance(result, Transcript):
            raise SystemExit(f"{result.path}: {result.message}")
        texts[result.audio.index] = result.text
    wall_s, cpu_s = perf_counter() - start, process_time() - cpu_start
    normalize = normalizer("whisper-en")
    pairs = [
        Pair(normalize(recording.reference), normalize(texts[place]))
        for place, recording in enumerate(corpus.recordings)
    ]
    return {
        "recordings": len(corpus.recordings),
        "audio_s": round(transcriber.progress.audio_s, 1),
        "utterances": counter.utterances,
        "mean_utterance_s": round(counter.seconds / counter.utterances, 2),
        "rtfx": round(transcriber.progress.audio_s / wall_s, 1),
        "audio_s_per_cpu_s": round(transcriber.progress.audio_s / cpu_s, 1),
        **counts(evaluate(pairs).total.words),
    }


def measure_all(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    model, rows = str(locate(arguments.model, log_to_stderr)), []
    with tempfile.TemporaryDirectory() as folder:
        made = [
            corpus
            for split in arguments.splits
            for corpus in make_corpora(arguments.speech, split, arguments, Path(folder))
        ]
        for decoder in arguments.decoders:
            clip_rates: dict[str, float] = {}
            for limit in arguments.limits:
                transcriber = load(model, decoder, limit)
                for corpus in made:
                    is_clips = corpus.kind == CLIPS
                    if is_clips and limit != arguments.limits[0]:
                        continue
                    row = measure(corpus, transcriber)
                    if is_clips:
                        clip_rates[corpus.split] = row["wer"]
                    points = round(100 * (row["wer"] - clip_rates[corpus.split]), 2)
                    named = {"split": corpus.split, "kind": corpus.kind, "length_s": corpus.length_s}
                    rows.append({**named, "decoder": decoder, "limit": limit, "points": points, **row})
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def load(model: str, decoder: str, limit: str) -> Transcriber:
    options = replace(DECODERS[decoder], max_utterance_s=None if limit == DEFAULT else float(limit))
    return Transcriber.load(model, device="cpu", dtype="fp32", options=options)


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"{'split':16}{'kind':10}{'length':>7} {'decoder':14}{'limit':>8}{'WER':>8}{'points':>8}{'RTFx':>8}{'per CPU s':>10}"
    ]
    for row in rows:
        lines.append(
            f"{row['split']:16}{row['kind']:10}{row['length_s']:7g} {row['decoder']:14}{row['limit']:>8}{row['wer']:8.2%}"
            f"{row['points']:8.2f}{row['rtfx']:8.1f}"
            f"{row['audio_s_per_cpu_s']:10.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = parser_of(__doc__, list(DECODERS), ["tdt"])
    parser.add_argument("--kinds", nargs="+", default=list(JOINED_KINDS), choices=JOINED_KINDS)
    parser.add_argument("--lengths-s", nargs="+", type=float, default=[60.0, 300.0, 1200.0])
    parser.add_argument("--limits", nargs="+", default=[DEFAULT, "40", "6"], help="default, or seconds")
    arguments = parser.parse_args()
    rows = measure_all(arguments)
    print(table(rows), file=sys.stderr)
    publish(
        "long_recordings",
        "word error rates of all words after Whisper's English normaliser, over whole recordings; points more "
        "than the clips'; one run each, other programs were running",
        arguments,
        rows,
    )


if __name__ == "__main__":
    main()
