"""Real containers for tests, encoded with PyAV's own libraries."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

CLICK_S = 1.234
_BLOCK = 960  # samples that an encoder gets at a time


def signal(seconds: float, rate: int, gain: float = 1.0) -> np.ndarray:
    """Rising tones, so that no two moments are alike, and a click at CLICK_S that is ten times as loud. [S] float32."""
    time_s = np.arange(int(seconds * rate)) / rate
    tones = sum(np.sin(2 * np.pi * (base * time_s + 40 * time_s**2 / (1 + time_s / 10))) for base in (200, 330))
    samples = 0.02 * tones
    click = int(CLICK_S * rate)
    samples[click : click + rate // 200] = 0.8 * np.sin(2 * np.pi * 1000 * time_s[: rate // 200])
    return (gain * samples).astype(np.float32)


def encode(
    path: Path,
    codec: str,
    rate: int,
    channels: int = 1,
    seconds: float = 3.0,
    gains: tuple[float, ...] = (1.0,),
    starts_s: tuple[float, ...] = (0.0,),
    gap_s: float = 0.0,
    options: Mapping[str, str] | None = None,
    format: str | None = None,
    samples: np.ndarray | None = None,
) -> Path:
    """Encode signal(), or the samples given, into a container.

    Args:
        path: the file to make; its extension names the container.
        codec: FFmpeg's name of the encoder.
        rate: sample rate in Hz.
        channels: 1 or 2, all alike.
        seconds: length of the signal.
        gains: one for each track.
        starts_s: where each track starts.
        gap_s: timestamps jump by this much after the second second.
        options: of the container.
        format: the container, where the extension does not name it.
        samples: [S] float32 at `rate`, instead of signal().
    """
    layout = "stereo" if channels == 2 else "mono"
    with av.open(str(path), "w", format=format, options=dict(options or {})) as container:
        rates = {"bit_rate": 64_000} if codec.startswith("wma") else {"bit_rate": 6_300} if codec == "g723_1" else {}
        streams = [container.add_stream(codec, rate=rate, layout=layout, **rates) for _ in gains]
        packets = []
        for stream, gain, start_s in zip(streams, gains, starts_s, strict=True):
            mono = signal(seconds, rate, gain) if samples is None else samples * np.float32(gain)
            samples_CS = np.repeat(mono[None], channels, axis=0)
            for at in range(0, samples_CS.shape[1], _BLOCK):
                block = np.ascontiguousarray(samples_CS[:, at : at + _BLOCK])
                frame = av.AudioFrame.from_ndarray(block, "fltp", layout)
                frame.sample_rate, frame.pts, frame.time_base = rate, at, Fraction(1, rate)
                packets += [(stream, start_s, packet) for packet in stream.encode(frame)]
            packets += [(stream, start_s, packet) for packet in stream.encode(None)]
        for _, start_s, packet in packets:
            time_s = packet.pts * packet.time_base
            shift = round((start_s + (gap_s if time_s >= 2 else 0.0)) / packet.time_base)
            packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
        for _, _, packet in sorted(packets, key=lambda item: item[2].pts * item[2].time_base):
            container.mux(packet)
    return path


def encode_video(path: Path) -> Path:
    """Encode two seconds of a black picture without sound."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for _ in range(20):
            frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path
