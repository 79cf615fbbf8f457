"""scripts/gpu_check keeps every row if its parts or itself fail."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from packaging.requirements import Requirement

from fastscribe.bench import roofline
from fastscribe.fast_paths import RefusedPath
from scripts.benchmarks import decoding_speed, loss_cases, training_batches
from scripts.gpu import check, goals, plan, processes, rehearsal, turns, worker
from scripts.gpu.part import FULL, QUICK, Part, Sizes
from scripts.gpu.parts import checks, pieces, tenfold, training
from scripts.gpu.plan import PARTS
from scripts.gpu.worker import function
from scripts.measurement_log import MeasurementLog
from tests.conftest import ROOT
from tests.helpers import random_models

pytestmark = pytest.mark.linux

SCRIPT = ROOT / "scripts" / "gpu_check"


def arguments(tmp_path: Path, *given: str):
    (tmp_path / "out").mkdir(exist_ok=True)
    return check.parse(["--out", str(tmp_path / "out"), "--device", "cpu", "--quick", *given])


@pytest.mark.timeout(120)
def test_next_runs_the_plan_and_says_where_time_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, whose results are not stored; the plan is cut to one part, which finds its model made."""
    scratch, out = tmp_path / "scratch", tmp_path / "out"
    random_models.make_once(monkeypatch)
    Part(torch.device("cpu"), QUICK, scratch, MeasurementLog(tmp_path / "rows", 60.0)).model(QUICK.tdt)
    monkeypatch.setattr(plan, "wanted", lambda card, documents: [("engine", "missing")])
    for name in ("facts", "devices"):  # on a busy machine they take longer
        monkeypatch.setitem(PARTS, name, replace(PARTS[name], most_s=70))
    said: list[str] = []
    given = ["--out", str(out), "--scratch", str(scratch), "--device", "cpu", "--quick", "--next"]
    check.main(given, said.append)
    *_, path, summary = said
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    facts, devices, engine = document["results"]
    statuses = [("facts", "done"), ("devices", "skipped: all tests were"), ("engine", "done")]
    assert [(part["part"], part["status"]) for part in document["results"]] == statuses
    tests = [row["outcome"] for row in devices["rows"] if row["what"] == "test"]
    assert tests and set(tests) == {"skipped"}
    rows = engine["rows"]
    assert not [row for row in rows if "error" in row]
    passes = {row["pass"]: row for row in rows if row["what"] == "from_memory"}
    assert list(passes) == ["very first", "cold", "warm"] and passes["cold"]["new_shapes_share"] == 1.0
    assert passes["cold"]["audio_s"] == passes["warm"]["audio_s"]
    measured = json.loads(summary)["measured"]
    assert [value is not None for value in measured.values()] == [True, True, *[False] * 6, True, False, False]
    assert {"gpu_check.json", "gpu_check.log"} == {file.name for file in out.iterdir()}
    assert engine["code"] == plan.digest("engine") and facts["import_s"] > 0
    spent = document["time"]
    assert 0 < spent["measuring_s"] < spent["wall_s"] and spent["measuring_share"] < 1 and document["is_next"]


def test_the_script_runs_from_any_folder(tmp_path: Path) -> None:
    """Its last two lines are the path of the result and a summary; a part without time starts no process."""
    given = ["--out", tmp_path, "--device", "cpu", "--quick", "--parts", "engine", "--minutes", "0"]
    done = subprocess.run([sys.executable, SCRIPT, *given], capture_output=True, text=True, check=True, cwd=tmp_path)
    *_, path, summary = done.stdout.splitlines()
    [part] = json.loads(Path(path).read_text(encoding="utf-8"))["results"]
    assert (part["part"], part["status"]) == ("engine", "skipped: out of time")
    assert json.loads(summary)["parts"] == {"engine": "skipped: out of time"}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


# What a CPU cannot measure, by the rows' errors.
@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("facts", ()),
        ("decoder", ("needs a CUDA device",)),
        ("memory", ("needs a CUDA device",)),
        ("profile", ()),
        ("ceilings", ()),
        ("tenfold", ("needs a CUDA device", "No module named 'nemo'")),
        ("training_speed", ()),
        ("convolutions", ()),
    ],
)
def test_part_on_cpu(
    name: str, allowed: tuple[str, ...], scratch: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    loads: list[tuple] = []
    load = Part.load
    monkeypatch.setattr(
        Part, "load", lambda part, shape, *a, **k: loads.append((shape, *a)) or load(part, shape, *a, **k)
    )
    random_models.make_once(monkeypatch)
    monkeypatch.setattr(tenfold, "by_command", lambda *a: {"rtfx": 60.0, "where": a[3]})  # takes long to start
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors; more threads wait for each other
    request.addfinalizer(lambda: torch.set_num_threads(num_threads))
    time_call = decoding_speed.time_call
    for module in (roofline, decoding_speed, pieces):
        monkeypatch.setattr(module, "time_call", lambda call, device, **_: time_call(call, device, 0.01, 1, 1))
    notes = MeasurementLog(scratch / name, 600.0)  # also on a busy machine
    function(name)(Part(torch.device("cpu"), QUICK, scratch, notes))
    rows = check.read_rows(notes.path)
    assert [row for row in rows if "error" not in row]
    for row in rows:
        assert "error" not in row or any(reason in row["error"] for reason in allowed), row
    assert len(loads) == len(set(loads)), "a part loads each model once"
    if name == "decoder":
        assert {row["rows"] for row in rows if row.get("mode") == "off" and "rows" in row} == set(
            QUICK.decoder_rows[:2]
        )
        assert all(row["equal_to_off_share"] == 1.0 for row in rows if "equal_to_off_share" in row)
    if name == "tenfold":
        rungs = [(row["shape"], row["rung"]) for row in rows if row.get("side") == "fastscribe" and "order" in row]
        ours = {"tiny": "label looping", "tiny-ctc": "batched"}
        wanted = [(shape, rung) for shape in ours for rung in ("greedy", "bf16", "fused", ours[shape], "planned")]
        assert rungs == wanted
        assert [row["where"] for row in rows if row.get("rung") == "CPU, int8"] == [
            ["--device", "cpu", "--dtype", "int8"]
        ]
    if name == "training_speed":
        measured = [row for row in rows if row["what"] == "training_batches" and "audio_s_per_s" in row]
        assert [row["batches"] for row in measured] == list(training_batches.WAYS)
    if name == "convolutions":
        [row] = [row for row in rows if row["what"] == "latency"]
        assert row["fp32"]["iterations"] == row["bf16"]["iterations"] == QUICK.latency_iterations


@pytest.fixture
def timed_losses(monkeypatch: pytest.MonkeyPatch) -> list[loss_cases.Case]:
    """The cases that would be measured; of materialised joints, those of more than 100 utterances do not fit."""
    found: list[loss_cases.Case] = []

    def peak_and_time(case: loss_cases.Case, device: torch.device, most_s: float) -> dict[str, float]:
        found.append(case)
        if case.form == "materialised" and case.shape.batch_size > 100:
            raise torch.OutOfMemoryError("out of memory")
        return {"ms": 1.0, "peak_bytes": 2}

    monkeypatch.setattr(loss_cases, "peak_and_time", peak_and_time)
    monkeypatch.setattr(loss_cases, "warm_up", lambda device, kinds: None)
    monkeypatch.setattr(loss_cases, "problem_of_nemo", lambda: None)
    monkeypatch.setattr(training, "free_bytes", lambda device: 70 * 10**9)
    return found


@pytest.mark.parametrize(("name", "sizes"), [("loss", FULL), ("samplewise", FULL), ("samplewise", QUICK)])
def test_loss_parts_go_on_where_they_ended(
    name: str, sizes: Sizes, timed_losses: list[loss_cases.Case], tmp_path: Path
) -> None:
    notes = MeasurementLog(tmp_path / "first", 60.0)
    function(name)(Part(torch.device("cpu"), sizes, tmp_path, notes))
    rows = check.read_rows(notes.path)
    assert not [row for row in rows if "error" in row]
    assert {row["library"] for row in rows if row["what"] == name} == {
        "fastscribe",
        *(["nemo"] if name == "loss" else []),
    }
    assert all(row["formula_bytes"] > 0 for row in rows if row["what"].startswith(name))
    timed_losses.clear()
    notes = MeasurementLog(tmp_path / "second", 60.0, [row for row in rows if "is_preparation" not in row])
    function(name)(Part(torch.device("cpu"), sizes, tmp_path, notes))
    assert not timed_losses and {row["what"] for row in check.read_rows(notes.path)} == {"warm_up"}


def test_samplewise_starts_with_the_headline(timed_losses: list[loss_cases.Case], tmp_path: Path) -> None:
    notes = MeasurementLog(tmp_path / "rows", 60.0)
    function("samplewise")(Part(torch.device("cpu"), FULL, tmp_path, notes))
    rows = check.read_rows(notes.path)[1:]
    headline = [
        (row["batch_size"], row["num_frames"], row["num_tokens"], row["dtype"], row["form"]) for row in rows[:4]
    ]
    assert headline == [(1024, 500, n, dtype, "joint") for dtype in ("bf16", "fp16") for n in (8193, 1025)]
    largest = [row for row in rows if row["what"] == "samplewise_largest"]
    assert [row["batch_size"] for row in largest] == [27, 88] and all(row["ms"] == 1.0 for row in largest)
    curve = [
        row for row in rows if row["what"] == "samplewise" and row["dtype"] == "bf16" and row["num_tokens"] == 8193
    ]
    assert [row["batch_size"] for row in curve if row["form"] == "joint"] == [1024, 1, 8, 32, 128, 512]
    fits = {row["batch_size"]: row.get("fits", True) for row in curve if row["form"] == "materialised"}
    assert fits == {1: True, 8: True, 32: True, 128: False, 512: False}


def test_every_part_fits_a_run_and_its_sources_exist() -> None:
    for name, one in plan.PARTS.items():
        others_s = sum(plan.PARTS[first].most_s for first in plan.FIRST if first != name)
        assert others_s + one.least_s < 60 * plan.CALL_MINUTES <= 240, name
        assert all((ROOT / source).exists() for source in one.sources), name


def test_parts_and_minutes(tmp_path: Path) -> None:
    given = arguments(tmp_path, "--parts", "files,nemo")
    assert (given.minutes, given.parts) == (4.0, ["files", "nemo"])
    assert arguments(tmp_path, "--parts", "files", "--minutes", "2").minutes == 2.0
    assert arguments(tmp_path).minutes == 15.0
    assert len(arguments(tmp_path).parts) == len(PARTS)


def test_every_cuda_test_module_has_its_part(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Path] = []
    monkeypatch.setattr(checks, "run_tests", lambda part, paths: found.extend(paths))
    for name in ("devices", "tests", "end_to_end"):
        function(name)(Part(torch.device("cpu"), QUICK, scratch, MeasurementLog(scratch / name, 1)))
    marked = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.cuda" in path.read_text()]
    assert all(path.exists() for path in found) and len(found) == len(set(found))
    assert set(marked) <= set(found)
    assert [path.name for path in found[:2]] == ["test_device_processes.py", "test_triton_kernels.py"]


TESTS = """
import os, time, pytest
@pytest.mark.cuda
@pytest.mark.parametrize("number", range(3))
def test_passes(number): pass
@pytest.mark.cuda
def test_fails(): assert 1 == 2, "they differ"
@pytest.mark.cuda
@pytest.mark.skip(reason="not here")
def test_is_skipped(): pass
@pytest.mark.cuda
@pytest.mark.whole_device
def test_is_alone(): pass
def test_without_a_mark(): assert False
@pytest.mark.cuda
def test_crashes(): os.abort()
@pytest.mark.cuda
def test_crashes_or_not(): pass
@pytest.mark.cuda
@pytest.mark.timeout(0.3)
def test_hangs(): time.sleep(60)
@pytest.mark.cuda
def test_comes_last(): pass
"""


def test_crash_or_hang_costs_one_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_broken.py").write_text("import no_such_module  # cuda")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout_method = thread\nmarkers =\n  cuda\n  whole_device\n")
    monkeypatch.setattr(checks, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the processes load two plugins alone
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p pytest_timeout -p xdist")
    notes = MeasurementLog(tmp_path / "rows", 60.0)
    part = Part(torch.device("cpu"), QUICK, tmp_path, notes)
    checks.run_tests(part, [tmp_path / "test_it.py", tmp_path / "test_broken.py"])
    rows = check.read_rows(notes.path)
    outcomes = {row["test"].partition("::")[2]: row["outcome"] for row in rows if row["what"] == "test"}
    assert outcomes == {
        **{f"test_passes[{number}]": "passed" for number in range(3)},
        "test_fails": "failed",
        "test_is_skipped": "skipped",
        "test_crashes": "failed",
        "test_crashes_or_not": "passed",
        "test_hangs": "failed",
        "test_comes_last": "passed",
        "test_is_alone": "passed",
    }
    failed = {row["test"].partition("::")[2]: row for row in rows if row.get("outcome") == "failed"}
    assert "they differ" in failed["test_fails"]["error"] and "1 == 2" in failed["test_fails"]["end"]
    assert "crashed while running" in failed["test_crashes"]["error"]
    assert [row for row in rows if row["what"] == "test"][-1]["test"].endswith("test_is_alone")
    [broken] = [row for row in rows if row["what"] == "collection"]
    assert "no_such_module" in broken["error"]
    assert [row["exit_code"] for row in rows if row["what"] == "pytest"] == [1, 0]
    # Of the nine that are not skipped, six passed. A module that does not load is a failure more.
    assert goals.tests_passed(document_of(tests=rows), "tests") == 6 / 10


PASSED = [{"what": "collected", "tests": 1}, {"what": "test", "test": "a", "outcome": "passed"}]
SKIPPED = [{"what": "collected", "tests": 1}, {"what": "test", "test": "a", "outcome": "skipped"}]


@pytest.mark.parametrize(
    ("rows", "status", "share"),
    [
        (PASSED, "done", 1.0),
        ([*PASSED, {"what": "collection", "file": "b", "error": "ImportError"}], "done", 0.5),
        ([*PASSED, {"what": "pytest", "files": ["b"], "error": "stopped: out of time"}], "done", 0.5),
        (PASSED, "stopped after 3 s", 0.5),
        ([{"what": "pytest", "files": ["b"], "error": "pytest ended with 4"}], "done", 0.0),
        ([], "failed: exit code 1", 0.0),
        (SKIPPED, "done", None),
        ([], "skipped: out of time", None),
    ],
)
def test_tests_that_never_ran_count_as_failed(rows: list[dict], status: str, share: float | None) -> None:
    document = document_of(tests=rows, end_to_end=PASSED)
    document["results"][0]["status"] = status
    assert goals.tests_passed(document, "tests") == share
    assert goals.tests_passed(document, "end_to_end") == 1.0


def a_part(tmp_path: Path) -> Part:
    notes = MeasurementLog(tmp_path / "rows", 60.0)
    return Part(torch.device("cpu"), QUICK, tmp_path, notes)


def test_pytest_is_not_run_without_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest without a file runs the whole suite."""
    runs: list = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: runs.append(command) or SimpleNamespace(returncode=0))
    (tmp_path / "test_a.py").write_text("# cuda")
    checks.run_tests(a_part(tmp_path), [tmp_path / "test_a.py"])
    assert [str(tmp_path / "test_a.py") in command for command in runs] == [True]
    checks.run_tests(a_part(tmp_path), [])
    assert len(runs) == 1


def test_a_run_of_pytest_without_time_is_an_error(tmp_path: Path) -> None:
    part = a_part(tmp_path)
    part.notes._end = 0.0
    (tmp_path / "test_a.py").write_text("# cuda")
    checks.run_tests(part, [tmp_path / "test_a.py"])
    [row] = check.read_rows(part.notes.path)
    assert row["error"] == "stopped: out of time"


def test_wheels_include_what_tests_import() -> None:
    """tests/conftest.py imports hypothesis, and checks.run_tests() needs two plugins. pytest is installed.

    What they need depends on the Python, which is that of the list and not the running one.
    """
    first, *lines = (ROOT / "scripts" / "gpu_wheels.txt").read_text().splitlines()
    wheels = {line.split("==")[0].replace("_", "-") for line in lines}
    [python] = re.findall(r"wheels for Python (3\.\d+) ", first)
    there = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    for name in ("hypothesis", "pytest-timeout", "pytest-xdist"):
        needs = map(Requirement, importlib.metadata.requires(name) or [])
        names = {name, *(need.name for need in needs if need.marker is None or need.marker.evaluate(there))}
        assert names <= wheels | {"pytest"}


FAKE_WORKER = """
import json, os, sys, time
settings = json.loads(sys.stdin.readline())
for number in range(3):
    open(settings["rows"], "a").write(json.dumps({"what": number, "pid": os.getpid()}) + chr(10))
time.sleep(60)
"""
FAKE_CHECK = """
import sys
from scripts.gpu import check
check.WORKER = "fake_worker"
check.main(sys.argv[1:])
"""


def test_a_killed_check_leaves_every_row(tmp_path: Path) -> None:
    """SIGKILL allows no cleanup."""
    (tmp_path / "fake_worker.py").write_text(FAKE_WORKER)
    given = ["--out", tmp_path / "out", "--parts", "encoder", "--device", "cpu"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    process = subprocess.Popen([sys.executable, "-c", FAKE_CHECK, *given], stderr=subprocess.DEVNULL, env=env)
    stored, rows = tmp_path / "out" / "gpu_check.json", []
    for _ in range(1200):
        time.sleep(0.05)
        if stored.exists():
            [part] = json.loads(stored.read_text())["results"] or [{"rows": []}]
            rows = part["rows"]
            if len(rows) == 3:
                break
    process.kill()
    process.wait()
    os.kill(rows[0]["pid"], signal.SIGKILL)
    assert [row["what"] for row in rows] == [0, 1, 2] and part["status"] == "running"
    assert json.loads(stored.read_text())["results"] == [part]


def test_the_clock_starts_before_wheels_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = arguments(tmp_path, "--minutes", "1", "--parts", "encoder")
    document = check.new_document(given)
    check.Run(given, document, tmp_path, time.monotonic() - 58).all()  # as if unpacking had taken so long
    assert document["results"][0]["status"] == "skipped: out of time"


@pytest.mark.parametrize(
    ("leader_ends", "status", "child_starts"),
    [
        ("time.sleep(60)", "stopped after 2 s", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"),
        ("os.abort()", "failed: exit code -6", "os.setsid()"),
        ('print(\'{"status": "done"}\', flush=True)', "done", "pass"),
    ],
)
def test_no_child_of_a_part_outlives_it(leader_ends: str, status: str, child_starts: str, tmp_path: Path) -> None:
    written = tmp_path / "pid"
    child = (
        f"import os, signal, time; {child_starts}; open({str(written)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    )
    leader = f"import os, subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); "
    leader += f"sys.stdin.readline(); {leader_ends}"
    process = subprocess.Popen(
        [sys.executable, "-c", leader],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=os.setpgrp,
        env=os.environ | {processes.MARK + "X": "1"},
    )
    for _ in range(1000):
        time.sleep(0.05)
        if written.exists() and written.read_text():
            break
    leader_process = processes.Worker(process, processes.MARK + "X")
    assert leader_process.run({}, 2.0 if status.startswith("stopped") else 50.0, lambda: None)["status"] == status
    leader_process.end()
    for _ in range(1000):
        if not is_running(int(written.read_text())):
            return
        time.sleep(0.05)
    pytest.fail("the child of a part lives on")


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


CRASHING_WORKER = """
import json, os, sys
settings = json.loads(sys.stdin.readline())
open(settings["rows"], "w").write('{"what": 1}' + chr(10) + '{"what": 2')
print("going down", file=sys.stderr, flush=True)
os.abort()
"""


def test_a_part_that_crashes_leaves_its_rows_and_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crashing_worker.py").write_text(CRASHING_WORKER)
    monkeypatch.setattr(check, "WORKER", "crashing_worker")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    given = arguments(tmp_path, "--parts", "encoder,ceilings")
    document = check.new_document(given)
    check.Run(given, document, tmp_path, time.monotonic()).all()
    for found in document["results"]:  # the second has a process of its own again
        assert found["rows"] == [{"what": 1}]
        assert found["status"] == "failed: exit code -6" and "going down" in found["last_words"]
    assert "going down" in (tmp_path / "out" / "gpu_check.log").read_text()


def test_parts_share_a_process_and_its_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that fails leaves it to the others."""
    sink, loaded = tmp_path / "rows", {}

    def settings(name: str) -> dict:
        known = [{"what": "matmul", "dtype": "bf16", "m": 64, "k": 64, "n": 64, "ms": 1.0}]
        end = time.monotonic() + 60
        return {"part": name, "rows": str(sink), "end": end, "known": known, "device": "cpu", "quick": True} | {
            "scratch": str(tmp_path)
        }

    random_models.make_once(monkeypatch)
    time_call = roofline.time_call
    monkeypatch.setattr(roofline, "time_call", lambda call, device, **_: time_call(call, device, 0.01, 1, 1))
    assert worker.run(settings("ceilings"), loaded) == ("done", False)
    rows = check.read_rows(sink)
    assert len(rows) == 5 and not [row for row in rows if row.get("m") == 64], "what is known is not measured again"
    part = Part(torch.device("cpu"), QUICK, tmp_path, MeasurementLog(sink, 60.0), loaded)
    assert part.load("tiny-ctc") is part.load("tiny-ctc") and part.load("tiny-ctc", beam=1) is not part.load("tiny-ctc")
    refused = RefusedPath("graphs", "full: the driver is old", "using chunked")
    part.load("tiny-ctc")._refused(refused)  # by an earlier part: the model stays loaded
    other_rows = settings("ceilings") | {"rows": str(tmp_path / "other")}
    assert worker.run(other_rows, loaded) == ("done", False), "it uses no model"
    monkeypatch.setattr(pieces, "ceilings", lambda part: part.load("tiny-ctc"))
    assert worker.run(other_rows, loaded) == ("failed: graphs was refused: full: the driver is old", False)
    part._say(refused)
    assert check.read_rows(sink)[-1]["refused"] == {"graphs": "full: the driver is old"}
    assert worker.run(settings("ceilings"), {})[0] == "failed: graphs was refused: full: the driver is old"
    monkeypatch.setitem(PARTS, "ceilings", replace(PARTS["ceilings"], run="pieces:no_such_function"))
    status, is_lost = worker.run(settings("ceilings"), loaded)
    assert status.startswith("failed: AttributeError") and not is_lost and len(loaded) == 2


def stored_result(folder: Path, name: str, **changes: object) -> Path:
    """Write a result of the part on an H100 and return its path."""
    row = {"what": "a", "ms": 1.0}
    part = {"part": name, "code": plan.digest(name), "status": "done", "wall_s": 1.0, "rows": [row]} | changes
    date = f"2026-11-{len(list(folder.iterdir())):02}"
    document = document_of() | {"benchmark": "gpu_check", "results": [part], "date": date}
    document["hardware"] = {"gpu": {"torch_name": "NVIDIA H100 80GB HBM3"}}
    path = folder / f"{date}.json"
    path.write_text(json.dumps(document))
    return path


def test_the_plan_takes_what_has_no_result_of_this_code(tmp_path: Path) -> None:
    """Each kind of card has results of its own. What failed comes last, because it may fail again."""
    everything = [name for name in plan.PARTS if name != "facts"]
    assert [name for name, _ in plan.wanted("H100", [])] == everything
    stored_result(tmp_path, "files")
    stored_result(tmp_path, "nemo", code="0123")
    stored_result(tmp_path, "engine", rows=[{"what": "a"}, {"what": "b", "error": "skipped: out of time"}])
    stored_result(tmp_path, "memory", rows=[{"what": "a"}, {"what": "b", "error": "RuntimeError: no"}])
    stored_result(tmp_path, "loss", rows=[{"what": "b", "error": "RuntimeError: no"}])
    documents = plan.stored(tmp_path)
    found = dict(plan.wanted("H100", documents))
    assert "files" not in found and found["nemo"] == "of older code" and found["engine"] == "cut short"
    assert found["loss"] == "missing" and list(found)[-1] == "memory" and found["memory"] == "with errors"
    assert [name for name, _ in plan.wanted("H200", documents)] == everything
    assert plan.known_rows("engine", "H100", documents) == [{"what": "a"}]
    assert plan.known_rows("nemo", "H100", documents) == plan.known_rows("engine", "H200", documents) == []
    assert plan.choose(found, 240) == ["facts", "devices", "nemo"]
    assert plan.choose(everything, 240) == ["facts", "devices", "files", "engine"]  # a first call
    assert plan.choose(["files"], 20) == ["facts"]
    first = plan.choose(everything, 60 * plan.CALL_MINUTES)
    assert sum(plan.PARTS[name].most_s for name in first) < 60 * plan.CALL_MINUTES, "none is cut short by the others"


def test_an_encoders_share_is_of_a_stored_ceiling() -> None:
    document = document_of(encoder=[{"what": "encoder", "form": "shipped", "tflop_per_s": 300.0}])
    check.add_facts(document | {"earlier_ceiling_tflop_per_s": 600.0})
    [row] = document["results"][0]["rows"]
    assert row["mfu_share"] == 0.5


@pytest.mark.parametrize("name", ["nemo", "facts", "agreement"])
def test_some_parts_are_measured_as_a_whole(name: str, tmp_path: Path) -> None:
    stored_result(tmp_path, name, rows=[{"what": "turn"}, {"what": "b", "error": "skipped: out of time"}])
    assert plan.known_rows(name, "H100", plan.stored(tmp_path)) == []


def test_parts_that_had_their_time_wait_and_take_turns(tmp_path: Path) -> None:
    """A part that never ends in its time, or always fails, keeps no other from being measured."""
    cut: dict[str, object] = {"status": "stopped after 205 s", "rows": [{"what": "a"}]}
    failed: dict[str, object] = {"rows": [{"what": "a"}, {"what": "b", "error": "RuntimeError: no"}]}
    for name, changes in (("engine", failed), ("nemo", cut | {"wall_s": 204.0}), ("files", failed)):
        stored_result(tmp_path, name, **changes)
    stored_result(tmp_path, "memory", **(cut | {"wall_s": 20.0}))
    found = [name for name, _ in plan.wanted("H100", plan.stored(tmp_path))]
    assert found[:2] == ["devices", "memory"] and found[-3:] == ["nemo", "engine", "files"]
    stored_result(tmp_path, "engine", **failed)
    assert [name for name, _ in plan.wanted("H100", plan.stored(tmp_path))][-2:] == ["files", "engine"]


def test_facts_say_the_machine_however_late_it_is(tmp_path: Path) -> None:
    notes = MeasurementLog(tmp_path / "rows", -1.0, [{"what": "machine", "cpu": "another"}])
    function("facts")(Part(torch.device("cpu"), QUICK, tmp_path, notes))
    [machine] = [row for row in check.read_rows(notes.path) if row["what"] == "machine"]
    assert machine["cpu_cores"] > 0 and "error" not in machine


def test_a_digest_is_of_code_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "ROOT", tmp_path)
    monkeypatch.setitem(plan.PARTS, "encoder", replace(plan.PARTS["encoder"], sources=("a",)))
    (tmp_path / "a").mkdir()
    digests = []
    for text in ("x = 1\n", "# a comment\n\nx = 1\n", "x = 2\n"):
        (tmp_path / "a" / "b.py").write_text(text)
        plan.digest.cache_clear()
        digests.append(plan.digest("encoder"))
    plan.digest.cache_clear()
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
    ],
)
def test_cards_have_kinds(name: str, kind: str) -> None:
    assert plan.card(name) == kind


def test_cards_are_found_without_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's library names them, here that of the simulated GPU. No GPU is needed."""
    monkeypatch.setattr(check, "_DRIVER_S", 100.0)  # also on a busy machine
    assert check.this_card() is None
    monkeypatch.setenv("PYTHONPATH", str(rehearsal.SITE))
    monkeypatch.setenv("SIMULATED_GPU", '{"gpus": 2}')
    assert check.card_names() == ["Simulated GPU"] * 2


def test_the_plan_is_shown_without_a_gpu(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "STORED", tmp_path)
    stored_result(tmp_path, "files")
    stored_result(tmp_path, "devices")
    check.main(["--plan", "--card", "H100", "--minutes", "4"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:2] == ["next", "devices"] and lines[1].endswith("always")
    assert lines[2].split()[:2] == ["next", "nemo"] and lines[2].endswith("missing") and lines[-1].startswith("later")
    for name in list(plan.PARTS)[1:]:
        stored_result(tmp_path, name)
    check.main(["--plan", "--card", "H100"])
    assert "nothing is wanted" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        check.main(["--plan", "--card", "H100", "--parts", "files"])


def test_the_first_parts_get_time_before_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = arguments(tmp_path, "--minutes", "1")
    document, offered = check.new_document(given), {}
    monkeypatch.setattr(check.Run, "part", lambda run, part, seconds: offered.setdefault(part["part"], seconds))
    monkeypatch.setattr(check.Run, "write", lambda run: None)
    check.Run(given, document, tmp_path, time.monotonic()).all()
    assert offered["facts"] >= plan.PARTS["facts"].least_s - 1 and offered["files"] >= plan.PARTS["files"].least_s - 1


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
    tdt = {"shape": "parakeet-tdt-0.6b-v3"}
    document = document_of(
        facts=[{"what": "commit", "commit": "abc"}, {"what": "machine", "cpu": "x"}],
        tests=[
            {"what": "collected", "tests": 12},
            *({"what": "test", "test": f"{n}", "outcome": "passed"} for n in range(9)),
            {"what": "test", "test": "9", "outcome": "failed", "error": "x"},
            *({"what": "test", "test": f"s{n}", "outcome": "skipped"} for n in range(2)),
        ],
        ceilings=[{"what": "matmul", "dtype": "bf16", "m": 8192, "n": 8192, "tflop_per_s": 800.0}],
        encoder=[
            {"what": "encoder", **tdt, "form": "shipped", "tflop_per_s": 480.0},
            {"what": "encoder", **tdt, "form": "plain", "tflop_per_s": 700.0},
        ],
        engine=[
            {**board, **tdt, "pass": "very first", "rtfx": 99000.0},
            {**board, **tdt, "pass": "cold", "rtfx": 18000.0, "outside_encoder_share_of_wall": 0.5},
            {**board, **tdt, "pass": "warm", "rtfx": 22000.0, "outside_encoder_share_of_wall": 0.05},
        ],
        memory=[
            {**board, "shape": "parakeet-ctc-0.6b", "rtfx": 30000.0},
            {**board, "shape": "parakeet-rnnt-1.1b", "error": "RuntimeError: out of memory", "rtfx": 1.0},
            {**board, "shape": "parakeet-rnnt-1.1b", "rtfx": 99000.0, "graphs": "off"},
        ],
        nemo=[
            {"what": "side", "side": "nemo", "batch_size": 128, "rtfx": 4000.0},
            {"what": "side", "side": "nemo", "batch_size": 256, "rtfx": 5000.0},
            {"what": "side", "side": "fastscribe", "batch_size": 128, "rtfx": 20000.0},
        ],
    )
    check.add_facts(document)
    assert document["commit"] == "abc" and document["hardware"]["cpu"] == "x"
    reached = {row["goal"]: (row["measured"], row["reached_share"]) for row in document["goals"]}
    assert reached["0.6B TDT (8,192 tokens), from memory, every batch shape new, RTFx"] == (18000.0, 0.9)
    assert reached["0.6B TDT (8,192 tokens), from memory, warm, RTFx"] == (22000.0, 1.0)
    assert reached["0.6B CTC, from memory, warm, RTFx"] == (30000.0, 1.2)
    assert reached["1.1B RNN-T, from memory, warm, RTFx"] == (None, None)
    assert reached["speed over NeMo 3.0's, same files and weights"] == (4.0, 1.333)
    assert reached["encoder, share of the measured matrix ceiling"] == (0.6, 1.2)
    assert reached["wall time outside the encoder, share"] == (0.05, 2.0)
    assert reached["low-level CUDA tests passed, share"] == (0.9, 0.9)
    assert reached["end-to-end CUDA tests passed, share"] == (None, None)
    assert "not measured" in check.table(document)
    assert json.loads(check.as_text(document)) == document


def test_wheels_are_unpacked(tmp_path: Path) -> None:
    wheel = tmp_path / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("thing.py", "VALUE = 7\n")
        archive.writestr("thing-1.0.data/purelib/apart/__init__.py", "VALUE = 8\n")
    assert check.unpack([wheel], tmp_path / "site") == "1 unpacked"
    assert (tmp_path / "site" / "thing.py").read_text() == "VALUE = 7\n"
    assert (tmp_path / "site" / "apart" / "__init__.py").read_text() == "VALUE = 8\n"


def test_wheels_that_the_docs_name_have_versions() -> None:
    lines = (ROOT / "scripts" / "gpu_wheels.txt").read_text().splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    assert names and all(line.count("==") == 1 for line in names)
    assert len({line.split("==")[0].lower().replace("-", "_") for line in names}) == len(names)


SIDE = """
import json, sys
settings = json.loads(sys.stdin.readline())
line = "Cuda graphs with while loops are disabled, decoding speed will be slower"
print("chatter", line, line, sep="\\n", file=sys.stderr)
if settings["fails"]:
    sys.exit("cannot go on like this")
print(json.dumps({"threads": settings["threads"]}), flush=True)
for request in sys.stdin:
    if "hang" in request:
        import time
        time.sleep(60)
    print(request, end="", flush=True)
"""


def test_a_side_is_asked_and_its_warnings_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "side.py"
    program.write_text(SIDE, encoding="utf-8")
    command = [sys.executable, str(program)]
    with pytest.raises(RuntimeError, match="exit code 1: cannot go on like this"):
        turns.SideProcess({"threads": 1, "fails": True}, command)
    side = turns.SideProcess({"threads": 1, "fails": False}, command)
    assert side.info == {"threads": 1} and side.ask({"command": "run"}) == {"command": "run"}
    assert len(side.fallback_lines()) == 1 and "chatter" in side.said()
    monkeypatch.setattr(turns, "_MAX_TURN_S", 0.3)
    with pytest.raises(RuntimeError, match="stopped after 0 s"):
        side.ask({"command": "hang"})
    side.stop()
