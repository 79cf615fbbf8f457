"""A program imports torch without the garbage collector, and all of it. It keeps the memory that it frees.

What is tested is started as the command starts it.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from fastscribe._system.process_settings import quick_start
from tests.conftest import AUDIO, MODELS, golden
from tests.helpers.cohere_folder import write_folder
from tests.helpers.processes import command

CLIPS = [AUDIO / name for name in ("01_0_00010.flac", "16_1_00308.flac")]
ALIGNER = MODELS / "ctc" / "model.nemo"


def test_only_the_import_of_torch_is_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    monkeypatch.setitem(sys.modules, "torch", object())
    with quick_start():
        assert gc.isenabled()
    assert frozen == []
    monkeypatch.delitem(sys.modules, "torch")
    with quick_start():
        assert not gc.isenabled()
    assert gc.isenabled() and frozen == [False]


@pytest.fixture(scope="module")
def cohere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose features are drawn with torch.Generator()."""
    folder = tmp_path_factory.mktemp("cohere") / "model"
    write_folder(folder)
    return folder


def assert_texts(rows: str) -> None:
    texts = {Path(row["audio_filepath"]).name: row["text"] for row in map(json.loads, rows.splitlines())}
    expected = golden(MODELS / "cohere")["prompts"]["en"]
    assert texts == {clip.name: expected[clip.name]["text"].strip() for clip in CLIPS}


def test_a_fresh_process_of_a_device_transcribes_what_needs_a_generator(cohere: Path) -> None:
    arguments = command("transcribe", *CLIPS, "--model", cohere, "--dtype", "fp32", "-q", "--devices", "cpu:1")
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_texts(done.stdout)


# What the command line runs, then what a GPU would ask of the process first.
ALIGN = """
import sys
from fastscribe import cli
code = cli._run()
import torch
from pathlib import Path
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.families.conformer.gpu_operations import find_wrong_operation
from fastscribe.families.conformer.operations import TORCH
config = read_checkpoint(Path(sys.argv[-1])).config.encoder
print(code, find_wrong_operation(TORCH, config, torch.float32, torch.device("cpu"), adds_products=True), file=sys.stderr)
"""


def test_a_fresh_process_with_a_second_model_draws_the_cases_of_fused_operations(cohere: Path) -> None:
    arguments = ["transcribe", *CLIPS, "--model", cohere, "--dtype", "fp32", "-q", "--device", "cpu"]
    arguments += ["--align-with", ALIGNER]
    done = subprocess.run(
        [sys.executable, "-c", ALIGN, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1] == "0 None", done.stderr
    assert_texts(done.stdout)


END = """
import sys
import torch, triton
from fastscribe.__main__ import main
sys.argv[1:] = ["--version"]
main()
"""


def test_triton_reports_no_leaks_at_the_end() -> None:
    pytest.importorskip("triton")
    done = subprocess.run([sys.executable, "-c", END], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("fastscribe ") and done.stderr == ""


# Page faults of twenty allocations of 8 MB and 32 MB, each written and freed. In a separate process: the setting is permanent.
FAULTS = """
import ctypes, resource
from fastscribe._system.process_settings import disable_malloc_trim
disable_malloc_trim()
c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p
size = 8 << 20
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    block = ctypes.c_void_p(c.malloc(ctypes.c_size_t(size)))
    other = ctypes.c_void_p(c.malloc(ctypes.c_size_t(4 * size)))
    ctypes.memset(block, 1, size)
    ctypes.memset(other, 1, 4 * size)
    c.free(other)
    c.free(block)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() // (5 * size))
"""


def rounds_with_fresh_pages(**environment: str) -> int:
    """Return how many of twenty rounds got new pages."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", FAULTS], env=clean | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc's")
def test_pages_reused() -> None:
    assert rounds_with_fresh_pages() <= 2
    assert rounds_with_fresh_pages(MALLOC_TRIM_THRESHOLD_="131072") > 10
