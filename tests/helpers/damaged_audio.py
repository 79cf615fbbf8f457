"""Make thousands of damaged recordings, each from its number alone, and read them.

`damaged(number)` takes a small healthy recording (WAV, FLAC, MP3, Ogg Vorbis and Opus in several kinds) and flips bits,
sets header fields to extremes, cuts, doubles, inserts, deletes or shuffles, most often in headers. `examine` reads them
in a process of its own, with little memory and an alarm for each, because what is looked for is also the crash, the hang
and the header that asks for a hundred gigabytes. Good answers are an AudioError of one line and samples of the length
that the header promised; a recording that lost a piece may not be read as if it were whole.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile

from fastscribe.audio.ogg import checksum
from tests.conftest import AUDIO, RATE
from tests.helpers.warm_process import WARM, Limits, confine

SPEECH = AUDIO / "04_0_00070.flac"
LENGTH_S = 1.5
MEMORY_BYTES = 1 << 30  # limit for reading a file of a few kilobytes, beyond the libraries' own
PATIENCE_S = 30  # for one file, on a busy machine
TOLERANCE_S = 0.1  # as the package promises: MP3 lengths are estimates
EXTREMES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF, 2**63)


@dataclass(frozen=True)
class Base:
    """A healthy recording."""

    name: str
    content: bytes
    duration_s: float

    @property
    def extension(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class Damaged:
    number: int
    base: Base
    content: bytes
    what: str  # kinds of damage
    is_shorter: bool  # bytes were only removed

    @property
    def file_name(self) -> str:
        return f"damaged_{self.number:06d}.{self.base.extension}"


# --- healthy recordings ----------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def bases() -> tuple[Base, ...]:
    stereo = {"rate": 44_100, "channels": 2}
    wavs = (
        _written("plain.wav", subtype="PCM_16"),
        _written("stereo.wav", **stereo, subtype="PCM_16"),
        _written("float.wav", subtype="FLOAT"),
        _written("extensible.wav", **stereo, format="WAVEX", subtype="PCM_24"),
        _written("rf64.wav", format="RF64", subtype="PCM_16"),
        _written("adpcm.wav", subtype="IMA_ADPCM"),
        _written("ulaw.wav", rate=8_000, subtype="ULAW"),
    )
    flacs = (_written("plain.flac", subtype="PCM_16"), _written("stereo24.flac", **stereo, subtype="PCM_24"))
    mp3s = (
        _written("constant.mp3", bitrate_mode="CONSTANT"),
        _written("variable.mp3", **stereo, bitrate_mode="VARIABLE"),
        _stored("e11_speech.mp3"),
    )
    oggs = (_written("vorbis.ogg"), _written("stereo.ogg", **stereo), _stored("e12_speech.opus.ogg"))
    # Every format is equally frequent, whatever its number of subtypes.
    return wavs + 3 * flacs + 2 * mp3s + 2 * oggs


def _written(name: str, rate: int = RATE, channels: int = 1, **options: object) -> Base:
    speech, speech_rate = soundfile.read(SPEECH, dtype="float32")
    at = (np.arange(int(LENGTH_S * rate)) * (speech_rate / rate)).astype(int)
    extension = name.rpartition(".")[2]
    held = io.BytesIO()
    settings = {"format": extension.upper()} | options
    soundfile.write(held, np.stack([speech[at]] * channels, axis=1), rate, **settings)
    return Base(name, held.getvalue(), LENGTH_S)


def _stored(name: str) -> Base:
    return Base(name, (AUDIO / name).read_bytes(), soundfile.info(AUDIO / name).duration)


# --- damage ----------------------------------------------------------------------------------------------------------


def damaged(number: int) -> Damaged:
    """Damage chosen by the number alone."""
    rng = np.random.default_rng(number)
    base = bases()[rng.integers(len(bases()))]
    content, done = bytearray(base.content), []
    for kind in rng.choice(list(_SHARES), size=rng.choice([1, 1, 1, 2, 3]), p=list(_SHARES.values())):
        kind(content, base.extension, rng)
        done.append(kind)
    names = [f"{kind.__name__.strip('_')}" for kind in done]
    if base.extension == "ogg" and rng.random() < 0.6:  # else the damaged page is not even looked at
        _renew_checksums(content)
        names.append("checksums renewed")
    is_shorter = {_truncate, _delete}.issuperset(done)
    return Damaged(number, base, bytes(content), f"{base.name}: {', '.join(names)}", is_shorter)


def _place(content: bytearray, extension: str, rng: np.random.Generator) -> int:
    """An offset, usually in a header."""
    if len(content) < 2 or rng.random() < 0.25:
        return int(rng.integers(max(1, len(content))))
    starts = _header_places(bytes(content), extension)
    begin, length = starts[rng.integers(len(starts))] if rng.random() < 0.5 else starts[0]
    return min(begin + int(rng.integers(length)), len(content) - 1)


def _header_places(content: bytes, extension: str) -> list[tuple[int, int]]:
    """(offset, bytes) of everything but samples."""
    if extension == "wav":
        return [(0, max(12, content.find(b"data") + 8))]
    if extension == "flac":
        return [(0, 42), (0, 200), (max(0, len(content) - 50), 50)]
    magic, length = (b"OggS", 60) if extension == "ogg" else (content[:2] or b"\xff\xfb", 6)
    return [(0, 200), *((found.start(), length) for found in re.finditer(re.escape(magic), content))]


def _change_bytes(content: bytearray, extension: str, rng: np.random.Generator) -> None:
    """Flip a bit of some bytes, or set them."""
    for _ in range(rng.integers(1, 6) if content else 0):
        at = _place(content, extension, rng)
        content[at] = int(rng.choice([content[at] ^ 1 << int(rng.integers(8)), 0, 0xFF, rng.integers(256)]))


def _set_field(content: bytearray, extension: str, rng: np.random.Generator) -> None:
    """Set a number in the header to an extreme or random value."""
    fields = _fields(bytes(content), extension)
    if not fields:
        return _change_bytes(content, extension, rng)
    at, num_bytes, order = fields[rng.integers(len(fields))]
    value = EXTREMES[rng.integers(len(EXTREMES))] if rng.random() < 0.7 else int(rng.integers(2**63))
    if at + num_bytes <= len(content):
        content[at : at + num_bytes] = (value % 256**num_bytes).to_bytes(num_bytes, order)


def _set_flac_bits(content: bytearray, extension: str, rng: np.random.Generator) -> None:
    """Change rate, channels, bits a sample or the number of samples, which are not whole bytes."""
    if extension != "flac" or len(content) < 26:
        return _set_field(content, extension, rng)
    shift, num_bits = ((44, 20), (41, 3), (36, 5), (0, 36))[rng.integers(4)]
    packed, limit = int.from_bytes(content[18:26], "big"), 1 << num_bits
    old = packed >> shift & (limit - 1)
    value = [0, 1, limit - 1, old * 2 % limit, old // 2, int(rng.integers(limit))][rng.integers(6)]
    content[18:26] = (packed & ~((limit - 1) << shift) | value << shift).to_bytes(8, "big")


def _truncate(content: bytearray, extension: str, rng: np.random.Generator) -> None:
    del content[_place(content, extension, rng) if rng.random() < 0.3 else int(rng.integers(len(content) + 1)) :]


def _delete(content: bytearray, extension: str, rng: np.random.Generator) -> None:
    at = _place(content, extension, rng)
    del content[at : at + _size(rng)]


def _replace(content: bytearray, extension: str, rng: np.random.Generator) -> None:
    """Double a piece, insert zeros or random bytes before it, or overwrite it."""
    at, size = _place(content, extension, rng), _size(rng)
    old = bytes(content[at : at + size])
    choices = (old + old, bytes(size) + old, rng.bytes(size) + old, rng.bytes(len(old)))
    content[at : at + size] = choices[rng.integers(len(choices))]


def _size(rng: np.random.Generator) -> int:
    return int(2 ** rng.uniform(0, 13))


def _swap(content: bytearray, extension: str, rng: np.random.Generator) -> None:
    """Swap two neighbouring pieces: RIFF chunks, Ogg pages, MP3 frames or others."""
    chunks = {found for name in _FIELDS if extension == "wav" and (found := content.find(name)) >= 0}
    starts = sorted(chunks.union(at for at, _ in _header_places(bytes(content), extension)))
    if len(starts) < 3:
        starts = sorted(rng.integers(len(content) + 1, size=3))
    first = int(rng.integers(len(starts) - 2))
    a, b, c = starts[first : first + 3]
    content[a:c] = content[b:c] + content[a:b]


_SHARES = {
    **{_change_bytes: 0.23, _set_field: 0.25, _set_flac_bits: 0.1},
    **{_truncate: 0.14, _delete: 0.1, _replace: 0.14, _swap: 0.04},
}
# Offset and size of numbers that follow a name.
_FIELDS = {
    b"fmt ": ((4, 4), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2), (22, 2), (24, 2), (26, 2)),
    b"data": ((4, 4),),
    b"fact": ((4, 4), (8, 4)),
    b"ds64": ((4, 4), (8, 8), (16, 8), (24, 8), (32, 4)),
    b"PEAK": ((4, 4),),
    b"\x01vorbis": ((7, 4), (11, 1), (12, 4), (16, 4), (20, 4), (24, 4), (28, 1)),
    b"\x03vorbis": ((7, 4),),
    b"OpusHead": ((8, 1), (9, 1), (10, 2), (12, 4), (16, 2), (18, 1)),
}


def _fields(content: bytes, extension: str) -> list[tuple[int, int, Literal["little", "big"]]]:
    """(offset, bytes, byte order) of numbers in headers."""
    if extension == "flac":
        return [(at, size, "big") for at, size in ((4, 1), (5, 3), (8, 2), (10, 2), (12, 3), (15, 3), (42, 4), (46, 4))]
    if extension == "mp3":
        at = max(content.find(b"Xing"), content.find(b"Info"))
        return [
            (place, size, "big") for place, size in ((at + 4, 4), (at + 8, 4), (at + 12, 4), (1, 1), (2, 1)) if at > 0
        ]
    named = [
        (begin + at, size)
        for name, places in _FIELDS.items()
        if (begin := content.find(name)) >= 0
        for at, size in places
    ]
    if extension == "wav":
        found = [(4, 4), *named]
    else:  # of each page; as often as one of those, a number that says how to decode
        pages = [begin for begin, _ in _header_places(content, extension)[1:]]
        found = [
            (begin + at, size) for begin in pages for at, size in ((5, 1), (6, 8), (14, 4), (18, 4), (26, 1))
        ] + 8 * named
    return [(at, size, "little") for at, size in found]


def _renew_checksums(content: bytearray) -> None:
    at = content.find(b"OggS")
    while at >= 0:
        segments = content[at + 26] if at + 27 <= len(content) else 0
        end = at + 27 + segments + sum(content[at + 27 : at + 27 + segments])
        if end > len(content):
            return
        content[at + 22 : at + 26] = bytes(4)
        content[at + 22 : at + 26] = checksum(bytes(content[at:end])).to_bytes(4, "little")
        at = content.find(b"OggS", end)


# --- what becomes of them --------------------------------------------------------------------------------------------


@dataclass
class Examined:
    tried: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)  # with the number that makes the file again


_READ = """
import sys
from tests.helpers.damaged_audio import read_all
read_all(*map(int, sys.argv[1:]))
"""


def examine(first: int, count: int) -> Examined:
    """Read `count` damaged files. If the process dies or hangs, its file is a problem, and a new process goes on."""
    found, at, end = Examined(), first, first + count
    while at < end:
        done = WARM.python(_READ, at, end - at, PATIENCE_S, timeout_s=PATIENCE_S * (end - at))
        lines = list(map(json.loads, done.stdout.splitlines()))
        if len(lines) < end - at:
            lines.append(("hang" if done.returncode == -signal.SIGALRM else "crash", f"exit code {done.returncode}"))
        for outcome, detail in lines:
            found.tried += 1
            found.outcomes[outcome] += 1
            if outcome not in ("read", "refused"):
                found.problems.append(f"{at} ({damaged(at).what}): {outcome}: {detail}")
            at += 1
    return found


def read_all(first: int, count: int, patience_s: int) -> None:
    """Read the files in this process, and print the outcome of each. An alarm ends a process that hangs."""
    import fastscribe.audio.probe  # before memory is limited
    import fastscribe.audio.read  # noqa: F401

    bases()
    confine(Limits(MEMORY_BYTES, MEMORY_BYTES, 0))
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, first + count):
            signal.alarm(patience_s)
            _die_or_hang_if_asked(number)
            item = damaged(number)
            path = Path(folder) / item.file_name
            path.write_bytes(item.content)
            print(json.dumps(_outcome(path, item)), flush=True)
            path.unlink()


def _die_or_hang_if_asked(number: int) -> None:
    """Simulate a crash and a hang, to test that both are detected."""
    if os.environ.get("DAMAGED_AUDIO_DIES_AT") == str(number):
        os.kill(os.getpid(), signal.SIGSEGV)
    if os.environ.get("DAMAGED_AUDIO_HANGS_AT") == str(number):
        time.sleep(1000)


def _outcome(path: Path, item: Damaged) -> tuple[str, str]:
    from fastscribe.audio.probe import probe
    from fastscribe.audio.read import blocks, output_length, read
    from fastscribe.errors import AudioError
    from fastscribe.types import Source

    try:
        audio = probe(Source(str(path), str(path), path.name))
        samples = read(audio, 0, audio.num_samples, sample_rate=RATE)
        in_blocks = sum(map(len, blocks(audio, 100_000)))
    except AudioError as error:
        detail = str(error)
        return ("refused" if "\n" not in detail and len(detail) < 400 else "bad message"), detail
    except BaseException as error:
        return "wrong exception", f"{type(error).__name__}: {error}"
    promised = output_length(audio.num_samples, audio.sample_rate, RATE)
    if not 0 <= promised - len(samples) <= TOLERANCE_S * RATE + 1:
        return "wrong length", f"{promised} samples promised, {len(samples)} read"
    if not 0 <= audio.num_samples - in_blocks <= TOLERANCE_S * audio.sample_rate + 1:
        return "wrong length", f"{audio.num_samples} samples promised, {in_blocks} read in blocks"
    if item.is_shorter and _tells_its_length(item) and item.base.duration_s - len(samples) / RATE > TOLERANCE_S + 0.001:
        return "silently cut", f"{item.base.duration_s:.2f} s before, {len(samples) / RATE:.2f} s now"
    return "read", f"{len(samples) / RATE:.2f} s"


def _tells_its_length(item: Damaged) -> bool:
    """Return True if the rest of the header still gives a length: an MP3's first frame; a WAV's size, unless it has become
    one that means "unknown"."""
    if item.base.extension == "mp3":
        return item.content[:2000] == item.base.content[:2000]
    size_at = item.base.content.find(b"data") + 4
    size = int.from_bytes(item.content[size_at : size_at + 4], "little")
    return item.base.extension != "wav" or item.base.name == "rf64.wav" or size < 0x7FFF0000
