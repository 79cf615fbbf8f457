"""Recorded noise and rooms for augmentation: which row of an epoch gets which, and their samples. augment.py mixes them.

They are drawn with an epoch's plan, so that the loader's threads read them ahead. Half of the rows with noise get a recording;
the others get what augment.py makes. All rooms are recorded.

A span of any recording is decoded here to 16-bit samples.

Shapes: S samples, L samples of a room's impulse response.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Literal, NamedTuple, get_args

import numpy as np

from fastscribe.audio.media import FilePart
from fastscribe.audio.probe import probe
from fastscribe.audio.read import read
from fastscribe.errors import AudioError
from fastscribe.training.corpus import Example, Examples
from fastscribe.training.recipe import RECORDED_SHARE, AugmentConfig
from fastscribe.types import AudioInfo, File, Float32Array, Float64Array, Int16Array, Int64Array, Source

_PURPOSE = 4  # of the random numbers; buckets.py and example_choice.py have others
_MAX_ROOM_S = 2.0  # of a room's response, from the direct sound on
_SHORTEST_S = 0.005
_UNTRIED, _READ, _LOST = range(3)  # states of a recording


Kind = Literal["noise", "room"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def probed(example: Example, offset_s: float, duration_s: float | None) -> AudioInfo:
    """Read the header of the example's recording, and cut the span (None: to the end) out of it. Raises AudioError."""
    file: File = example.path
    if example.num_bytes:
        file = FilePart(example.path, example.start, example.num_bytes)
    name = shown_name(example)
    audio = probe(Source(name, file, name, None, offset_s or None, duration_s, channel=example.channel))
    if audio.missing_channel is not None:  # another one may have other words
        raise AudioError(
            name, f"channel {audio.missing_channel} was asked for, but it has {audio.channels} (counted from 0)"
        )
    return audio


def shown_name(example: Example) -> str:
    """Return what messages call the example's recording."""
    return f"{example.path} at byte {example.start}" if example.num_bytes else example.path


def samples_of(audio: AudioInfo, sample_rate: int) -> Int16Array:
    """Return the samples [S] of what was probed. Raises AudioError."""
    samples_S = read(audio, 0, audio.num_samples, sample_rate=sample_rate)
    if samples_S.dtype == np.int16:
        return samples_S.astype(np.int16, copy=False)
    scaled_S: Float32Array = np.clip(np.rint(samples_S * 32768.0), -32768, 32767)
    return scaled_S.astype(np.int16)


@dataclass(frozen=True)
class BackgroundCorpus:
    """Recordings to augment with; None: none of the kind."""

    noise: Examples | None = None
    rooms: Examples | None = None

    def of(self, kind: Kind) -> Examples | None:
        return self.noise if kind == "noise" else self.rooms

    def size(self, kind: Kind) -> int:
        """Return the number of recordings of a kind."""
        return len(self.of(kind) or ())

    def digest(self) -> str:
        return " ".join(examples.digest() if examples is not None else "" for examples in (self.noise, self.rooms))


class BackgroundDraw(NamedTuple):
    """Of each position of an epoch: index of its noise and of its room, -1 for none; and where the noise begins, 0 to 1."""

    noise: Int64Array
    rooms: Int64Array
    begins: Float64Array


def draw_backgrounds(
    corpus: BackgroundCorpus, config: AugmentConfig, num_positions: int, epoch: int, seed: int
) -> BackgroundDraw:
    """Draw the recordings of an epoch; the arguments alone decide."""
    random = np.random.default_rng([seed, epoch, _PURPOSE])
    chosen = []
    recorded_noise_chance = RECORDED_SHARE * config.noise_chance
    for examples, chance in ((corpus.noise, recorded_noise_chance), (corpus.rooms, config.reverb_chance)):
        drawn, count = random.random(num_positions), len(examples) if examples is not None else 0
        indices = random.integers(max(1, count), size=num_positions)
        chosen.append(np.where((drawn < chance) & (count > 0), indices, -1))
    return BackgroundDraw(chosen[0], chosen[1], random.random(num_positions))


class BackgroundReader:
    """Reads the recordings of one draw. Thread-safe. One that cannot be read is reported once, and its rows do without."""

    def __init__(
        self, corpus: BackgroundCorpus, draw: BackgroundDraw, config: AugmentConfig, sample_rate: int, lost: LostFiles
    ) -> None:
        self._corpus, self._draw, self._config = corpus, draw, config
        self._sample_rate, self._lost = sample_rate, lost

    def noise(self, position: int, num_samples: int) -> Int16Array | None:
        """Return the noise [S] for a row of so many samples: as long as it is at the lowest speed. Short noise repeats."""
        index, examples = int(self._draw.noise[position]), self._corpus.noise
        if index < 0 or examples is None:
            return None
        example, wanted = examples[index], int(np.ceil(num_samples / min(self._config.speeds)))
        wanted_s = wanted / self._sample_rate
        spare_s = max(0.0, example.duration_s - wanted_s)
        begin_s = example.offset_s + float(self._draw.begins[position]) * spare_s
        noise_S = self._read("noise", index, begin_s, min(example.duration_s, wanted_s))
        return None if noise_S is None else np.resize(noise_S, wanted)

    def room(self, position: int) -> Int16Array | None:
        """Return the impulse response [L] from its direct sound on."""
        index, examples = int(self._draw.rooms[position]), self._corpus.rooms
        if index < 0 or examples is None:
            return None
        example = examples[index]
        room_L = self._read("room", index, example.offset_s, example.duration_s)
        if room_L is None:
            return None
        direct = int(np.abs(room_L.astype(np.int32)).argmax())
        return room_L[direct : direct + int(_MAX_ROOM_S * self._sample_rate)]

    def _read(self, kind: Kind, index: int, offset_s: float, duration_s: float) -> Int16Array | None:
        examples, error = self._corpus.of(kind), None
        assert examples is not None
        try:
            audio = probed(examples[index], offset_s, max(duration_s, _SHORTEST_S))
            samples_S = samples_of(audio, self._sample_rate)
        except AudioError as problem:
            error = problem
        self._lost.count(kind, index, error)
        return samples_S if error is None and samples_S.any() else None


class LostFiles:
    """Counts the recordings that were tried and could not be read. Each of these is reported once, wherever a draw begins."""

    def __init__(self, corpus: BackgroundCorpus, say: Callable[[str], None]) -> None:
        self._say, self._lock = say, Lock()
        self._corpus, self._known = corpus, set[tuple[str, int]]()
        self._states = {kind: bytearray(corpus.size(kind)) for kind in KINDS}

    def num_tried(self, kind: Kind) -> int:
        return len(self._states[kind]) - self._states[kind].count(_UNTRIED)

    def num_lost(self, kind: Kind) -> int:
        return self._states[kind].count(_LOST)

    def count(self, kind: Kind, index: int, error: AudioError | None) -> None:
        """Count a recording that was tried; `error` says why it could not be read. Callable from any thread."""
        with self._lock:
            states = self._states[kind]
            states[index] = max(states[index], _READ if error is None else _LOST)
            if error is None or (examples := self._corpus.of(kind)) is None:
                return
            recording = examples[index].path, examples[index].start
            is_known = recording in self._known
            self._known.add(recording)
        if not is_known:
            self._say(f"left out of the augmentation: {error}")
