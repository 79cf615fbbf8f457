"""Measure what a row of a training manifest costs: CPU microseconds to read and to tokenise it, and bytes of memory.

    python -m scripts.benchmarks.manifest_reading --rows 1000000

The rows are synthetic: texts of 4 to 30 words from those of a small corpus, and paths of 75 characters to a thousand files.
The last line is JSON. Reading runs in a process of its own; bytes are the growth of its memory that no other process shares.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch  # whose memory is not that of the columns

from fastscribe.checkpoint.location import PACKAGED
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.training.bpe import TextEncoder
from fastscribe.training.corpus import ManifestPart
from fastscribe.training.manifest import ExampleLimits, read_manifests, tokenise

_WORDS = tuple(
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but".split()  # noqa: SIM905
)
_FILES = 1000


def write_manifest(folder: Path, num_rows: int) -> Path:
    draw = random.Random(0)
    audio = folder / "a-corpus-of-read-speech-from-somewhere"
    audio.mkdir()
    names = [f"{audio.name}/speaker-and-chapter-{number:05}.flac" for number in range(_FILES)]
    for name in names:
        (folder / name).touch()
    path = folder / "train.jsonl"
    with path.open("w") as rows:
        for number in range(num_rows):
            words = draw.choices(_WORDS, k=draw.randint(4, 30))
            row = {"audio_filepath": names[number % _FILES], "duration": 0.4 * len(words), "text": " ".join(words)}
            rows.write(json.dumps(row) + "\n")
    return path


def read(path: str) -> dict[str, float]:
    """Read and tokenise the manifest in this process."""
    encode = TextEncoder(read_checkpoint(PACKAGED).tokenizer)
    encode("warm up")
    torch.zeros(1).numpy()
    process, limits = psutil.Process(), ExampleLimits()
    before = process.memory_full_info().uss
    begun = time.process_time()
    corpus = read_manifests([ManifestPart(path)], limits)
    read_at = time.process_time()
    corpus = tokenise(corpus, lambda text, request: encode(text), limits)
    done = time.process_time()
    rows = len(corpus.examples)
    return {
        "rows": rows,
        "read_us_per_row": round(1e6 * (read_at - begun) / rows, 2),
        "tokenise_us_per_row": round(1e6 * (done - read_at) / rows, 2),
        "bytes_per_row": round((process.memory_full_info().uss - before) / rows, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        print(json.dumps(read(given.read)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = write_manifest(Path(folder), given.rows)
        command = [sys.executable, "-m", "scripts.benchmarks.manifest_reading", "--read", str(path)]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


if __name__ == "__main__":
    main()
