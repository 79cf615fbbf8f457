"""Whether another checkout of fastscribe writes the same rows: python -m scripts.same_rows OTHER_CHECKOUT.

With `--python`, the other side runs with that Python, which may have other versions of the dependencies; OTHER_CHECKOUT may be
this one then.

Each case is a command line, run with both checkouts in the same folder with the same recordings and models of tests/data, on
the CPU. Standard output and all files that a run leaves must be the same byte for byte. Exceptions are locks, times and batches
in report.json, and the order of rows and of the journal's entries: a recording that is read slowly comes later. Prints a line a
case; the exit code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fastscribe.config import OUTPUT_FORMATS

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
_MODELS = (
    "tdt_demo/model.nemo",
    "rnnt/model.nemo",
    "ctc/model.nemo",
    "hybrid/model.nemo",
    "hf_tdt_demo",
    "hf_rnnt",
    "hf_ctc",
    "jasper/model.nemo",
    "quartznet/model.nemo",
    "canary/model.nemo",
    "canary2/model.nemo",
    "hf_canary",
)
_SOME = "audio/0*.flac"
# Each a name and the arguments behind `transcribe`; paths are relative to tests/data.
CASES: dict[str, list[str]] = {
    **{name: ["audio", "-m", f"models/{name}", "-o", "OUT", "-f", "jsonl", "--tokens"] for name in _MODELS},
    "packaged model, all formats": ["audio", "-o", "OUT", "-f", ",".join(OUTPUT_FORMATS)],
    "stdout": ["audio/01_0_00010.flac"],
    "text to stdout": ["audio/01_0_00010.flac", "-f", "txt"],
    "manifest": ["manifest.jsonl", "-m", "models/tdt_demo/model.nemo", "-o", "OUT"],
    "beam and n best": [_SOME, "-m", "models/tdt_demo/model.nemo", "--beam", "4", "--nbest", "3", "-o", "OUT"],
    "ctc head of a hybrid": [_SOME, "-m", "models/hybrid/model.nemo", "--decoder", "ctc", "-o", "OUT"],
    "boost": [_SOME, "--boost", "BOOST", "-o", "OUT"],
    "channels": ["lhotse/stereo.flac", "audio/e08_stereo_44k1.flac", "--speakers", "channels", "-o", "OUT"],
    "rttm": [_SOME, "--rttm", "RTTM", "-o", "OUT", "-f", "jsonl,srt"],
    "readable": [_SOME, "--remove-fillers", "--itn", "-o", "OUT", "--language", "en"],
    "word times of another model": [_SOME, "--align-with", "models/ctc/model.nemo", "-o", "OUT"],
    "canary's own times": [_SOME, "-m", "models/canary2/model.nemo", "--timestamps", "-o", "OUT"],
    "bf16": [_SOME, "--dtype", "bf16", "-o", "OUT"],
    "int8": [_SOME, "--dtype", "int8", "-o", "OUT"],
    "short pieces": ["audio/e10_concat_45s.flac", "--max-utterance-s", "5", "-o", "OUT"],
    "two processes": ["audio", "-m", "models/tdt_demo/model.nemo", "--devices", "cpu:2", "-o", "OUT", "--ordered"],
    "local attention": [_SOME, "-m", "models/tdt_demo/model.nemo", "--attention", "local:32,32", "-o", "OUT"],
    "bad files": ["README.md", "canary_training.json", "audio/nowhere.wav", _SOME, "-o", "OUT"],
    "wrong option": [_SOME, "--no-such-option"],
    "dry run": ["audio", "-m", "models/tdt_demo/model.nemo", "--dry-run", "-q"],
}
_CHANGING = {
    "wall_s",
    "load_s",
    "rtfx",
    "stage_s",
    "peak_bytes",
    "first_batch_s",
    "total_s",
    "usd",
    "estimated_s",
    "estimated_rtfx",
    "versions",
    "batches",
    "padding_share",
    "padded_frames",
    "devices",
    "refused",
}
RTTM = (
    "SPEAKER 01_0_00010 1 0.00 1.50 <NA> <NA> anna <NA> <NA>\nSPEAKER 01_0_00010 1 1.50 9.00 <NA> <NA> ben <NA> <NA>\n"
)
BOOST = "Ruth Paine\nblanket\t2\nOswald\n"


def run(checkout: Path, python: str, arguments: list[str], folder: Path) -> tuple[int, bytes, dict[str, bytes]]:
    """Run a case with a checkout. Return the exit code, standard output, and the files that it leaves, by their path."""
    places = {"OUT": str(folder / "out"), "BOOST": str(folder / "boost.txt"), "RTTM": str(folder / "turns.rttm")}
    (folder / "boost.txt").write_text(BOOST, encoding="utf-8")
    (folder / "turns.rttm").write_text(RTTM, encoding="utf-8")
    command = [python, "-m", "fastscribe", "transcribe", "--device", "cpu", "--no-progress"]
    if "--devices" in arguments:
        command = command[:4] + command[6:]
    for argument in arguments:
        found = sorted(str(path.relative_to(DATA)) for path in DATA.glob(argument)) if "*" in argument else []
        command += found or [places.get(argument, argument)]
    environment = os.environ | {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, cwd=DATA, env=environment)
    if "--dry-run" in arguments:
        return done.returncode, _without_times(done.stdout), {}
    out = folder / "out"
    files = {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    own = str(folder).encode()  # in messages
    files = {name: data.replace(own, b"FOLDER") for name, data in files.items()}
    kept = {name: _comparable(name, data) for name, data in files.items() if not name.endswith("lock")}
    return done.returncode, done.stdout, kept


def _comparable(name: str, data: bytes) -> bytes:
    """Return a file's content without what differs from run to run."""
    if name.endswith("report.json"):
        return _without_times(data)
    if name.endswith("journal.jsonl"):  # an entry has the place of its row, and when a disk has synced differs
        data = re.sub(rb'"row": \[\d+, \d+\]|\{"synced": true\}\n', b"", data)
    return b"".join(sorted(data.splitlines(keepends=True))) if name.endswith(".jsonl") else data


def _without_times(report: bytes) -> bytes:
    def cleaned(value: Any) -> Any:
        if isinstance(value, list):
            return [cleaned(one) for one in value]
        if not isinstance(value, dict):
            return value
        return {name: cleaned(one) for name, one in value.items() if name not in _CHANGING}

    return json.dumps(cleaned(json.loads(report))).encode()


def _first_change(old: bytes, new: bytes) -> str:
    """Return what stands at the first difference, with a little before it."""
    place = next(
        (i for i, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), min(len(old), len(new))
    )
    start = max(0, place - 30)
    return f"{old[start : place + 30]!r} became {new[start : place + 30]!r}"


def differences(name: str, other: Path, python: str) -> list[str]:
    """Return what differs between this checkout and another one, which runs with `python`, in a case."""
    with (
        tempfile.TemporaryDirectory() as old_folder,
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor() as pool,
    ):
        sides = ((other, python, CASES[name], Path(old_folder)), (ROOT, sys.executable, CASES[name], Path(folder)))
        found = list(pool.map(lambda side: run(*side), sides))
    (old_code, old_out, old_files), (code, out, files) = found
    wrong = [] if code == old_code else [f"exit code {code} for {old_code}"]
    wrong += [] if out == old_out else [f"standard output: {_first_change(old_out, out)}"]
    for one in sorted(old_files.keys() | files.keys()):
        if old_files.get(one) != files.get(one):
            wrong.append(f"{one}: {_first_change(old_files.get(one, b''), files.get(one, b''))}")
    if not old_files and not old_out and "wrong" not in name:
        wrong.append("the case wrote nothing")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="folder of the other checkout")
    parser.add_argument(
        "--python", default=sys.executable, help="Python that runs the other checkout; default: this one"
    )
    parser.add_argument("cases", nargs="*", help="names of cases; default: all")
    given = parser.parse_intermixed_args()
    failed = False
    for name in given.cases or CASES:
        wrong = differences(name, given.other.resolve(), os.path.abspath(given.python))
        failed |= bool(wrong)
        print(f"{name}: {'the same' if not wrong else 'DIFFERS: ' + ', '.join(wrong)}", flush=True)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
