"""scripts/gpu_check: one command that must not lose what it has found, whatever happens to its parts."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import zipfile
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "gpu_check"


@cache
def gpu_check() -> ModuleType:
    loader = SourceFileLoader("gpu_check", str(SCRIPT))
    spec = importlib.util.spec_from_loader("gpu_check", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module


def arguments(tmp_path: Path, *given: str):
    (tmp_path / "out").mkdir(exist_ok=True)
    return gpu_check().parse(["--out", str(tmp_path / "out"), "--device", "cpu", "--quick", *given])


@pytest.mark.timeout(280)
def test_it_measures_in_small_what_it_measures_on_a_gpu(tmp_path: Path) -> None:
    parts = "facts,ceilings,decoder,memory"
    command = [sys.executable, SCRIPT, "--out", tmp_path, "--device", "cpu", "--quick", "--parts", parts]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    *_, path, summary = done.stdout.splitlines()
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    assert [(part["part"], part["status"]) for part in document["results"]] == [(p, "done") for p in parts.split(",")]
    assert document["hardware"]["versions"]["torch"]
    assert json.loads(summary)["measured"]["RTFx in memory, 0.6B TDT"] > 1
    allowed = ("needs a CUDA device", "scaled_mm", "Float8")
    for part in document["results"]:
        for row in part["rows"]:
            assert "error" not in row or any(reason in row["error"] for reason in allowed), row
    assert {"gpu_check.json", "gpu_check.log"} == {file.name for file in tmp_path.iterdir()}


def test_a_part_that_hangs_is_stopped_with_its_children() -> None:
    child = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    child += " print(p.pid, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    grandchild = int(process.stdout.readline())
    start = time.monotonic()
    assert gpu_check().outcome(process, 0.3) == "stopped after 0 s"
    assert time.monotonic() - start < 50
    process.stdout.close()
    for _ in range(1000):
        if not is_running(grandchild):
            return
        time.sleep(0.05)
    pytest.fail("the child of a stopped part lives on")


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_part_that_crashes_leaves_its_rows_and_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "gpu_parts.py").write_text(
        "import json, os, sys\n"
        "settings = json.load(open(sys.argv[2]))\n"
        "open(settings['rows'], 'w').write('{\"what\": 1}\\n{\"what\": 2')\n"
        "print('going down', flush=True)\n"
        "os.abort()\n"
    )
    monkeypatch.setattr(gpu_check(), "HERE", scripts)
    found = gpu_check().run_part("kernels", arguments(tmp_path), 30, tmp_path, dict(os.environ))
    assert found["rows"] == [{"what": 1}]
    assert found["status"] == "failed: exit code -6" and "going down" in found["last_words"]
    assert "going down" in (tmp_path / "out" / "gpu_check.log").read_text()


def test_parts_for_which_no_time_is_left_are_skipped(tmp_path: Path) -> None:
    given = arguments(tmp_path, "--minutes", "0", "--parts", "memory,files")
    document = gpu_check().new_document(given)
    gpu_check().run_all(given, document, tmp_path)
    assert [part["status"] for part in document["results"]] == 2 * ["skipped: out of time"]
    assert json.loads((tmp_path / "out" / "gpu_check.json").read_text()) == document


def test_unknown_parts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        arguments(tmp_path, "--parts", "facts,nothing")


def document_of(**parts: list[dict]) -> dict:
    results = [{"part": name, "status": "done", "wall_s": 1.0, "rows": rows} for name, rows in parts.items()]
    return {
        "device": "cuda",
        "quick": False,
        "commit": None,
        "date": "",
        "hardware": None,
        "results": results,
        "goals": [],
    }


def test_goals_come_from_the_rows() -> None:
    board = {"what": "from_memory", "audio": "leaderboard", "budget_frames": "auto", "graphs": "auto"}
    document = document_of(
        facts=[{"what": "commit", "commit": "abc"}, {"what": "machine", "cpu": "x"}],
        tests=[{"what": "pytest", "exit_code": 1, "tests": 14, "failures": 1, "errors": 0, "skipped": 4}],
        ceilings=[{"what": "matmul", "dtype": "bf16", "m": 8192, "n": 8192, "tflop_per_s": 800.0}],
        encoder=[
            {"what": "encoder", "shape": "parakeet-tdt-0.6b", "form": "shipped", "tflop_per_s": 480.0},
            {"what": "encoder", "shape": "parakeet-tdt-0.6b", "form": "plain", "tflop_per_s": 700.0},
        ],
        memory=[
            {**board, "shape": "parakeet-tdt-0.6b", "rtfx": 22000.0, "outside_encoder_share_of_wall": 0.05},
            {**board, "shape": "parakeet-tdt-0.6b", "rtfx": 99000.0, "graphs": "off"},
            {**board, "shape": "parakeet-rnnt-1.1b", "error": "RuntimeError: out of memory", "rtfx": 1.0},
        ],
        nemo=[
            {"what": "side", "side": "nemo", "batch_size": 128, "rtfx": 4000.0},
            {"what": "side", "side": "nemo", "batch_size": 256, "rtfx": 5000.0},
            {"what": "side", "side": "fastscribe", "batch_size": 128, "rtfx": 20000.0},
        ],
    )
    gpu_check().take_facts(document)
    assert document["commit"] == "abc" and document["hardware"]["cpu"] == "x"
    reached = {row["goal"]: (row["measured"], row["reached_share"]) for row in document["goals"]}
    assert reached["RTFx in memory, 0.6B TDT"] == (22000.0, 1.1)
    assert reached["RTFx in memory, 1.1B RNN-T"] == (None, None)
    assert reached["times NeMo's speed"] == (4.0, 1.333)
    assert reached["encoder, share of the matrix ceiling"] == (0.6, 1.2)
    assert reached["wall time outside the encoder"] == (0.05, 2.0)
    assert reached["tests on the GPU passed"] == (0.9, 0.9)
    assert "not measured" in gpu_check().table(document)
    assert json.loads(gpu_check().as_text(document)) == document


def test_without_any_row_every_goal_is_open() -> None:
    document = document_of()
    gpu_check().take_facts(document)
    assert all(row["measured"] is None for row in document["goals"])
    gpu_check().table(document)


def test_wheels_are_installed_even_where_pip_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("thing.py", "VALUE = 7\n")  # without metadata, which pip insists on
    said = gpu_check().install([wheel], tmp_path / "site")
    assert "unpacked" in said
    assert (tmp_path / "site" / "thing.py").read_text() == "VALUE = 7\n"


def test_wheels_that_the_docs_name_have_versions() -> None:
    lines = (ROOT / "scripts" / "gpu_wheels.txt").read_text().splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    assert names and all(line.count("==") == 1 for line in names)
    assert len({line.split("==")[0].lower().replace("-", "_") for line in names}) == len(names)
