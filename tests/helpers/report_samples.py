"""Plain data that pages are made from: a run over tens of thousands of files, and a result of every benchmark. Names in it
are hostile: nobody chooses the files that a mountain of audio holds.
"""

from __future__ import annotations

import json
import random
from typing import Any

from fastscribe.report.recorder import RunRecorder
from fastscribe.types import AudioInfo, Failure, Segment, Transcript, Utterance, Word

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
MACHINE = {
    "cpu": "AMD EPYC",
    "cpu_cores": 16,
    "memory_gib": 128.0,
    "gpu": {"torch_name": "NVIDIA H200", "memory_gib": 139.0, "nvidia_smi": {"driver_version": "570.1"}},
    "versions": {"torch": "2.11.0", "triton": None},
}
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


def transcript(of: Utterance, confidences: tuple[float, ...] = ()) -> Transcript:
    words = tuple(Word("x", 0.0, 1.0, confidence) for confidence in confidences)
    return Transcript(of.audio, "x", (Segment("x", 0.0, 1.0, 1.0, words),), ())


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
        recorder.batch(rows, frames)
        for row in rows:
            if rng.random() < 0.01:
                recorder.result(failure(row, HOSTILE[files % len(HOSTILE)]))
                failed += 1
            else:
                recorder.result(transcript(row, tuple(rng.betavariate(9, 1.2) for _ in range(5))))
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
        "frame_s": _FRAME_S,
        "report": report,
        "recorded": recorder.data(),
    }
    return json.loads(json.dumps(made))


def document(name: str, case_keys: list[str], rows: list[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    made = {
        "benchmark": name, "fastscribe": "0.1.0", "date": "2026-11-21", "command": f"fastscribe bench {name}",
        "device": "cuda", "case_keys": case_keys, **settings, "rows": rows, "machine": MACHINE,
    }  # fmt: skip
    return json.loads(json.dumps(made))


def throughput() -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for dtype, faster in (("bf16", 1.0), ("fp8", 1.25)):
        for frames, full in ((5000, 0.7), (20_000, 0.93), ("auto", 1.0)):
            rtfx = 4100 * faster * full
            rows.append({
                "model": "parakeet-tdt-0.6b", "dtype": dtype, "batch_frames": frames,
                "rtfx": rtfx, "rtfx_runs": [0.97 * rtfx, rtfx, 1.04 * rtfx], "memory_rtfx": 1.1 * rtfx,
                "ceiling_rtfx": 7000 * faster, "ceiling_reached_share": rtfx / 7000 / faster, "padding_share": 0.04 * full,
                "features_share": 0.06, "encode_share": 0.7, "decode_share": 0.25, "text_share": 0.07,
                "peak_bytes": int(9e9 * full), "usd_per_1000_audio_hours": 3500 / rtfx, "price_source": HOSTILE[0],
            })  # fmt: skip
    rows.append({"model": HOSTILE[0], "dtype": "fp32", "batch_frames": "auto", "error": HOSTILE[1]})
    return document(
        "throughput", ["model", "dtype", "batch_frames"], rows, model="parakeet-tdt-0.6b", statistic="median"
    )


def latency() -> dict[str, Any]:
    rows = []
    for duration_s in (2.0, 7.0, 16.7):
        for batch_size in (1, 2, 4, 8, 16):
            for dtype, slower in (("fp32", 2.0), ("bf16", 1.0)):
                ms = slower * (4 + duration_s * 0.12 * batch_size**0.8)
                rows.append({
                    "model": "m", "dtype": dtype, "batch_size": batch_size, "duration_s": duration_s, "average_ms": 1.02 * ms,
                    "p50_ms": ms, "p90_ms": 1.08 * ms, "p95_ms": 1.2 * ms, "p99_ms": None if batch_size == 16 else 1.5 * ms,
                    "min_ms": 0.9 * ms, "sequences_per_s": 1000 * batch_size / ms, "rtfx": 1000 * batch_size * duration_s / ms,
                    "speedup_ratio": 2.0 if dtype == "bf16" else None, "peak_bytes": int(1e9 * slower),
                })  # fmt: skip
    return document("latency", ["model", "dtype", "batch_size", "duration_s"], rows, iterations=500)


def decoder() -> dict[str, Any]:
    rows = [
        {"model": "m", "mode": mode, "batch_size": batch_size, "steps": 40, "us_per_step": us, "ms": 0.04 * us}
        for batch_size in (1, 8, 32)
        for mode, us in (("greedy", 900.0), ("windowed", 66.0), ("full", 30.0))
    ]
    return document("decoder", ["model", "mode", "batch_size"], rows)


def train() -> dict[str, Any]:
    rows = [
        {"ranks": 1, "batch_size": size, "dtype": dtype, "sequence_s": 16.7, "step_ms": 30 * size * slower,
         "sequences_per_s": 33 / slower, "scaling_efficiency": None, "peak_gpu_bytes": int(8e8 * size * slower)}
        for dtype, slower in (("fp32", 1.8), ("bf16", 1.0))
        for size in (1, 2, 4, 8, 16)
    ]  # fmt: skip
    return document("train", ["ranks", "batch_size", "dtype", "sequence_s"], rows, model="m")


def loss() -> dict[str, Any]:
    rows = [
        {"form": form, "library": "fastscribe", "backend": "numba", "dtype": dtype, "batch_size": 4, "num_frames": 200,
         "num_labels": labels, "num_tokens": tokens, "formula_bytes": 900 * labels * tokens,
         "peak_bytes": 1000 * labels * tokens, "ms": labels * tokens / 1000}
        for form in ("logits", "joint")
        for dtype in ("fp32", "bf16")
        for tokens in (28, 1024)
        for labels in (100, 150, 200)
    ]  # fmt: skip
    keys = ["form", "library", "backend", "dtype", "batch_size", "num_frames", "num_labels", "num_tokens"]
    return document("loss", keys, rows, headline={"shape": {"batch_size": 1024}, "formula_bytes": 6 * 10**9})


def against() -> dict[str, Any]:
    rows = [
        {"side": "fastscribe", "dtype": "fp32", "batch_size": None, "rtfx": 434.0, "rtfx_runs": [420.0, 434.0, 450.0],
         "peer_best_batch_size": 16, "speedup_ratio": 2.41, "equal_texts_share": 0.975},
        {"side": "nemo", "dtype": "fp32", "batch_size": 4, "rtfx": 149.0, "rtfx_runs": [140.0, 149.0, 155.0]},
        {"side": "nemo", "dtype": "fp32", "batch_size": 16, "rtfx": 180.0, "rtfx_runs": [170.0, 180.0, 190.0]},
    ]  # fmt: skip
    return document("against", ["side", "dtype", "batch_size"], rows, peer="nemo")


def leaderboard() -> dict[str, Any]:
    rows = [
        {"dataset": name, "files": 100, "rtfx": rtfx, "wer_percent": wer, "result_file": HOSTILE[0]}
        for name, rtfx, wer in (
            ("ami", 4000.0, 11.2),
            ("librispeech test-clean", 4500.0, 1.9),
            (HOSTILE[5], 4100.0, 2.0),
        )
    ]
    return document("leaderboard", ["dataset"], rows, dtype="bf16")


def unknown() -> dict[str, Any]:
    """A benchmark that is unknown to the page."""
    rows = [{"thing": HOSTILE[0], "weird": 1}, {"thing": "b", "weird": None}, {"thing": "c", "weird": float("nan")}]
    return document(HOSTILE[2], ["thing"], rows, notes=[{"a": 1, "b": HOSTILE[1]}])


DOCUMENTS = (throughput, latency, decoder, train, loss, against, leaderboard, unknown)
