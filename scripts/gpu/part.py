"""What all parts of scripts/gpu_check share: the amount of work, models, audio and the log of rows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fastscribe import Options, Transcriber
from fastscribe._system.processors import usable_processors
from fastscribe.bench import synthetic, throughput_passes
from fastscribe.checkpoint import native_writer, nemo_export
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.decode.decoder import Parts
from fastscribe.decode.families import DECODERS
from fastscribe.fast_paths import RefusedPath
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.local import LocalExecutor
from fastscribe.pipeline.run_rooms import fused_model
from scripts import random_checkpoint
from scripts.benchmarks.loss_cases import HEADLINE
from scripts.benchmarks.loss_memory import LossShape
from scripts.measurement_log import MeasurementLog

ROOT = Path(__file__).resolve().parents[2]
TEST_DATA = ROOT / "tests" / "data"
_REPORTED = (  # of report.json
    "rtfx",
    "audio_s",
    "load_s",
    "wall_s",
    "first_batch_s",
    "total_s",
    "files",
    "failed",
    "stage_s",
    "padding_share",
    "dtype",
    "device",
    "refused",
)


@dataclass(frozen=True)
class Sizes:
    """Amount of work, as on a GPU. Shapes are names of scripts/shapes.py; `_s` is seconds."""

    tdt: str = "parakeet-tdt-0.6b-v3"
    tdt_v2: str = "parakeet-tdt-0.6b"  # with 1,024 tokens
    rnnt: str = "parakeet-rnnt-1.1b"
    ctc: str = "parakeet-ctc-0.6b"
    attention: tuple[str, ...] = ("canary-1b-flash", "canary-1b")  # with attention decoders
    ladder: tuple[str, ...] = (  # of part tenfold, in order of worth
        "parakeet-tdt-0.6b",
        "parakeet-rnnt-1.1b",
        "parakeet-ctc-1.1b",
        "parakeet-tdt-1.1b",
        "parakeet-ctc-0.6b",
        "parakeet-rnnt-0.6b",
    )
    convolutional: tuple[str, ...] = ("jasper10x5dr", "quartznet15x5")
    matrix: int = 8192  # side of the large product
    rows: int = 32768  # of the model's own products
    copy_bytes: int = 4 << 30
    grid_rows: tuple[int, ...] = (128, 1, 32, 8, 256)
    grid_s: tuple[float, ...] = (20.0, 8.0, 60.0)
    decoder_rows: tuple[int, ...] = (256, 1, 128, 32, 8)  # the first two in every mode
    decoder_frames: tuple[int, ...] = (100, 250)
    clips: int = 2048
    clip_share: float = 1.0  # of each clip's length
    repeats: int = 3  # of the clips in a pass
    attention_clips: int = 1024  # once in a pass
    passes: int = 3
    budgets: tuple[int, ...] = (8_192, 12_288, 16_384, 32_768, 65_536)  # frames a batch
    cold_clips: int = 256  # before the cold pass
    compared: int = 256  # clips for which dtypes are compared
    nemo_clips: int = 2048
    nemo_batch_sizes: tuple[int, ...] = (128, 256)
    nemo_long_batch_sizes: tuple[int, ...] = (8, 4)
    several_processes: str = "0,0,0,0"  # of --devices
    counts: tuple[int, ...] = (10, 1000, 10_000)  # of files, from Enter to exit
    loss_batches: tuple[int, ...] = (32, 8, 64)
    loss_labels: tuple[int, ...] = (150, 200, 100)
    loss_s: float = 4.0  # a case that takes longer is timed once
    samplewise: LossShape = HEADLINE  # its batch size is the headline's
    samplewise_tokens: tuple[int, ...] = (8193, 1025)
    samplewise_batches: tuple[int, ...] = (1, 8, 32, 128, 512)  # smaller ones
    ladder_batch: int = 128  # rows of fixed batches
    slow_clips: int = 128  # of rungs that decode one row at a time
    cpu_files: int = 128
    cpu_dtypes: tuple[str, ...] = ("int8", "bf16")
    latency_rows: tuple[int, ...] = (1, 2, 4, 8, 16)
    latency_s: tuple[float, ...] = (2.0, 7.0, 16.7)  # seconds of a recording
    latency_iterations: int = 120
    latency_most_s: float = 5.0  # of a case, in each dtype
    trained: str = "canary-1b"  # a shape
    training_corpus: int = 20_000  # recordings
    training_buckets: int = 4  # of durations
    training_steps: int = 6  # measured, of each way to batch
    training_most_rows: int = 1024  # of a batch


FULL = Sizes()
QUICK = Sizes(
    tdt="tiny",
    tdt_v2="tiny",
    rnnt="tiny-rnnt",
    ctc="tiny-ctc",
    attention=("tiny-canary",),
    ladder=("tiny", "tiny-ctc"),
    convolutional=("tiny-jasper",),
    matrix=64,
    rows=8,
    copy_bytes=1 << 20,
    grid_rows=(2, 1),
    grid_s=(1.0,),
    decoder_rows=(4, 1),
    decoder_frames=(40,),
    clips=6,
    clip_share=0.2,
    repeats=2,
    attention_clips=3,
    passes=1,
    budgets=(60,),
    cold_clips=2,
    compared=6,
    nemo_clips=6,
    nemo_batch_sizes=(3,),
    nemo_long_batch_sizes=(1,),
    several_processes="cpu:2",
    counts=(3, 30),
    loss_batches=(1,),
    loss_labels=(5,),
    loss_s=0.1,
    samplewise=LossShape(4, 20, 5, 64, 33, 2),
    samplewise_tokens=(65, 33),
    samplewise_batches=(1, 2),
    ladder_batch=3,
    slow_clips=2,
    cpu_files=3,
    cpu_dtypes=("int8",),
    latency_rows=(1,),
    latency_s=(1.0,),
    latency_iterations=3,
    latency_most_s=0.2,
    trained="tiny-canary",
    training_corpus=24,
    training_buckets=3,
    training_steps=2,
    training_most_rows=2,
)


@dataclass(frozen=True)
class Part:
    """Arguments of a part."""

    device: torch.device
    sizes: Sizes
    scratch: Path
    notes: MeasurementLog
    loaded: dict[tuple[object, ...], Transcriber] = field(default_factory=dict)  # of all parts of this process
    used: set[tuple[object, ...]] = field(default_factory=set)  # of these, by this part

    def model(self, shape: str) -> Path:
        """Return the folder of a random checkpoint of this shape; make it on the device if it does not exist."""
        folder = self.scratch / "models" / shape
        if not folder.exists():
            unfinished = folder.with_name(f"{shape}.part")
            shutil.rmtree(unfinished, ignore_errors=True)
            made = random_checkpoint.random_checkpoint(shape, device=str(self.device))
            native_writer.write(made, unfinished, torch.bfloat16)
            unfinished.rename(folder)
        return folder

    def archive(self, shape: str) -> Path:
        """Return the same model as NeMo's archive; write it if it does not exist."""
        path = self.scratch / "models" / f"{shape}.nemo"
        if not path.exists():
            made = random_checkpoint.with_sentencepiece(read_checkpoint(self.model(shape)))
            nemo_export.write(made, path, torch.bfloat16)
        return path

    def load(self, shape: str, dtype: str = "bf16", folder: Path | None = None, **options: Any) -> Transcriber:
        """Return a model, loaded once for all parts of this process."""
        key = (folder or shape, dtype, *sorted(options.items()))
        self.used.add(key)
        if key not in self.loaded:
            where = folder or self.model(shape)
            self.loaded[key] = Transcriber.load(where, str(self.device), dtype, Options(**options), self._say)
        return self.loaded[key]

    def with_options(self, loaded: Transcriber, folder: Path, **changes: Any) -> Transcriber:
        """Return the loaded model under other options. Only the decoder is built again; "off" has no encoder graphs either."""
        checkpoint, old = read_checkpoint(folder), loaded._recognizer
        options = replace(loaded.options, beam=old.beam, **changes)
        fused = fused_model(checkpoint.fused_model, old.beam)
        decoder = DECODERS[old.decoder_name].build(Parts(old.model, checkpoint, old.device, options, self._say, fused))
        encode = old.model.encoder if options.cuda_graphs == "off" else old.encoder
        return Transcriber(checkpoint, LocalExecutor(replace(old, decoder=decoder, encoder=encode)), options, 0.0)

    def _say(self, line: str) -> None:
        refused = {"refused": {line.path: line.reason}} if isinstance(line, RefusedPath) else {}
        self.notes.write({"what": "said", "line": line, **refused})

    def clips(self, kind: str, count: int | None = None, seed: int = 3) -> list[np.ndarray]:
        """ "leaderboard": its lengths; "20 s": all of that length, with about as much audio in all."""
        whole = _clips(kind, count or self.sizes.clips, seed)
        return [wave[: round(len(wave) * self.sizes.clip_share)] for wave in whole]

    def files(self, kind: str) -> list[Path]:
        """Recordings of leaderboard lengths on disk, made once: "flac", "wav", "mp3_44k1" or "flac_44k1_stereo" (a quarter as
        many); "flac_600_s": as much audio in recordings of ten minutes."""
        folder = self.scratch / "audio" / kind
        if not folder.exists():
            waves = self.clips("600 s" if kind.endswith("600_s") else "leaderboard")
            extension, rate_hz, channels = kind[:4].rstrip("_"), synthetic.RATE_HZ, 1
            if "44k1" in kind:
                waves, rate_hz, channels = waves[: max(1, len(waves) // 4)], 44100, 1 + kind.endswith("stereo")
            unfinished = folder.with_name(f"{kind}.part")
            shutil.rmtree(unfinished, ignore_errors=True)
            synthetic.write_files(unfinished, waves, extension, usable_processors(), rate_hz, channels)
            unfinished.rename(folder)
        return sorted(folder.iterdir())

    def many_files(self, kind: str) -> list[Path]:
        """Return the same files under several names, for runs that are long enough and files that stay in memory."""
        folder = self.scratch / "linked" / kind
        if not folder.exists():
            throughput_passes.hard_links(self.files(kind), folder, self.sizes.repeats)
        return sorted(folder.iterdir())


@cache
def _clips(kind: str, count: int, seed: int) -> list[np.ndarray]:
    if kind == "leaderboard":
        return synthetic.waves(synthetic.leaderboard_lengths_s(count, seed), seed=4)
    seconds = float(kind.removesuffix(" s"))
    return synthetic.waves([seconds] * max(1, round(count * 7.85 / seconds)), seed=5)


def in_budget(
    transcriber: Transcriber, waves: Sequence[np.ndarray], frames: int | None, passes: int, repeats: int
) -> dict[str, Any]:
    """Measure passes over batches of at most `frames` frames in memory; None: the budget of a run."""
    budget = transcriber._recognizer.choose_budget() if frames is None else Budget(frames)
    batches = throughput_passes.batches_of(waves, transcriber, budget)
    row = throughput_passes.from_batches(transcriber, batches, passes, repeats)
    return row | {
        "budget": budget.frames,
        "budget_bend": budget.quadratic_at_frames,
        "budget_row_frames": budget.overhead_frames_per_row,
    }


def by_command(model: Path, inputs: Path, out: Path, where: Sequence[str], seconds: float) -> dict[str, Any]:
    """Run the same by `fastscribe transcribe` in a new process, loading included. `where`: --device or --devices."""
    command = [sys.executable, "-m", "fastscribe", "transcribe", str(inputs), "--model", str(model), "-o", str(out)]
    start = perf_counter()
    done = subprocess.run(
        [*command, *where, "--no-progress"], capture_output=True, text=True, timeout=seconds, env=os.environ
    )
    process_s = perf_counter() - start
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-500:]}")
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return {"process_s": process_s, "said": done.stderr[-600:], **{key: report[key] for key in _REPORTED}}
