"""Word error rates of 5.1 recordings by how their channels become one.

    python -m scripts.benchmarks.surround SPEECH --json docs/bench/surround/cpu.json

SPEECH holds a NeMo manifest per split. Each utterance becomes a scene: it and other sound lie on the six channels. `front_db`
is the level of the other sound on the left and on the right channel, relative to the utterance, and `back_db` that on the
surround channels; it differs on each channel. The subwoofer has rumble (20 to 120 Hz) 6 dB above the utterance.

    centre   the utterance on the centre channel, as in films
    pauses   the same, with 3 s before and after it in which the centre has other sound alone, 36 dB below the utterance
    upmix    the utterance also on the left and on the right, 6 dB softer
    phantom  on the left and on the right, 3 dB softer each; the centre is silent, as in stereo sound with effects
    side     on the left; the centre has other sound, 12 dB below the utterance
    off      as side, with a centre 24 dB below

Other sound: `noise` is pink, `music` is chords and drums, `voices` are four other utterances at once. `mix` names what becomes
of the channels: their mean; the centre alone; `itu` has the weights of ITU-R BS.775 for one channel; `front W` the centre, and
left and right with weight W; `N dB, else M` the centre, unless it is softer than left and right by more than N dB: then mix M.
The subwoofer has no weight, except in the mean. `dry` is the utterance alone. Rates are of words after Whisper's English
normaliser.

Tables and progress go to stderr; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fastscribe import Transcriber, Transcript
from fastscribe._system.standard_streams import log_to_stderr
from fastscribe.checkpoint.location import locate
from fastscribe.evaluation.scores import Pair, evaluate, normalizer
from fastscribe.types import Float32Array, Float64Array
from scripts.benchmarks.gap_recovery import DECODERS, RATE, counts, parser_of, pink, publish, read_split

SEED = 20_261_128
SPEECH_DB = {  # of the utterance on the left, the right and the centre channel
    "centre": (None, None, 0.0),
    "pauses": (None, None, 0.0),
    "upmix": (-6.0, -6.0, 0.0),
    "phantom": (-3.0, -3.0, None),
    "side": (0.0, None, None),
    "off": (0.0, None, None),
}
CENTRE_DB = {"pauses": -36.0, "side": -12.0, "off": -24.0}  # of other sound on the centre channel
SCENES = (
    ("centre", "noise", -9.0, -12.0),
    ("centre", "noise", -3.0, -6.0),
    ("centre", "music", -6.0, -9.0),
    ("centre", "voices", -9.0, -12.0),
    ("pauses", "noise", 0.0, -3.0),
    ("pauses", "music", 0.0, -3.0),
    ("pauses", "voices", -6.0, -9.0),
    ("upmix", "music", -9.0, -12.0),
    ("upmix", "voices", -12.0, -12.0),
    ("phantom", "noise", -15.0, -9.0),
    ("phantom", "music", -15.0, -9.0),
    ("side", "music", -12.0, -12.0),
    ("off", "noise", -18.0, -12.0),
)
PAUSE_S = 3.0
# Weights of the centre, of left and right, and of the surround channels.
WEIGHTS = {
    "centre": (1.0, 0.0, 0.0),
    "itu": (1.0, 0.7071, 0.5),
    "front 0.71": (1.0, 0.7071, 0.0),
    "front 0.25": (1.0, 0.25, 0.0),
}
MIXES = ("mean", *WEIGHTS, "10 dB, else front 0.71", "20 dB, else front 0.71", "30 dB, else front 0.71")


def gain(level_db: float | None) -> float:
    return 0.0 if level_db is None else float(10 ** (level_db / 20))


def level(samples: Float64Array) -> Float64Array:
    """Return the samples at a root mean square of 1."""
    return np.asarray(samples / max(1e-9, np.sqrt(np.mean(samples**2))), np.float64)


def music(num_samples: int, rng: np.random.Generator) -> Float64Array:
    """Return chords of four tones with overtones, two a second, and a drum on each."""
    at_s, found = np.arange(num_samples) / RATE, np.zeros(num_samples)
    step = RATE // 2
    for begin in range(0, num_samples, step):
        part = slice(begin, min(begin + step, num_samples))
        since_s = at_s[part] - begin / RATE
        for tone in rng.choice(np.arange(40, 76), 4, replace=False):
            hertz = 440.0 * 2 ** ((tone - 69) / 12)
            found[part] += sum(
                np.sin(2 * np.pi * hertz * overtone * since_s + rng.uniform(0, 6)) / overtone
                for overtone in range(1, 9)
            ) * np.exp(-2 * since_s)
        found[part] += 3 * rng.standard_normal(len(since_s)) * np.exp(-30 * since_s)
    return found


def voices(num_samples: int, clips: Sequence[Float32Array], rng: np.random.Generator) -> Float64Array:
    found = np.zeros(num_samples)
    for number in rng.choice(len(clips), 4, replace=False):
        found += level(np.resize(clips[number], num_samples).astype(np.float64))
    return found


def other(kind: str, num_samples: int, clips: Sequence[Float32Array], rng: np.random.Generator) -> Float64Array:
    if kind == "noise":
        return level(np.asarray(pink(num_samples, rng), np.float64))
    return level(music(num_samples, rng) if kind == "music" else voices(num_samples, clips, rng))


def scene(
    speech_S: Float32Array,
    place: str,
    kind: str,
    levels_db: tuple[float, float],
    clips: Sequence[Float32Array],
    seed: int,
) -> Float64Array:
    """Return the six channels [S, 6] in ORDER."""
    loudness = float(np.sqrt(np.mean(np.square(speech_S, dtype=np.float64))))
    if place == "pauses":
        speech_S = np.pad(speech_S, round(PAUSE_S * RATE))
    rng, num_samples = np.random.default_rng((SEED, seed)), len(speech_S)
    channels_SC = np.zeros((num_samples, 6))
    channels_SC[:, 3] = rumble(num_samples, rng) * gain(6.0)
    around_db = (levels_db[0], levels_db[0], CENTRE_DB.get(place), None, levels_db[1], levels_db[1])
    for channel, level_db in enumerate(around_db):
        if level_db is not None:
            channels_SC[:, channel] += other(kind, num_samples, clips, rng) * gain(level_db)
    channels_SC *= loudness
    for channel, level_db in enumerate(SPEECH_DB[place]):
        channels_SC[:, channel] += speech_S * gain(level_db)
    return channels_SC


def rumble(num_samples: int, rng: np.random.Generator) -> Float64Array:
    spectrum, hertz = np.fft.rfft(rng.standard_normal(num_samples)), np.fft.rfftfreq(num_samples, 1 / RATE)
    spectrum[(hertz < 20) | (hertz > 120)] = 0
    return level(np.fft.irfft(spectrum, num_samples))


def mixed(channels_SC: Float64Array, name: str) -> Float32Array:
    limit_db, _, mix = name.rpartition(" dB, else ")
    if mix == "mean":
        return np.asarray(channels_SC.mean(axis=1), np.float32)
    if limit_db:
        left, right, centre = channels_SC.var(axis=0)[:3]
        mix = "centre" if centre > 0 and centre >= (left + right) * gain(-float(limit_db)) ** 2 else mix
    centre_weight, front, back = WEIGHTS[mix]
    weights_C = np.array([front, front, centre_weight, 0.0, back, back])
    return np.asarray(channels_SC @ (weights_C / weights_C.sum()), np.float32)


def rate(transcriber: Transcriber, waves: Sequence[Float32Array], texts: Sequence[str]) -> dict[str, Any]:
    normalize = normalizer("whisper-en")
    found = list(transcriber.transcribe([(wave, RATE) for wave in waves], ordered=True))
    assert all(isinstance(one, Transcript) for one in found)
    pairs = [Pair(normalize(text), normalize(one.text)) for text, one in zip(texts, found, strict=True)]  # type: ignore[union-attr]
    return counts(evaluate(pairs).total.words)


def setups(
    arguments: argparse.Namespace,
) -> Iterator[tuple[dict[str, Any], Transcriber, list[Float32Array], list[str]]]:
    """Yield (what rows are named by, transcriber, utterances, their texts) for each decoder and split."""
    model = str(locate(arguments.model, log_to_stderr))
    for decoder in arguments.decoders:
        options = replace(DECODERS[decoder], recover_gaps=False)
        transcriber = Transcriber.load(model, device="cpu", dtype="fp32", options=options)
        for split in arguments.splits:
            utterances = read_split(arguments.speech / f"{split}.jsonl", arguments.max_hours)
            clips, texts = [samples for samples, _ in utterances], [text for _, text in utterances]
            yield {"split": split, "decoder": decoder}, transcriber, clips, texts


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for named, transcriber, clips, texts in setups(arguments):
        add(rows, {**named, "mix": "dry"} | rate(transcriber, clips, texts))
        for place, kind, front_db, back_db in SCENES:
            scenes = [
                scene(samples, place, kind, (front_db, back_db), clips, number) for number, samples in enumerate(clips)
            ]
            about = {**named, "place": place, "other": kind, "front_db": front_db, "back_db": back_db}
            known: dict[bytes, dict[str, Any]] = {}  # several mixes are alike in a scene
            for mix in MIXES:
                waves = [mixed(one, mix) for one in scenes]
                key = hashlib.blake2b(b"".join(wave.tobytes() for wave in waves)).digest()
                if key not in known:
                    known[key] = rate(transcriber, waves, texts)
                add(rows, {**about, "mix": mix} | known[key])
    return rows


def add(rows: list[dict[str, Any]], row: dict[str, Any]) -> None:
    rows.append(row)
    print(json.dumps(row), file=sys.stderr, flush=True)


def main() -> None:
    arguments = parser_of(__doc__, list(DECODERS), ["tdt --beam 1"]).parse_args()
    publish(
        "surround", "word error rates after Whisper's English normaliser; one run each", arguments, measure(arguments)
    )


if __name__ == "__main__":
    main()
