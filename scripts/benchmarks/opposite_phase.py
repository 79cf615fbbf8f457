"""Word error rates of two channels in opposite phase, averaged, and as they are read (audio/mixing.py).

    python -m scripts.benchmarks.opposite_phase SPEECH --json docs/bench/surround/opposite-phase-cpu.json

SPEECH holds a NeMo manifest per split. The second channel is the first times `gain`, `delay` samples of 16 kHz later. Each has
noise of its own, 50 dB below the utterance. `noted` is the share of the time that the reader takes for opposite phase. Rates
are of words after Whisper's English normaliser.

Progress goes to stderr; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

import numpy as np

from fastscribe.audio.mixing import MixedSound
from fastscribe.audio.samples import SampleReader
from fastscribe.types import Float32Array, Samples
from scripts.benchmarks.gap_recovery import DECODERS, RATE, parser_of, publish
from scripts.benchmarks.surround import SEED, add, rate, setups

GAINS = (-1.0, -0.95, 1.0)
DELAYS = (0, 3, 5, 8)
NOISE_DB = -50.0


def two_channels(speech_S: Float32Array, gain: float, delay: int, seed: int) -> Float32Array:
    """Return [S, 2]."""
    noise_SC = np.random.default_rng((SEED, seed)).standard_normal((len(speech_S), 2))
    noise_SC *= 10 ** (NOISE_DB / 20) * float(np.sqrt(np.mean(np.square(speech_S, dtype=np.float64))))
    later_S = gain * np.concatenate([np.zeros(delay, np.float32), speech_S])[: len(speech_S)]
    return np.asarray(np.stack([speech_S, later_S], axis=1) + noise_SC, np.float32)


def as_read(samples_SC: Float32Array) -> tuple[Float32Array, float]:
    """Return what the reader makes of the channels, and for how much of the time it takes one of them."""
    mono_S1, opposite = np.empty((len(samples_SC), 1), np.float32), list[tuple[int, int]]()
    sound = MixedSound(SampleReader(Samples(samples_SC, RATE, "")), None, True, opposite)
    sound.buffer_read_into(mono_S1, "float32")
    return mono_S1[:, 0], sum(end - begin for begin, end in opposite) / len(samples_SC)


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for named, transcriber, clips, texts in setups(arguments):
        for gain, delay in product(GAINS, DELAYS):
            recordings = [two_channels(speech_S, gain, delay, number) for number, speech_S in enumerate(clips)]
            about = {**named, "gain": gain, "delay": delay}
            averaged = [samples_SC.mean(axis=1) for samples_SC in recordings]
            found, shares = zip(*map(as_read, recordings), strict=True)
            add(rows, {**about, "mix": "mean", **rate(transcriber, averaged, texts)})
            noted = round(float(np.mean(shares)), 3)
            read = rate(transcriber, found, texts) if noted else {key: rows[-1][key] for key in ("words", "wer")}
            add(rows, {**about, "mix": "as read", "noted": noted, **read})
    return rows


def main() -> None:
    arguments = parser_of(__doc__, list(DECODERS), ["tdt --beam 1"]).parse_args()
    publish(
        "opposite_phase",
        "word error rates after Whisper's English normaliser; one run each",
        arguments,
        measure(arguments),
    )


if __name__ == "__main__":
    main()
