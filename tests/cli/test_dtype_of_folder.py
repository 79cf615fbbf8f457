"""A run that may choose its dtype goes on in that of the folder; a dtype that the processor emulates is said."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

import pytest

from tests.conftest import AUDIO, MODEL, SENTENCE
from tests.helpers.processes import fastscribe

FIRST, SECOND = sorted(AUDIO.glob("0[12]_*"))
is_x86 = platform.machine().lower() in ("x86_64", "amd64")


def transcribe(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    return fastscribe("transcribe", *arguments, "--model", MODEL, "--device", "cpu", "--quiet", **options)


def dtype_of(folder: Path, suffix: str = "") -> str:
    header = (folder / f"journal{suffix}.jsonl").read_text().splitlines()[0]
    return json.loads(header)["fingerprint"]["--dtype"]


def test_a_folders_results_stay_in_their_dtype(tmp_path: Path) -> None:
    """On its own, auto takes fp32 for so narrow a model."""
    out = ("-o", tmp_path, "-f", "jsonl")
    assert transcribe(FIRST, *out, "--dtype", "bf16").returncode == 0
    for dtype in ("auto", "fastest"):
        done = transcribe(FIRST, SECOND, *out, "--dtype", dtype)
        assert (done.returncode, dtype_of(tmp_path)) == (0, "bf16")
    assert len((tmp_path / "transcripts.jsonl").read_text().splitlines()) == 2
    refused = transcribe(FIRST, *out, "--dtype", "fp32")
    assert refused.returncode == 2 and '--dtype was "bf16", is "fp32"' in refused.stderr
    assert transcribe(FIRST, SECOND, *out, "--overwrite").returncode == 0
    assert dtype_of(tmp_path) == "fp32"


def test_shards_of_a_folder_have_one_dtype(tmp_path: Path) -> None:
    out = ("-o", tmp_path, "-f", "jsonl")
    assert transcribe(FIRST, SECOND, *out, "--shard", "0/2", "--dtype", "bf16").returncode == 0
    assert transcribe(FIRST, SECOND, *out, "--shard", "1/2").returncode == 0
    assert dtype_of(tmp_path, ".shard-1-of-2") == "bf16"
    assert fastscribe("merge", tmp_path).returncode == 0


def test_auto_does_not_go_on_in_8_bits(tmp_path: Path) -> None:
    """Its user has not accepted them."""
    assert transcribe(FIRST, "-o", tmp_path, "-f", "jsonl", "--dtype", "fp32").returncode == 0
    journal = tmp_path / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"--dtype": "fp32"', '"--dtype": "int8"'))
    refused = transcribe(FIRST, "-o", tmp_path, "-f", "jsonl")
    assert refused.returncode == 2 and '--dtype was "int8", is "fp32"' in refused.stderr


@pytest.mark.skipif(not is_x86, reason="these names are of x86 instruction sets")
@pytest.mark.parametrize(
    ("limit", "dtype", "line"),
    [
        ("AVX2", "bf16", "--dtype bf16: emulated"),
        ("AVX2", "int8", ""),
        ("SSE41", "int8", "unavailable: this processor has none of AVX2"),
    ],
)
def test_smaller_processors_are_right_and_say_what_is_slow(limit: str, dtype: str, line: str) -> None:
    """oneDNN computes as on a processor without the instruction sets beyond the limit."""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": limit}
    done = transcribe(FIRST, "--dtype", dtype, "-f", "txt", env=environment)
    assert (line in done.stderr) if line else not done.stderr
    assert (done.returncode, done.stdout) == ((2, "") if line.startswith("unavailable") else (0, SENTENCE + "\n"))
