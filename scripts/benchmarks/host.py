"""The host's share of a run: the files per second that one process can feed and write if the model takes no time.

    python -m scripts.benchmarks.host [--clips 2000] [--seconds 8] [--threads N] [--kinds flac,wav,flac-44k-stereo]

The real run loop, from a folder to transcripts.jsonl, runs around an engine that gives each clip the same number of tokens.
Clips are deterministic noise with speech's spectrum and pauses: 100 different ones under `--clips` names, in a temporary
folder and so in the page cache. The first figure is the ceiling: the processor time per file of a run over clips of 10 ms,
which have almost nothing to decode. Nearly all of it is spent under Python's lock, so it bounds one process on any number of
cores. Then, for each kind of file: the stages alone in one thread, and whole runs (median after one warm-up).

With --null-device RTFX the real command runs instead, with helper processes and a device's process that takes as long as a GPU
of this speed and answers 20 words a file (null_device.py); in turns with the same command in one process:

    python -m scripts.benchmarks.host --null-device 25600 --format flac --files 2000 --turns 5

Tables go to stderr; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import soundfile

from fastscribe._system.processors import cpu_name
from fastscribe.audio.inputs import expand
from fastscribe.audio.probe import probe
from fastscribe.audio.read import read
from fastscribe.bench.machine import commit
from fastscribe.checkpoint.reader import Checkpoint, read_checkpoint
from fastscribe.config import Options, OutputStyle
from fastscribe.pipeline.loader import default_threads
from fastscribe.pipeline.model_facts import ModelFacts
from fastscribe.results.formats.writers import render
from fastscribe.results.output import open_journaled
from fastscribe.results.outputs import OutputRun
from fastscribe.text.transcript import assemble
from fastscribe.types import Batch, Float64Array, Hypothesis, Transcript, Utterance

ROOT = Path(__file__).resolve().parents[2]

DIFFERENT_CLIPS = 100
TOKENS_A_SECOND = 3.5  # of English with a vocabulary of 1,024
BATCH_FRAMES = 32_768
SHORT_S = 0.01


@dataclass(frozen=True)
class Kind:
    """A kind of file: how soundfile writes it."""

    extension: str
    rate: int = 16_000
    channels: int = 1


KINDS = {
    "flac": Kind("flac"),
    "wav": Kind("wav"),
    "mp3": Kind("mp3"),
    "mp3-44k": Kind("mp3", 44_100),
    "ogg": Kind("ogg"),
    "flac-44k-stereo": Kind("flac", 44_100, 2),
}


# --- the hook into the run: everything that knows how a run drives its model -----------------------------------------


class InstantEngine:
    """Stands in for the engine and answers each utterance with the same number of tokens."""

    max_in_flight = 0

    def __init__(self, checkpoint: Checkpoint, num_tokens: int) -> None:
        import torch

        facts = ModelFacts("none", "fp32", "tdt", 1, "full", 0.08, zero_duration_punctuation=True)
        rate, pieces = checkpoint.config.features.sample_rate, checkpoint.tokenizer.pieces
        self.recognizer = SimpleNamespace(device=torch.device("cpu"), facts=facts, sample_rate=rate)
        self.budget: object = None
        self.stopwatch: object = None
        # The model's labels that begin a word, and those that continue one.
        begins = [label for label, piece in enumerate(pieces) if piece.startswith("\u2581") and piece[1:].isalpha()]
        others = [label for label, piece in enumerate(pieces) if piece.isalpha()]
        self.answers = [answer(number, begins, others, num_tokens) for number in range(64)]

    def push(self, batch: Batch) -> Iterator[tuple[Batch, list[Hypothesis]]]:
        yield batch, [self.answers[row % 64] for row in range(len(batch.utterances))]

    def drain(self) -> Iterator[tuple[Batch, list[Hypothesis]]]:
        return iter(())

    def close(self) -> None:
        pass


def transcriber(checkpoint: Checkpoint, num_tokens: int, threads: int | None) -> Any:
    from fastscribe.pipeline.local import LocalExecutor
    from fastscribe.transcriber import Transcriber

    executor = LocalExecutor(InstantEngine(checkpoint, num_tokens))  # type: ignore[arg-type]
    return Transcriber(checkpoint, executor, Options(batch_frames=BATCH_FRAMES, threads=threads), load_s=0.0)


# ---------------------------------------------------------------------------------------------------------------------


def answer(seed: int, begins: Sequence[int], others: Sequence[int], num_tokens: int) -> Hypothesis:
    """Return words of two tokens each at an even pace, over half as long again as the mean clip, the longest there is.

    A stretch with few or no words would have its file read again, as one of a hundred short recordings of speech has.
    """
    rng = np.random.default_rng(seed)
    ids = [int(rng.choice(others if number % 2 else begins)) for number in range(num_tokens)]
    frames = (np.arange(num_tokens) / TOKENS_A_SECOND * 12.5 * 1.5).astype(int).tolist()
    logprobs = np.log(rng.uniform(0.5, 1.0, num_tokens)).tolist()
    return Hypothesis(tuple(ids), tuple(frames), (1,) * num_tokens, tuple(logprobs))


def like_speech(rng: np.random.Generator, num_samples: int, rate: int) -> Float64Array:
    """Return noise that falls by 6 dB per octave from 300 Hz, with four syllables a second, over a floor at -60 dB."""
    hertz = np.fft.rfftfreq(num_samples, 1 / rate)
    spectrum = np.fft.rfft(rng.normal(0, 1, num_samples)) / np.maximum(1, hertz / 300)
    voice = np.fft.irfft(spectrum, num_samples)
    syllables = np.maximum(0, np.sin(2 * np.pi * 4 * np.arange(num_samples) / rate + rng.uniform(0, 6)))
    speech: Float64Array = 0.1 * voice / voice.std() * syllables + 0.001 * rng.normal(0, 1, num_samples)
    return speech


def make_clips(folder: Path, kind: Kind, num_clips: int, mean_s: float) -> list[Path]:
    """Write clips with lengths spread evenly from half the mean to one and a half times it."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    paths = [folder / f"{number:06d}.{kind.extension}" for number in range(num_clips)]
    for number, path in enumerate(paths):
        if number >= DIFFERENT_CLIPS:
            os.link(paths[number % DIFFERENT_CLIPS], path)
            continue
        length = max(1, round(kind.rate * mean_s * (0.5 + number % DIFFERENT_CLIPS / DIFFERENT_CLIPS)))
        channels = [like_speech(rng, length, kind.rate) for _ in range(kind.channels)]
        soundfile.write(path, np.clip(np.stack(channels, axis=1), -1, 1), kind.rate)
    return paths


def cpu_us(call: Callable[[Any], Any], items: Iterable[Any], repeats: int = 3) -> tuple[float, list[Any]]:
    """Return the median processor time of a call in this thread, system calls included, and the results."""
    items, times = list(items), []
    for _ in range(repeats):
        start = time.thread_time()
        results = [call(item) for item in items]
        times.append((time.thread_time() - start) / len(items) * 1e6)
    return median(times), results


def stages_us(paths: list[Path], checkpoint: Checkpoint, num_tokens: int, out: Path) -> dict[str, float]:
    """Measure each stage alone in one thread, over the same files."""
    rate, answers = checkpoint.config.features.sample_rate, InstantEngine(checkpoint, num_tokens).answers
    expanded, sources = cpu_us(lambda path: next(expand([path])), map(str, paths))
    sources = [replace(source, index=index) for index, source in enumerate(sources)]
    probed, audios = cpu_us(probe, sources)
    read_us, _ = cpu_us(lambda audio: len(read(audio, 0, audio.num_samples, sample_rate=rate)), audios)

    def to_transcript(numbered: tuple[int, Any]) -> Transcript:
        number, audio = numbered
        parts = [(Utterance(audio, 0, audio.num_samples), answers[number % 64])]
        return assemble(audio, parts, checkpoint.tokenizer, checkpoint.config.frame_s, True)

    assembled, transcripts = cpu_us(to_transcript, enumerate(audios))
    rendered, _ = cpu_us(lambda transcript: render(transcript, "jsonl"), transcripts)
    with open_journaled(out, OutputRun(OutputStyle(), {})) as output:

        def write(of_one: tuple[Any, Transcript]) -> None:
            output.ledger.expect(of_one[0])
            output.ledger.is_done(of_one[0])
            output.write(of_one[1])

        written, _ = cpu_us(write, zip(sources, transcripts, strict=True))
    return {
        "expand": expanded,
        "probe": probed,
        "read": read_us,
        "assemble": assembled,
        "render": rendered,
        "write": max(0.0, written - rendered),  # write() renders, too; what the journal costs is here
    }


def run_once(run: Any, folder: Path | str, out: Path) -> tuple[float, float, float]:
    """Return wall seconds, processor seconds and seconds of audio."""
    wall, cpu, failed = time.perf_counter(), time.process_time(), 0
    with open_journaled(out, OutputRun(OutputStyle(), {})) as output:
        for result in run.results(folder, style=OutputStyle(), ledger=output.ledger):
            failed += not isinstance(result, Transcript)
            output.write(result)
    seconds = time.perf_counter() - wall, time.process_time() - cpu
    if failed:
        raise SystemExit(f"{failed} of the clips failed: see {out}")
    return *seconds, run.progress.audio_s


def measure(
    folder: Path, name: str, kind: Kind, seconds: float, checkpoint: Checkpoint, arguments: argparse.Namespace
) -> dict[str, Any]:
    num_tokens = round(arguments.seconds * TOKENS_A_SECOND)  # for short clips too: the text side is the same
    paths = make_clips(folder / name, kind, arguments.clips, seconds)
    stages = stages_us(paths[: min(len(paths), 500)], checkpoint, num_tokens, folder / f"{name}-stages")
    run = transcriber(checkpoint, num_tokens, arguments.threads)
    turns = [run_once(run, folder / name, folder / f"{name}-{turn}") for turn in range(arguments.repeats + 1)][1:]
    wall_s, cpu_s = median(turn[0] for turn in turns), median(turn[1] for turn in turns)
    audio_s = turns[0][2]
    return {
        "files": len(paths),
        "audio_s": round(audio_s, 1),
        "wall_s": round(wall_s, 4),
        "files_per_s": round(len(paths) / wall_s, 1),
        "rtfx": round(audio_s / wall_s, 1),
        "cpu_us_per_file": round(cpu_s / len(paths) * 1e6, 1),
        "stage_cpu_us_per_file": {stage: round(us, 1) for stage, us in stages.items()},
    }


def show(name: str, found: dict[str, Any]) -> None:
    stages = "  ".join(f"{stage} {us:.0f}" for stage, us in found["stage_cpu_us_per_file"].items())
    print(
        f"{name:16s} {found['files_per_s']:8.0f} files/s {found['rtfx']:9.0f} x real time "
        f"{found['cpu_us_per_file']:7.0f} us of CPU a file ({stages})",
        file=sys.stderr,
    )


# The machine of the estimate: what a GPU's host has, if its processors are cores, and if two are threads of one core.
_PROCESSORS, _THREADS_OF_A_CORE = 16, 0.65


def null_device_turn(mode: str, rtfx: float, clips: Path, model: Path, folder: Path) -> dict[str, Any]:
    """Run the command once. Return its costs."""
    stats, out = folder / "stats.json", folder / "out"
    for path in (stats, Path(f"{stats}.device")):
        path.unlink(missing_ok=True)
    shutil.rmtree(out, ignore_errors=True)
    command = ["transcribe", str(clips), "-m", str(model), "-o", str(out), "--no-progress", "--quiet"]
    given = [sys.executable, "-m", "scripts.benchmarks.null_device", mode, str(rtfx), str(stats), *command]
    subprocess.run(given, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads(stats.read_text(encoding="utf-8"))
    if found["failed"]:
        raise SystemExit(f"{found['failed']} of the clips failed")
    return found


def null_device(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the command with helpers and in one process, in turns."""
    turns: dict[str, list[dict[str, Any]]] = {"helpers": [], "process": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_clips(folder / "clips", KINDS[arguments.format], arguments.files, arguments.seconds)
        for turn in range(arguments.turns):
            for mode, found in turns.items():
                found.append(null_device_turn(mode, arguments.null_device, folder / "clips", arguments.model, folder))
                rate = found[-1]["files"] / found[-1]["wall_s"]
                print(f"turn {turn + 1}, {mode:8s} {rate:8.0f} files/s", file=sys.stderr)

    def middle(value: Callable[[dict[str, Any]], float], mode: str = "helpers") -> float:
        return median(value(found) for found in turns[mode])

    def ms(value: Callable[[dict[str, Any]], float]) -> float:
        return round(middle(lambda found: 1000 * value(found) / found["files"]), 4)

    files_per_s = middle(lambda found: found["files"] / found["wall_s"])
    before = middle(lambda found: found["files"] / found["wall_s"], "process")
    mean_s = middle(lambda found: found["audio_s"] / found["files"])
    coordinator_ms, device_ms = ms(lambda found: found["coordinator_cpu_s"]), ms(lambda found: found["device"]["cpu_s"])
    kinds = turns["helpers"][0]["helper_cpu_s"]
    helper_ms: dict[str, float] = {kind: ms(partial(_helper_cpu_s, kind)) for kind in kinds}

    def estimate(share: float) -> float:
        """Files a second of a machine with more processors, as docs/how-it-works.md explains."""
        helpers: float = share * (_PROCESSORS - 1) * 1000 / (sum(helper_ms.values()) + share * coordinator_ms)
        return round(min(float(arguments.null_device) / mean_s, 1000 / coordinator_ms, helpers), 1)

    return {
        "benchmark": "host with a null device",
        "format": arguments.format,
        "files": arguments.files,
        "mean_clip_s": round(mean_s, 3),
        "null_device_rtfx": arguments.null_device,
        "processors": len(os.sched_getaffinity(0)),
        "helpers": turns["helpers"][0]["helpers"],
        "statistic": f"median of {arguments.turns} turns",
        "files_per_s": round(files_per_s, 1),
        "files_per_s_before": round(before, 1),
        "ratio": round(files_per_s / before, 3),
        "rtfx": round(files_per_s * mean_s, 1),
        "device_cpu_ms_per_file": device_ms,
        "coordinator_cpu_ms_per_file": coordinator_ms,
        "helper_cpu_ms_per_file": helper_ms,
        "process_cpu_ms_per_file_before": round(
            middle(lambda found: 1000 * found["coordinator_cpu_s"] / found["files"], "process"), 4
        ),
        "device_idle_share": round(
            middle(lambda found: found["device"]["idle_s"] / found["device"]["busy_and_idle_s"]), 3
        ),
        "estimate_16_cores_files_per_s": estimate(1.0),
        "estimate_16_threads_of_8_cores_files_per_s": estimate(_THREADS_OF_A_CORE),
        "commit": commit(ROOT),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "turns": {mode: [round(one["files"] / one["wall_s"], 1) for one in found] for mode, found in turns.items()},
        "processor": cpu_name(),
        "python": platform.python_version(),
    }


def _helper_cpu_s(kind: str, found: dict[str, Any]) -> float:
    return float(found["helper_cpu_s"][kind])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=2000, help="files of each kind")
    parser.add_argument("--seconds", type=float, default=8.0, help="mean length of a clip")
    parser.add_argument("--threads", type=int, default=default_threads(), help="loader threads")
    parser.add_argument("--kinds", default="flac,wav", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each kind, beside one that is discarded")
    parser.add_argument("--model", default=ROOT / "tests/data/models/tdt_demo/model.nemo", help="its tokenizer counts")
    parser.add_argument("--null-device", type=float, metavar="RTFX", help="speed of the device; 0: it takes no time")
    parser.add_argument("--format", default="flac", choices=KINDS, help="with --null-device: kind of file")
    parser.add_argument("--files", type=int, default=2000, help="with --null-device: number of files")
    parser.add_argument("--turns", type=int, default=5, help="with --null-device: runs each way")
    arguments = parser.parse_args()
    if arguments.null_device is not None:
        print(json.dumps(null_device(arguments)))
        return
    unknown = set(arguments.kinds.split(",")) - set(KINDS)
    if unknown:
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")

    checkpoint = read_checkpoint(arguments.model)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        ceiling = measure(Path(folder), "10 ms wav", Kind("wav"), SHORT_S, checkpoint, arguments)
        ceiling_files_per_s = 1e6 / ceiling["cpu_us_per_file"]
        show("10 ms wav", ceiling)
        print(
            f"ceiling of one process: {ceiling_files_per_s:.0f} files/s, "
            f"{ceiling_files_per_s * arguments.seconds:.0f} x real time at {arguments.seconds:g} s a file",
            file=sys.stderr,
        )
        for name in arguments.kinds.split(","):
            found[name] = measure(Path(folder), name, KINDS[name], arguments.seconds, checkpoint, arguments)
            show(name, found[name])
    document = {
        "benchmark": "host",
        "clips": arguments.clips,
        "mean_clip_s": arguments.seconds,
        "tokens_per_file": round(arguments.seconds * TOKENS_A_SECOND),
        "threads": arguments.threads,
        "processors": len(os.sched_getaffinity(0)),
        "statistic": f"median of {arguments.repeats}",
        "ceiling_files_per_s": round(ceiling_files_per_s, 1),
        "ceiling_rtfx": round(ceiling_files_per_s * arguments.seconds, 1),
        "no_decoding": ceiling,
        "kinds": found,
        "python": platform.python_version(),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
