"""Plain data that the page is made from: a run over tens of thousands of files. Names in it are hostile: nobody chooses the
files that a mountain of audio holds.
"""

from __future__ import annotations

import json
import random
from typing import Any

from fastscribe.report.recorder import RunRecorder
from fastscribe.types import AudioInfo, Failure, Gap, Segment, Transcript, Utterance, Word

HOSTILE = (
    "<script>console.error('ran')</script>.flac",
    "\"><img src=x onerror=console.error('ran')>.wav",
    "</title></style><h1>owned</h1>&amp;.mp3",
    "turned \u202egnp.exe and a line\nbreak\x00\x1b[31m.ogg",
    "not utf-8 \udcff\udcfe.wav",
    "a" * 400 + ".wav",
    "שלום مرحبا \u200c日本語.flac",
    "javascript:alert(1)//${7*7}{{7*7}}.wav",
)
_FRAME_S = 0.08


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def utterance(index: int, duration_s: float, path: str = "") -> Utterance:
    num_samples = round(16000 * duration_s)
    audio = AudioInfo(path or f"corpus/{index:06}.flac", str(index), 16000, 1, num_samples, index=index)
    return Utterance(audio, 0, num_samples)


def transcript(of: Utterance, confidences: tuple[float, ...] = (), gap_s: float = 0.0) -> Transcript:
    words = tuple(Word("x", 0.0, 1.0, confidence) for confidence in confidences)
    gaps = (Gap(0.0, gap_s),) if gap_s else ()
    return Transcript(of.audio, "x", (Segment("x", 0.0, 1.0, 1.0, words),), (), gaps)


def failure(of: Utterance, message: str = "cannot be read", stage: str = "load") -> Failure:
    return Failure(of.audio.path, of.audio.id, stage, "AudioError", message, index=of.audio.index)


def run(num_batches: int = 200, status: str = "finished", seed: int = 0) -> dict[str, Any]:
    """The data of a run's page."""
    rng, clock = random.Random(seed), Clock()
    recorder = RunRecorder(clock)
    files, failed, audio_s, padded, real = 0, 0, 0.0, 0, 0
    for batch in range(num_batches):
        longest = max(30, round(2000 * (1 - (batch % 64) / 66) ** 2))
        frames = [longest] + [max(1, round(longest * rng.uniform(0.8, 1))) for _ in range(12_000 // longest)]
        rows = [utterance(files + place, _FRAME_S * length) for place, length in enumerate(frames)]
        rows[0] = utterance(files, _FRAME_S * longest, f"in/{HOSTILE[batch % len(HOSTILE)]}")
        clock.now_s += rng.uniform(0.3, 0.5)
        recorder.batch(rows)
        for row in rows:
            if rng.random() < 0.01:
                recorder.result(failure(row, HOSTILE[files % len(HOSTILE)]))
                failed += 1
            else:
                gap_s = rng.uniform(0, 60) if rng.random() < 0.01 else 0.0
                recorder.result(transcript(row, tuple(rng.betavariate(9, 1.2) for _ in range(5)), gap_s))
                audio_s += row.duration_s
            files += 1
        padded += len(frames) * longest
        real += sum(frames)
    wall_s = max(recorder.elapsed_s, 0.01)
    report = {
        "files": files, "failed": failed, "skipped": 1203, "failed_before": 2,
        "totals": {"files": files + 1203, "failed": failed + 2, "audio_s": 2 * audio_s, "not_given": 0},
        "audio_s": audio_s, "load_s": 4.2, "wall_s": wall_s, "rtfx": audio_s / wall_s,
        "stage_s": {"wait_for_audio": 12.1, "write": 4.4, "copy": 3.0, "features": 11.2, "encode": 140.2, "decode": 35.0},
        "left_out": {".docx": 3, ".jpg": 1}, "gaps": 3, "gap_s": 7.2,
        "padding_share": 1 - real / padded if padded else 0.0,
        "padded_frames": padded, "real_frames": real, "peak_bytes": 11 * 2**30, "device": "NVIDIA H200", "dtype": "bf16",
        "usd_per_hour": 3.5, "price_source": "--price-per-hour", "usd_per_1000_audio_hours": 0.93,
        "devices": [
            {
                "name": f"cuda:{index}", "device": f"NVIDIA {HOSTILE[0]}", "batches": 1200 + index, "utterances": 90_123,
                "audio_s": 54_321.5, "busy_s": 91.25, "peak_bytes": 9 * 2**30, "died": index, "pinned_bytes": 0,
                "audio_share": share,
            }
            for index, share in enumerate((0.625, 0.375))
        ],
        "refused": {"triton": f"no {HOSTILE[0]}"}, "versions": {"fastscribe": "0.1.0", "torch": "2.13.0"},
    }  # fmt: skip
    made = {
        "command": f"fastscribe transcribe '{HOSTILE[0]}' --report-html page.html",
        "started": "2026-11-21 10:12:33+00:00",
        "status": status,
        "model": f"models/{HOSTILE[1]}",
        "settings": {"decoder": "tdt", "window": 20_000, "output_dir": f"out/{HOSTILE[2]}"},
        "report": report,
        "recorded": recorder.data(),
    }
    return json.loads(json.dumps(made))
