"""The mean confidence below which a recording is beyond the packaged model, and how often that is right.

    python -m scripts.default_model.confidence_limit --choose train_accented.jsonl prompts_en.jsonl prompts_fr.jsonl \\
        --measure test_native.jsonl test_accented.jsonl prompts_es.jsonl --json docs/bench/default_model/confidence.json

Each NeMo manifest gives clips, and clips of one speaker joined to about half a minute. Each of these is heard as it is, through
a telephone, in a room and in noise (CONDITIONS). A row without text is in another language: all its words are wrong. A
recording is beyond the model if more than 40 % of its words are wrong, after Whisper's English normaliser; it is flagged if
the mean confidence of its words is below the limit.

The limit is the largest that flags at most 5 % of the recordings of `--choose` that are not beyond the model. Rates of
`--measure` are of recordings that chose nothing. Recordings in which the model finds no words are counted, never flagged.

A table goes to stderr; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr

from fastscribe import Transcriber
from fastscribe._system.processors import cpu_name, usable_processors
from fastscribe.bench import machine
from fastscribe.evaluation.scores import Pair, evaluate, normalizer
from fastscribe.types import Float32Array, Transcript
from scripts.default_model.transmission import RATE, Channel, room, telephone

ROOT = Path(__file__).resolve().parents[2]
BEYOND = 0.4  # share of wrong words
MAX_FALSE_ALARMS = 0.05
LENGTHS_S = {"clips": 0.0, "joined": 25.0}
LIMITS = tuple(round(0.5 + 0.01 * step, 2) for step in range(50))


def noise(decibels: float) -> Channel:
    """Return what adds noise, more of it at low frequencies, this far below the recording's mean power."""

    def add(samples_S: Float32Array, rng: np.random.Generator) -> Float32Array:
        spectrum = np.fft.rfft(rng.standard_normal(len(samples_S)))
        hertz = np.fft.rfftfreq(len(samples_S), 1 / RATE)
        noise_S = np.fft.irfft(spectrum / np.sqrt(np.maximum(hertz, 50.0)), len(samples_S))
        gain = np.sqrt(np.mean(samples_S**2) / np.mean(noise_S**2)) * 10 ** (-decibels / 20)
        return np.asarray(samples_S + gain * noise_S, np.float32)

    return add


CONDITIONS: dict[str, Channel] = {
    "clean": lambda samples_S, rng: samples_S,
    "telephone": telephone,
    "room": room,
    "noise 10 dB": noise(10.0),
    "noise 0 dB": noise(0.0),
}


@dataclass(frozen=True)
class Heard:
    """What the model made of a recording.

    Attributes:
        wrong: Share of wrong words; 1 for another language.
        confidence: Mean of its words; None: it found none.
    """

    wrong: float
    confidence: float | None


def main() -> None:
    arguments = parsed()
    transcriber = Transcriber.load()
    heard: dict[str, dict[tuple[str, str, str], list[Heard]]] = {}
    for seed, use in enumerate(("choose", "measure")):
        heard[use] = {}
        for manifest in getattr(arguments, use):
            heard[use] |= measured(transcriber, manifest, arguments.max_s, seed)
    limit = chosen([one for group in heard["choose"].values() for one in group])
    rows = [{"use": "all of choose", **rates(heard["choose"].values(), limit)}]
    rows.append({"use": "all of measure", **rates(heard["measure"].values(), limit)})
    for kind in LENGTHS_S:
        some = [group for (_, one, _), group in heard["measure"].items() if one == kind]
        rows.append({"use": f"{kind} of measure", **rates(some, limit)})
    rows += [
        {"use": use, "set": name, "kind": kind, "condition": condition, **rates([group], limit)}
        for use, groups in heard.items()
        for (name, kind, condition), group in groups.items()
    ]
    for row in rows:
        print(" ".join(f"{value!s:>14}" for value in row.values()), file=sys.stderr)
    curve = [{"limit": one, **rates(heard["measure"].values(), one)} for one in LIMITS if 0.7 <= one <= 0.95]
    statistic = (
        f"recordings beyond the model (over {BEYOND:.0%} of words wrong) and those whose mean confidence is below {limit}; "
        "hit_rate: flagged of those beyond it; false_alarms: flagged of the others"
    )
    document = {
        "benchmark": "confidence limit",
        "date": date.today().isoformat(),
        "hardware": f"{cpu_name()}, {usable_processors()} cores",
        "dtype": "fp32",
        "model": "packaged",
        "statistic": statistic,
        "commit": machine.commit(ROOT),
        "versions": machine.versions(),
        "results": [{"limit": limit, "rates": rows, "limits_on_measure": curve}],
    }
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--choose", type=Path, nargs="+", required=True, help="manifests that choose the limit")
    parser.add_argument("--measure", type=Path, nargs="+", required=True, help="other speakers' manifests")
    parser.add_argument("--max-s", type=float, default=900.0, help="seconds of each manifest, evenly picked")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def measured(
    transcriber: Transcriber, manifest: Path, max_s: float, seed: int
) -> Iterator[tuple[tuple[str, str, str], list[Heard]]]:
    """Yield what the model made of the recordings of each kind and condition."""
    rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    for kind, length_s in LENGTHS_S.items():
        recordings = picked(grouped(rows, length_s), max_s)
        for condition, change in CONDITIONS.items():
            with tempfile.TemporaryDirectory() as folder:
                paths = written(recordings, manifest.parent, Path(folder), change, seed)
                references = [" ".join(row["text"] for row in recording) for recording in recordings]
                yield (manifest.stem, kind, condition), list(hear(transcriber, paths, references))
            print(manifest.stem, kind, condition, len(recordings), file=sys.stderr)


def grouped(rows: Sequence[dict[str, Any]], length_s: float) -> list[list[dict[str, Any]]]:
    """Return rows of one speaker, one after the other, in groups of at least this length; 0: each by itself."""
    found: list[list[dict[str, Any]]] = []
    for row in sorted(rows, key=lambda row: str(row.get("speaker"))):
        last = found[-1] if found else []
        goes_on = last and last[0].get("speaker") == row.get("speaker")
        if goes_on and sum(one["duration"] for one in last) < length_s:
            last.append(row)
        else:
            found.append([row])
    return found


def picked(recordings: Sequence[list[dict[str, Any]]], max_s: float) -> list[list[dict[str, Any]]]:
    share = max_s / sum(row["duration"] for recording in recordings for row in recording)
    places = range(len(recordings))
    return [recordings[one] for one in places if share >= 1 or int(one * share) < int((one + 1) * share)]


def written(
    recordings: Sequence[Sequence[dict[str, Any]]], home: Path, folder: Path, change: Channel, seed: int
) -> list[Path]:
    paths = []
    for place, recording in enumerate(recordings):
        samples_S = np.concatenate([read(home / row["audio_filepath"]) for row in recording])
        changed_S = change(samples_S, np.random.default_rng((seed, place)))
        paths.append(folder / f"{place:05d}.wav")
        soundfile.write(paths[-1], np.clip(changed_S, -1, 1), RATE, subtype="PCM_16")
    return paths


def read(path: Path) -> Float32Array:
    samples_S, rate = soundfile.read(path, dtype="float32")
    return np.asarray(soxr.resample(samples_S, rate, RATE), np.float32)


def hear(transcriber: Transcriber, paths: Sequence[Path], references: Sequence[str]) -> Iterator[Heard]:
    normalize: Callable[[str], str] = normalizer("whisper-en")
    for result in transcriber.transcribe(paths, ordered=True):
        assert isinstance(result, Transcript), result
        words = [word.confidence for word in result.words]
        confidence = sum(words) / len(words) if words else None
        reference = normalize(references[result.index])
        rate = evaluate([Pair(reference, normalize(result.text))]).total.words.rate if reference else 1.0
        assert rate is not None
        yield Heard(rate, confidence)


def chosen(heard: Sequence[Heard]) -> float:
    """Return the largest limit whose false alarms are few."""
    return max(one for one in LIMITS if rates([heard], one)["false_alarms"] <= 100 * MAX_FALSE_ALARMS)


def rates(groups: Iterator[Sequence[Heard]] | Any, limit: float) -> dict[str, Any]:
    """Return the counts of recordings, and in % how many of those beyond the model, and of the others, are flagged."""
    heard = [one for group in groups for one in group]
    beyond = [one for one in heard if one.wrong > BEYOND]
    others = [one for one in heard if one.wrong <= BEYOND]
    known = [one.confidence for one in heard if one.confidence is not None]
    return {
        "recordings": len(heard),
        "beyond": len(beyond),
        "without_words": sum(one.confidence is None for one in heard),
        "mean_confidence": round(float(np.mean(known)), 3) if known else None,
        "wrong": round(100 * float(np.mean([min(one.wrong, 1.0) for one in heard])), 1),
        "hit_rate": percent(beyond, limit),
        "false_alarms": percent(others, limit),
    }


def percent(heard: Sequence[Heard], limit: float) -> float | None:
    flagged = sum(one.confidence is not None and one.confidence < limit for one in heard)
    return round(100 * flagged / len(heard), 1) if heard else None


if __name__ == "__main__":
    main()
