"""Make recordings without speech, of which the packaged model is to write nothing (train_default_model.py).

Steady and wavering noise, hum and other tones, breath and clicks, the room of real recordings, near-digital silence, and music
and effects of a General MIDI sound font, which `fluidsynth` plays (Debian: fluidsynth, fluid-soundfont-gm).
"""

from __future__ import annotations

import json
import random
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import soundfile

from fastscribe.segmentation.loudness import FRAME_S
from fastscribe.types import Float32Array

RATE = 16_000
LENGTH_S = (0.4, 14.0)
LEVEL_DB = (-55.0, -8.0)  # root mean square, of full scale
# How often each kind comes.
SHARES = {"noise": 4, "music": 5, "effect": 2, "hum": 2, "breath": 2, "clicks": 1, "room": 3, "near_silence": 1}
_SCALES = ((0, 2, 4, 5, 7, 9, 11), (0, 2, 3, 5, 7, 8, 10), (0, 2, 4, 7, 9))
_EFFECTS = range(120, 128)  # of General MIDI: fret noise, breath, seashore, bird, telephone, helicopter, applause, shot
_DRUMS = 9  # their channel

Make = Callable[[int, np.random.Generator], Float32Array]


def write_sounds(out: Path, hours: float, sound_font: Path, rooms: Sequence[Path], seed: int = 0) -> Path:
    """Write recordings without speech (FLAC, 16 kHz) and their manifest, OUT/manifest.jsonl, without texts.

    Args:
        out: folder for the recordings.
        hours: of audio to write.
        sound_font: SF2 file of General MIDI.
        rooms: recordings of speech, mono, of 16 kHz, whose quietest parts are repeated.
        seed: the same seed gives the same recordings.

    Returns:
        The path of the manifest.
    """
    out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    kinds, left_s = [], 3600 * hours
    while left_s > 0:
        kinds.append((rng.choices(list(SHARES), list(SHARES.values()))[0], rng.uniform(*LENGTH_S)))
        left_s -= kinds[-1][1]

    def write(numbered: tuple[int, tuple[str, float]]) -> dict[str, object]:
        number, (kind, length_s) = numbered
        path = out / f"{number:05d}-{kind}.flac"
        generator = np.random.default_rng((seed, number))
        samples_S = _made(kind, int(length_s * RATE), generator, sound_font, rooms)
        soundfile.write(path, np.clip(samples_S, -1, 1), RATE, subtype="PCM_16")
        return {"audio_filepath": path.name, "duration": len(samples_S) / RATE}

    with ThreadPoolExecutor() as pool:
        lines = [json.dumps(row) + "\n" for row in pool.map(write, enumerate(kinds))]
    # Last, so that a manifest means that no recording is missing:
    (out / "manifest.jsonl").write_text("".join(lines), encoding="utf-8")
    return (out / "manifest.jsonl").resolve()


def _made(kind: str, length: int, rng: np.random.Generator, sound_font: Path, rooms: Sequence[Path]) -> Float32Array:
    if kind == "near_silence":
        return (rng.integers(-1, 2, length) / 32768 * rng.integers(0, 3)).astype(np.float32)
    makers: dict[str, Make] = {
        "noise": _noise,
        "hum": _hum,
        "breath": _breath,
        "clicks": _clicks,
        "music": lambda length, rng: _played(_song(length / RATE, rng), length, sound_font),
        "effect": lambda length, rng: _played(_effect(length / RATE, rng), length, sound_font),
        "room": lambda length, rng: _room(rooms[rng.integers(len(rooms))], length, rng),
    }
    samples_S = makers[kind](length, rng)
    if rng.random() < 0.25:  # with noise behind it
        samples_S = _at_level(samples_S, 0.0) + _at_level(_noise(length, rng), rng.uniform(-40, -6))
    return np.asarray(_at_level(samples_S, rng.uniform(*LEVEL_DB)), np.float32)


def _at_level(samples_S: Float32Array, level_db: float) -> Float32Array:
    deviation = float(np.sqrt(np.mean(np.square(samples_S, dtype=np.float64))))
    return np.asarray(samples_S * (10 ** (level_db / 20) / max(deviation, 1e-9)), np.float32)


def _noise(length: int, rng: np.random.Generator) -> Float32Array:
    """White to brown, sometimes of a band, sometimes wavering as wind and traffic do."""
    spectrum = np.fft.rfft(rng.standard_normal(length))
    hertz = np.maximum(np.fft.rfftfreq(length, 1 / RATE), 20.0)
    spectrum *= hertz ** -rng.choice((0.0, 0.25, 0.5, 1.0))
    if rng.random() < 0.4:
        low, high = sorted(np.exp(rng.uniform(np.log(60), np.log(7500), 2)))
        spectrum *= 1 / (1 + (low / hertz) ** 4) / (1 + (hertz / high) ** 4)
    samples_S = np.fft.irfft(spectrum, length)
    return samples_S * _wavering(length, rng) if rng.random() < 0.5 else samples_S


def _wavering(length: int, rng: np.random.Generator) -> Float32Array:
    knots = rng.uniform(-12, 6, 2 + int(length / RATE * rng.uniform(0.5, 8)))
    return np.asarray(10 ** (np.interp(np.linspace(0, len(knots) - 1, length), np.arange(len(knots)), knots) / 20))


def _hum(length: int, rng: np.random.Generator) -> Float32Array:
    """Mains hum, dial tones, beeps and sweeps."""
    times_S = np.arange(length) / RATE
    kind = rng.integers(4)
    if kind == 0:
        base = rng.choice((50.0, 60.0))
        return np.asarray(
            sum(
                rng.uniform(0, 1) / k * np.sin(2 * np.pi * base * k * times_S + rng.uniform(0, 6)) for k in range(1, 12)
            )
        )
    tones = np.exp(rng.uniform(np.log(120), np.log(3500), rng.integers(1, 4)))
    if kind == 1:
        end = rng.uniform(0.3, 3) * tones[0]
        return np.sin(2 * np.pi * (tones[0] + (end - tones[0]) * times_S / (2 * times_S[-1] + 1e-3)) * times_S)
    samples_S = np.asarray(sum(np.sin(2 * np.pi * tone * times_S) for tone in tones))
    period, share = rng.uniform(0.1, 3.0), rng.uniform(0.2, 0.9)
    return samples_S * (times_S % period < share * period) if kind == 2 else samples_S


def _bursts(length: int, rng: np.random.Generator, every_s: float, burst: Callable[[], Float32Array]) -> Float32Array:
    """Bursts at random times, over faint noise."""
    samples_S = 10 ** rng.uniform(-4, -2) * rng.standard_normal(length)
    at = int(rng.uniform(0, every_s) * RATE)
    while at < length:
        one = burst()[: length - at]
        samples_S[at : at + len(one)] += one
        at += len(one) + int(rng.exponential(every_s) * RATE)
    return samples_S


def _breath(length: int, rng: np.random.Generator) -> Float32Array:
    def burst() -> Float32Array:
        count = int(rng.uniform(0.25, 1.5) * RATE)
        hertz = np.maximum(np.fft.rfftfreq(count, 1 / RATE), 20.0)
        shape = sum(1 / (1 + ((hertz - rng.uniform(300, 5000)) / rng.uniform(200, 1500)) ** 2) for _ in range(3))
        air = np.fft.irfft(np.fft.rfft(rng.standard_normal(count)) * shape, count)
        return air * np.sin(np.pi * np.linspace(0, 1, count) ** rng.uniform(0.4, 2)) * rng.uniform(0.05, 0.5)

    return _bursts(length, rng, rng.uniform(0.3, 2.5), burst)


def _clicks(length: int, rng: np.random.Generator) -> Float32Array:
    def burst() -> Float32Array:
        count = int(rng.uniform(0.002, 0.08) * RATE)
        ring = np.sin(2 * np.pi * rng.uniform(200, 6000) * np.arange(count) / RATE) + rng.standard_normal(count)
        return ring * np.exp(-np.arange(count) / count * rng.uniform(3, 9)) * rng.uniform(0.1, 1)

    return _bursts(length, rng, rng.uniform(0.08, 1.0), burst)


def _room(path: Path, length: int, rng: np.random.Generator) -> Float32Array:
    """The quietest fifth of a recording's frames in other order, faded into each other."""
    samples_S, _ = soundfile.read(path, dtype="float32")
    frame = round(4 * FRAME_S * RATE)
    frames = samples_S[: len(samples_S) // frame * frame].reshape(-1, frame)
    quiet = frames[np.argsort(frames.var(axis=1))[: max(2, len(frames) // 5)]]
    fade = np.sqrt(0.5 - 0.5 * np.cos(2 * np.pi * (np.arange(frame) + 0.5) / frame))
    room_S = np.zeros(length + 2 * frame, np.float32)
    for at in range(0, length + frame, frame // 2):
        room_S[at : at + frame] += quiet[rng.integers(len(quiet))] * fade
    return room_S[frame : frame + length]


def _song(length_s: float, rng: np.random.Generator) -> bytes:
    """Chords, a melody, a bass and sometimes drums, as a MIDI file."""
    scale, root = _SCALES[rng.integers(len(_SCALES))], int(rng.integers(40, 60))
    beat_s = rng.uniform(0.25, 0.9)
    parts = [part for part in ("melody", "chords", "bass", "drums") if rng.random() < 0.65] or ["melody"]
    events: list[tuple[float, bytes]] = []

    def note(channel: int, pitch: int, at_s: float, for_s: float) -> None:
        pitch = int(np.clip(pitch, 20, 108))
        events.append((at_s, bytes([0x90 | channel, pitch, int(rng.integers(50, 120))])))
        events.append((at_s + for_s, bytes([0x80 | channel, pitch, 0])))

    for channel in range(3):
        events.append((0.0, bytes([0xC0 | channel, int(rng.integers(0, 112))])))
    degree = int(rng.integers(len(scale)))
    for beat in range(int(length_s / beat_s) + 1):
        at_s = beat * beat_s
        if beat % 4 == 0:
            degree = int(rng.integers(len(scale)))
        if "chords" in parts and beat % 4 == 0:
            for third in (0, 2, 4):
                octave, step = divmod(degree + third, len(scale))
                note(0, root + 12 * octave + scale[step], at_s, 4 * beat_s)
        if "bass" in parts and beat % 2 == 0:
            note(1, root - 12 + scale[degree], at_s, beat_s)
        for half in range(2) if "melody" in parts else ():
            if rng.random() < 0.6:
                note(2, root + 12 + scale[rng.integers(len(scale))], at_s + half * beat_s / 2, beat_s / 2)
        for half in range(2) if "drums" in parts else ():
            note(_DRUMS, int(rng.choice((35, 38, 42, 46))), at_s + half * beat_s / 2, 0.1)
    return _midi(events)


def _effect(length_s: float, rng: np.random.Generator) -> bytes:
    events: list[tuple[float, bytes]] = [(0.0, bytes([0xC0, int(rng.choice(list(_EFFECTS)))]))]
    at_s = 0.0
    while at_s < length_s:
        pitch, for_s = int(rng.integers(40, 85)), float(rng.uniform(0.2, 4.0))
        channel = _DRUMS if rng.random() < 0.2 else 0
        events.append((at_s, bytes([0x90 | channel, pitch, int(rng.integers(60, 127))])))
        events.append((at_s + for_s, bytes([0x80 | channel, pitch, 0])))
        at_s += for_s + float(rng.exponential(0.5))
    return _midi(events)


def _midi(events: Sequence[tuple[float, bytes]]) -> bytes:
    """A MIDI file of one track; times are in seconds (a tick is a millisecond)."""
    track, now = bytearray(), 0
    for at_s, message in sorted(events):
        ticks = round(1000 * at_s) - now
        now += ticks
        digits = [ticks & 0x7F]
        while ticks := ticks >> 7:
            digits.append(0x80 | ticks & 0x7F)
        track += bytes(reversed(digits)) + message
    track += b"\x00\xff\x2f\x00"
    # 500 ticks a quarter note, which lasts 0.5 s unless a file says otherwise
    return b"MThd" + struct.pack(">IHHH", 6, 0, 1, 500) + b"MTrk" + struct.pack(">I", len(track)) + bytes(track)


def _played(midi: bytes, length: int, sound_font: Path) -> Float32Array:
    with tempfile.TemporaryDirectory() as folder:
        song, wav = Path(folder) / "song.mid", Path(folder) / "song.wav"
        song.write_bytes(midi)
        command = ["fluidsynth", "-ni", "-q", "-r", str(RATE), "-F", str(wav), str(sound_font), str(song)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        samples_SC, _ = soundfile.read(wav, dtype="float32", always_2d=True)
    mono_S = samples_SC.mean(axis=1)[:length]
    return np.pad(mono_S, (0, length - len(mono_S)))
