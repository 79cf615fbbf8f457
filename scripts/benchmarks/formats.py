"""How fast recordings of each format are opened and decoded, by libsndfile and by FFmpeg's libraries (PyAV).

    python -m scripts.benchmarks.formats [OUT.json] [--files 20] [--seconds 60] [--repeats 3]

Makes files of one recording in a temporary folder, encoded by PyAV or libsndfile at the format's usual rate, and reads each
of them whole into memory at 16,000 Hz with one thread. `probe_us` is the time to open a file and measure its length,
`files_per_s` and `audio_s_per_s` cover probe, decoding and resampling. Where both libraries read a format, `reader` tells
them apart; a run takes libsndfile for those. Times are the best of `--repeats`. Files are in the page cache.

Progress goes to stderr; the last line of stdout is the JSON document.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import soundfile

from fastscribe.audio.containers import track_header
from fastscribe.audio.media import LocalFile
from fastscribe.audio.probe import probe
from fastscribe.audio.read import read
from fastscribe.types import AudioInfo, Float32Array, Source

SAMPLE_RATE = 16_000
# extension: encoder, rate, channels; libsndfile makes those whose encoder is None.
FORMATS: dict[str, tuple[str | None, int, int]] = {
    "wav": (None, 16_000, 1),
    "flac": (None, 16_000, 1),
    "mp3": (None, 44_100, 2),
    "ogg": (None, 44_100, 2),
    "opus": (None, 48_000, 1),
    "m4a": ("aac", 44_100, 2),
    "mp4": ("aac", 48_000, 2),
    "mkv": ("aac", 48_000, 2),
    "webm": ("libopus", 48_000, 1),
    "aac": ("aac", 44_100, 2),
    "wma": ("wmav2", 44_100, 2),
    "amr": ("libopencore_amrnb", 8_000, 1),
}
BOTH = ("flac", "mp3", "opus")  # FFmpeg reads WAV and the rest too, but a run never asks it to

Reader = Literal["libsndfile", "FFmpeg"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", metavar="OUT.json")
    parser.add_argument("--files", type=int, default=20, help="files of each format")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the recording")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for extension, (codec, rate, channels) in FORMATS.items():
            path = Path(folder) / f"a.{extension}"
            _write(path, codec, rate, channels, asked.seconds)
            paths = [path.with_name(f"{number}.{extension}") for number in range(asked.files)]
            for copy in paths:
                copy.write_bytes(path.read_bytes())
            readers: tuple[Reader, ...] = ("FFmpeg",) if codec is not None else ("libsndfile",)
            for reader in (*readers, "FFmpeg") if extension in BOTH else readers:
                measured = _measure(paths, reader, asked.repeats)
                results.append({"format": extension, "rate": rate, "channels": channels, "reader": reader, **measured})
                print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    document = {"machine": platform.processor() or platform.machine(), "seconds": asked.seconds, "formats": results}
    if asked.out is not None:
        asked.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document))


def _write(path: Path, codec: str | None, rate: int, channels: int, seconds: float) -> None:
    """Write noise that grows and fades three times a second, like syllables."""
    time_s = np.arange(int(seconds * rate)) / rate
    noise = np.random.default_rng(0).normal(0, 0.05, len(time_s)) * (1 + np.sin(6 * np.pi * time_s))
    samples_CS = np.repeat(noise.astype(np.float32)[None], channels, axis=0)
    if codec is None:
        kind = {"format": "OGG", "subtype": "OPUS"} if path.suffix == ".opus" else {}
        soundfile.write(path, samples_CS.T, rate, **kind)
        return
    _encode(path, codec, rate, samples_CS)


def _encode(path: Path, codec: str, rate: int, samples_CS: Float32Array) -> None:
    import av
    from av.audio.stream import AudioStream

    layout = "stereo" if len(samples_CS) == 2 else "mono"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        assert isinstance(stream, AudioStream)
        if codec == "wmav2":
            stream.codec_context.bit_rate = 64_000
        for at in range(0, samples_CS.shape[1], rate):
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples_CS[:, at : at + rate]), "fltp", layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, at, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def _measure(paths: Sequence[Path], reader: Reader, repeats: int) -> dict[str, Any]:
    probe_s, total_s, audio_s = [], [], 0.0
    for _ in range(repeats + 1):  # the first fills the caches
        start = perf_counter()
        opened = [_probe(path, reader) for path in paths]
        probe_s.append(perf_counter() - start)
        for audio in opened:
            read(audio, 0, audio.num_samples, sample_rate=SAMPLE_RATE)
        total_s.append(perf_counter() - start)
        audio_s = sum(audio.duration_s for audio in opened)
    best_s = min(total_s[1:])
    return {
        "probe_us": round(min(probe_s[1:]) / len(paths) * 1e6, 1),
        "files_per_s": round(len(paths) / best_s, 1),
        "audio_s_per_s": round(audio_s / best_s, 1),
    }


def _probe(path: Path, reader: Reader) -> AudioInfo:
    """Probe as a run does, or with FFmpeg's libraries where a run takes libsndfile."""
    name = str(path)
    if reader == "FFmpeg" and path.suffix[1:] in BOTH:
        header = track_header(LocalFile(name), 0)
        return AudioInfo(name, name, header.sample_rate, header.channels, header.num_samples, track=0)
    audio = probe(Source(name, name, name))
    assert (audio.track is None) == (reader == "libsndfile")
    return replace(audio, file=name)


if __name__ == "__main__":
    main()
