"""Measure a trained model and put it into fastscribe/default_model, and the result into docs/bench/default_model/cpu.json.

    python -m scripts.default_model.package_default_model RUN/best SPEECH --trained "8 epochs of .." [--int8] [--force]

RUN/best is a transducer's folder, to which scripts.default_model.make_language_model has added a language model; SPEECH holds
test_native.jsonl and test_accented.jsonl. Refuses weights of more than 16 MB, a folder of more than 16 MiB, and what is no
better on test_native than the packaged model or more than a point worse on test_accented. The card, README.md beside the
model, stays as it is: its words and numbers are written by hand, from what this prints.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch

from fastscribe._system.processors import cpu_name
from fastscribe.bench import machine
from fastscribe.checkpoint import native_writer
from fastscribe.checkpoint.reader import read_checkpoint

ROOT = Path(__file__).resolve().parents[2]
PACKAGED = ROOT / "fastscribe" / "default_model"
STORED = ROOT / "docs" / "bench" / "default_model" / "cpu.json"
MAX_BYTES = 16_000_000  # of weights
MAX_BYTES_TOGETHER = 1 << 24
SPLITS = ("test_native", "test_accented")
WORST_LOSS = 0.01  # on test_accented


def main() -> None:
    arguments = parsed()
    checkpoint = read_checkpoint(arguments.model)
    if checkpoint.language_model is None or checkpoint.config.predictor is None:
        sys.exit("a transducer with a language model is packaged: scripts.default_model.make_language_model makes one")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "model"
        native_writer.write(checkpoint, made, torch.bfloat16, arguments.int8)
        check_small(made)
        splits = {split: measured(made, arguments.speech / f"{split}.jsonl", Path(folder) / split) for split in SPLITS}
        found = {
            "benchmark": "default_model",
            "date": date.today().isoformat(),
            "hardware": f"{cpu_name()}, 2 cores",
            "dtype": "fp32",
            "statistic": "word and character error rates of all words; rtfx of one run of the command, model loaded",
            "commit": machine.commit(ROOT),
            "versions": machine.versions(),
            "trained": arguments.trained,
            "storage": "8 bits with a scale for each row of a matrix" if arguments.int8 else "bf16",
            "model_bytes": (made / "model.safetensors").stat().st_size,
            "sha256": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(made.iterdir())},
            "splits": splits,
        }
        print(json.dumps(found))
        if STORED.exists() and not arguments.force:
            check_better(found, json.loads(STORED.read_text(encoding="utf-8")))
        shutil.copy(PACKAGED / "README.md", made)
        shutil.rmtree(PACKAGED)
        shutil.copytree(made, PACKAGED)
    for path in PACKAGED.iterdir():
        path.chmod(0o644)
    STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("speech", type=Path)
    parser.add_argument("--trained", required=True, help="data, epochs and steps")
    parser.add_argument("--int8", action="store_true", help="store matrices in 8 bits, with a scale per row")
    parser.add_argument("--force", action="store_true", help="even if it is no better")
    return parser.parse_args()


def check_small(made: Path) -> None:
    weights, together = (made / "model.safetensors").stat().st_size, sum(file.stat().st_size for file in made.iterdir())
    if weights > MAX_BYTES or together > MAX_BYTES_TOGETHER:
        sys.exit(
            f"{weights:,} bytes of weights, {together:,} together; at most {MAX_BYTES:,} and {MAX_BYTES_TOGETHER:,} go into "
            "the package"
        )


def measured(model: Path, manifest: Path, out: Path) -> dict[str, Any]:
    return {**as_used(model, manifest, out), "greedy": as_used(model, manifest, out / "greedy", "--beam", "1")}


def as_used(model: Path, manifest: Path, out: Path, *options: str) -> dict[str, Any]:
    """Transcribe through the command line, as a user would."""
    start = time.perf_counter()
    fastscribe("transcribe", manifest, "-m", model, "-o", out, "--dtype", "fp32", "--quiet", *options)
    whole_s = time.perf_counter() - start
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    rates = {
        name: json.loads(fastscribe("evaluate", out, "--normalizer", name, "--json")) for name in ("whisper-en", "none")
    }
    return {
        "audio_hours": round(report["audio_s"] / 3600, 3),
        "wer": rates["whisper-en"]["wer"],
        "wer_standard_error": rates["whisper-en"]["wer_standard_error"],
        "cer": rates["whisper-en"]["cer"],
        "exact_wer": rates["none"]["wer"],
        "rtfx": round(report["rtfx"], 1),
        "command_s": round(whole_s, 2),
    }


def fastscribe(*arguments: object) -> str:
    command = [sys.executable, "-m", "fastscribe", *map(str, arguments)]
    return subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout


def check_better(new: dict[str, Any], old: dict[str, Any]) -> None:
    was, now = ({split: each["splits"][split]["wer"] for split in SPLITS} for each in (old, new))
    if now["test_native"] >= was["test_native"]:
        sys.exit(f"no better on test_native: {now['test_native']:.4f}, was {was['test_native']:.4f}")
    if now["test_accented"] > was["test_accented"] + WORST_LOSS:
        sys.exit(f"worse on test_accented: {now['test_accented']:.4f}, was {was['test_accented']:.4f}")


if __name__ == "__main__":
    main()
