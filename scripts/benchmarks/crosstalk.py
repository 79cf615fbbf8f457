"""Word error rates of two-channel calls in which each voice leaks into the other's channel, by the margin of the removal.

    python -m scripts.benchmarks.crosstalk SPEECH --json docs/bench/crosstalk/cpu.json

SPEECH holds a NeMo manifest per split. Calls are made of a split's utterances, in turns: the first half of the manifest is one
party, the second half the other, with -0.5 to 1 s between them, over noise at -70 dB. Both voices leak equally (`leak_db`), and
the second channel may be recorded softer (`gain_db`). Each channel is transcribed by itself; then the words that leaked are
removed with each margin (`margin_db`, twice that for a lone word; null: none are removed). Rates are of all words of both
channels after Whisper's English normaliser, against the words of the channel's own party. `together` is the share of pairs of
unrelated words, one in each channel, whose levels differ by the margin of a lone word: of two people who say the same word at
once, so many lose one.

Tables and progress go to stderr; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from fastscribe import Transcriber, Transcript, Word
from fastscribe._system.standard_streams import log_to_stderr
from fastscribe.audio.probe import probe
from fastscribe.checkpoint.location import locate
from fastscribe.evaluation.scores import Pair, evaluate, normalizer
from fastscribe.segmentation.loudness import FRAME_S, frame_energy, frame_length
from fastscribe.speakers import crosstalk
from fastscribe.speakers.crosstalk import Levels, find_shared
from fastscribe.speakers.merge_channels import without_words
from fastscribe.types import Float32Array, Source
from scripts.benchmarks.gap_recovery import DECODERS, RATE, counts, parser_of, publish, read_split

LEAKS_DB = (None, -30.0, -20.0, -15.0, -10.0, -6.0)
MARGINS_DB = (2.0, 3.0, 4.0, 6.0)
GAINS_DB = (0.0, -12.0)
PAUSE_S = (-0.5, 1.0)
CALL_S = 60.0
NOISE = 10 ** (-70 / 20)
PAIRS = 2000
SEED = 20_261_123

Call = tuple[list[Float32Array], list[str]]  # samples and text of each party


def make_calls(clips: Sequence[tuple[Float32Array, str]]) -> list[Call]:
    """Return calls of about CALL_S, of all clips."""
    random = np.random.default_rng(SEED)
    half, calls = len(clips) // 2, []
    turns = [clip for pair in zip(clips[:half], clips[half:], strict=False) for clip in pair]
    while turns:
        at_s, placed = 0.0, []
        while turns and at_s < CALL_S:
            samples, text = turns.pop(0)
            placed.append((at_s, samples, text))
            at_s = max(0.0, at_s + len(samples) / RATE + random.uniform(*PAUSE_S))
        length = max(round(begin_s * RATE) + len(samples) for begin_s, samples, _ in placed)
        parties: list[Float32Array] = [np.zeros(length, np.float32) for _ in range(2)]
        for number, (begin_s, samples, _) in enumerate(placed):
            begin = round(begin_s * RATE)
            parties[number % 2][begin : begin + len(samples)] += samples
        calls.append((parties, [" ".join(text for _, _, text in placed[party::2]) for party in range(2)]))
    return calls


def write(calls: Sequence[Call], folder: Path, leak_db: float | None, gain_db: float) -> list[list[Path]]:
    """Write each channel of each call as a file."""
    factor = 0.0 if leak_db is None else 10 ** (leak_db / 20)
    random, found = np.random.default_rng(SEED), []
    for number, (parties, _) in enumerate(calls):
        paths = []
        for party in range(2):
            samples = parties[party] + factor * parties[1 - party] + random.normal(0, NOISE, len(parties[0]))
            path = folder / f"{number:03d}-{party}.wav"
            soundfile.write(path, np.clip(samples * 10 ** (party * gain_db / 20), -1, 1), RATE, subtype="PCM_16")
            paths.append(path)
        found.append(paths)
    return found


def transcribe(transcriber: Transcriber, paths: Sequence[Sequence[Path]]) -> list[list[Transcript]]:
    flat = [path for pair in paths for path in pair]
    found = list(transcriber.transcribe(flat, ordered=True))
    assert all(isinstance(one, Transcript) for one in found)
    return [[found[at], found[at + 1]] for at in range(0, len(found), 2)]  # type: ignore[list-item]


def cleaned(channels: Sequence[Transcript], margin_db: float) -> list[Transcript]:
    """Return the channels of a call without what leaks."""
    words = [one.words for one in channels]
    shared = find_shared(words)
    crosstalk.MARGIN_DB, crosstalk.LONE_MARGIN_DB = margin_db, 2 * margin_db
    leaked = levels_of(channels, shared).find_leaked(shared)
    return [without_words(one, numbers) for one, numbers in zip(channels, leaked, strict=True)]


def levels_of(channels: Sequence[Transcript], shared: Sequence[crosstalk.SharedWords]) -> Levels:
    energies = []
    for one in channels:
        path = one.audio.path
        audio = probe(Source(path, path, path))
        energies.append(frame_energy(audio, frame_length(RATE)))
    return Levels(energies, FRAME_S, [one.words for one in channels], shared)


def rates(calls: Sequence[Call], found: Sequence[Sequence[Transcript]]) -> dict[str, Any]:
    normalize = normalizer("whisper-en")
    pairs = [
        Pair(normalize(text), normalize(channel.text))
        for (_, texts), channels in zip(calls, found, strict=True)
        for text, channel in zip(texts, channels, strict=True)
    ]
    return counts(evaluate(pairs).total.words)


def together(found: Sequence[Sequence[Transcript]], margin_db: float) -> float:
    """Return the share of pairs of unrelated words whose levels differ by the margin."""
    relative_db: list[float] = []
    for channels in found:
        levels = levels_of(channels, [])
        for channel, one in enumerate(channels):
            own_db = levels._own_db[channel]
            relative_db += (
                [] if own_db is None else [levels._level(channel, [_span(word)]) - own_db for word in one.words]
            )
    random = np.random.default_rng(SEED)
    first, second = random.choice(relative_db, (2, PAIRS))
    return round(float(np.mean(np.abs(first - second) >= 2 * margin_db)), 4)


def _span(word: Word) -> tuple[float, float]:
    return word.start_s, word.end_s


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    model, rows = str(locate(arguments.model, log_to_stderr)), []
    for decoder in arguments.decoders:
        options = replace(DECODERS[decoder], recover_gaps=False)
        transcriber = Transcriber.load(model, device="cpu", dtype="fp32", options=options)
        for split in arguments.splits:
            calls = make_calls(read_split(arguments.speech / f"{split}.jsonl", arguments.max_hours))
            for leak_db in LEAKS_DB:
                for gain_db in GAINS_DB if leak_db is not None else GAINS_DB[:1]:
                    named = {"split": split, "decoder": decoder, "leak_db": leak_db, "gain_db": gain_db}
                    with tempfile.TemporaryDirectory() as folder:
                        found = transcribe(transcriber, write(calls, Path(folder), leak_db, gain_db))
                        rows.append({**named, "margin_db": None, **rates(calls, found)})
                        for margin_db in MARGINS_DB:
                            row = {**named, "margin_db": margin_db}
                            row |= rates(calls, [cleaned(channels, margin_db) for channels in found])
                            row |= {"together": together(found, margin_db)} if leak_db is None else {}
                            rows.append(row)
                    for row in rows[-1 - len(MARGINS_DB) :]:
                        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    arguments = parser_of(__doc__, list(DECODERS), ["tdt"]).parse_args()
    rows = measure(arguments)
    publish(
        "crosstalk",
        "word error rates of both channels after Whisper's English normaliser; one run each",
        arguments,
        rows,
    )


if __name__ == "__main__":
    main()
