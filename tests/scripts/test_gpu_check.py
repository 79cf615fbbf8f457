"""scripts/gpu_check keeps every row if its parts or itself fail."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from fastscribe.checkpoint.reader import read_checkpoint
from tests.conftest import ROOT

pytestmark = pytest.mark.linux

SCRIPT = ROOT / "scripts" / "gpu_check"


@cache
def script(name: str) -> ModuleType:
    before = list(sys.path)
    sys.path.insert(0, str(ROOT / "scripts"))
    loader = SourceFileLoader(name, str(ROOT / "scripts" / name))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    loader.exec_module(module)
    sys.path[:] = before
    return module


def gpu_check() -> ModuleType:
    return script("gpu_check")


def arguments(tmp_path: Path, *given: str):
    (tmp_path / "out").mkdir(exist_ok=True)
    return gpu_check().parse(["--out", str(tmp_path / "out"), "--device", "cpu", "--quick", *given])


def new_part(name: str) -> dict:
    return {"part": name, "status": "running", "wall_s": 0.0, "rows": []}


@pytest.mark.timeout(120)
def test_quick_cpu_check_runs_every_part(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--out", tmp_path, "--device", "cpu", "--quick", "--parts", "engine"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    *_, path, summary = done.stdout.splitlines()
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    assert [(part["part"], part["status"]) for part in document["results"]] == [("engine", "done")]
    rows = document["results"][0]["rows"]
    assert not [row for row in rows if "error" in row]
    passes = {row["pass"]: row for row in rows if row["what"] == "from_memory"}
    assert list(passes) == ["very first", "cold", "warm"] and passes["cold"]["new_shapes_share"] == 1.0
    assert passes["cold"]["audio_s"] == passes["warm"]["audio_s"]
    assert rows[-1]["what"] == "host_time_of_a_batch" and rows[-1]["text_ms"] > 0
    measured = json.loads(summary)["measured"]
    assert [value is not None for value in measured.values()] == [True, True, *[False] * 6, True, False, False]
    assert {"gpu_check.json", "gpu_check.log"} == {file.name for file in tmp_path.iterdir()}


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
    ],
)
def test_part_on_cpu(
    name: str, allowed: tuple[str, ...], scratch: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    parts = script("gpu_parts.py")
    loads: list[str] = []
    load = parts.Part.load
    monkeypatch.setattr(
        parts.Part, "load", lambda part, shape, *a, **k: loads.append(shape) or load(part, shape, *a, **k)
    )
    num_threads = parts.torch.get_num_threads()
    parts.torch.set_num_threads(1)  # tiny tensors; more threads wait for each other
    request.addfinalizer(lambda: parts.torch.set_num_threads(num_threads))
    time_call = parts.decoding_speed.time_call
    for module in (parts.ceilings, parts.decoding_speed, parts.encoder_speed):
        monkeypatch.setattr(module, "time_call", lambda call, device, **_: time_call(call, device, 0.01, 1, 1))
    notes = parts.MeasurementLog(scratch / name, 60.0)
    parts.PARTS[name](parts.Part(parts.torch.device("cpu"), parts.QUICK, scratch, notes))
    rows = gpu_check().read_rows(notes.path)
    assert [row for row in rows if "error" not in row]
    for row in rows:
        assert "error" not in row or any(reason in row["error"] for reason in allowed), row
    assert len(loads) == len(set(loads)), "a part loads each model once"
    if name == "decoder":
        assert {row["rows"] for row in rows if row.get("mode") == "off" and "rows" in row} == set(
            parts.QUICK.decoder_rows[:2]
        )
        assert all(row["equal_to_off_share"] == 1.0 for row in rows if "equal_to_off_share" in row)
    if name == "profile":
        assert [row["name"] for row in rows if row["what"] == "stage"] == ["features", "subsampling", "encoder"]
        assert all(row["new_shape_ms"] > 0 for row in rows if row["what"] == "stage")


def test_calls_hold_known_parts_and_end_within_a_devices_limit() -> None:
    check, parts = gpu_check(), script("gpu_parts.py")
    assert list(check.LIMITS) == list(parts.PARTS)
    for call in check.CALLS.values():
        assert set(call.parts) <= set(check.LIMITS)
        assert sum(check.LIMITS[name].least_s for name in call.parts) < 60 * call.minutes <= 600
    assert {name for call in check.CALLS.values() for name in call.parts} == set(check.LIMITS)


def test_a_call_sets_parts_and_minutes(tmp_path: Path) -> None:
    given = arguments(tmp_path, "--call", "smoke")
    assert (given.minutes, given.parts[1]) == (5.0, "tests")
    assert arguments(tmp_path, "--call", "smoke", "--minutes", "2").minutes == 2.0
    assert arguments(tmp_path).minutes == 8.5
    assert len(arguments(tmp_path).parts) == len(gpu_check().LIMITS)


def test_every_cuda_test_module_has_its_part(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = script("gpu_parts.py")
    found: list[Path] = []
    monkeypatch.setattr(parts, "_run_tests", lambda part, paths: found.extend(paths))
    for name in ("tests", "end_to_end"):
        parts.PARTS[name](
            parts.Part(parts.torch.device("cpu"), parts.QUICK, scratch, parts.MeasurementLog(scratch / name, 1))
        )
    marked = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.cuda" in path.read_text()]
    assert all(path.exists() for path in found) and len(found) == len(set(found))
    assert set(marked) <= set(found)
    assert found[0].name == "test_triton_kernels.py"


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
    parts = script("gpu_parts.py")
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_broken.py").write_text("import no_such_module  # cuda")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout_method = thread\nmarkers =\n  cuda\n  whole_device\n")
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "scripts"))
    notes = parts.MeasurementLog(tmp_path / "rows", 60.0)
    part = parts.Part(parts.torch.device("cpu"), parts.QUICK, tmp_path, notes)
    parts._run_tests(part, [tmp_path / "test_it.py", tmp_path / "test_broken.py"])
    rows = gpu_check().read_rows(notes.path)
    outcomes = [(row["test"].partition("::")[2], row["outcome"]) for row in rows if row["what"] == "test"]
    assert outcomes == [
        *((f"test_passes[{number}]", "passed") for number in range(3)),
        ("test_fails", "failed"),
        ("test_is_skipped", "skipped"),
        ("test_crashes_or_not", "passed"),
        ("test_comes_last", "passed"),
        ("test_is_alone", "passed"),
    ]
    [failed] = [row for row in rows if row.get("outcome") == "failed"]
    assert "they differ" in failed["error"] and "1 == 2" in failed["end"]
    assert "no_such_module" in next(row["error"] for row in rows if row["what"] == "collection")
    crashed, hung, rest, alone = (row for row in rows if row["what"] == "pytest" and row["files"] == ["test_it.py"])
    assert crashed["exit_code"] == -6 and hung["exit_code"] == 1
    assert crashed["error"] == "ended during test_it.py::test_crashes; 3 tests never ran"
    assert hung["error"] == "ended during test_it.py::test_hangs; 1 tests never ran"
    assert "error" not in rest and "error" not in alone
    assert sum(row["what"] == "started" for row in rows) == 10
    # Of the nine that are not skipped, six passed. Three failures more: a module that does not load, and two processes.
    assert script("gpu_goals.py").tests_passed(document_of(tests=rows), "tests") == 6 / 12


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
    assert script("gpu_goals.py").tests_passed(document, "tests") == share
    assert script("gpu_goals.py").tests_passed(document, "end_to_end") == 1.0


def a_part(tmp_path: Path) -> object:
    parts = script("gpu_parts.py")
    notes = parts.MeasurementLog(tmp_path / "rows", 60.0)
    return parts.Part(parts.torch.device("cpu"), parts.QUICK, tmp_path, notes)


def test_pytest_is_not_run_without_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest without a file runs the whole suite."""
    parts, runs = script("gpu_parts.py"), []
    monkeypatch.setattr(parts, "_pytest", lambda notes, arguments, env: runs.append(arguments) or 0)
    (tmp_path / "test_a.py").write_text("# cuda")
    parts._run_tests(a_part(tmp_path), [tmp_path / "test_a.py"])
    assert [arguments[-1] for arguments in runs] == [str(tmp_path / "test_a.py")]
    parts._run_tests(a_part(tmp_path), [])
    assert len(runs) == 1


def test_thread_errors_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(notes: object, arguments: object, env: object) -> int:
        raise OSError("no space left")

    parts = script("gpu_parts.py")
    monkeypatch.setattr(parts, "_pytest", fail)
    (tmp_path / "test_a.py").write_text("# cuda")
    with pytest.raises(OSError, match="no space left"):
        parts._run_tests(a_part(tmp_path), [tmp_path / "test_a.py"])


def test_wheels_include_what_tests_import() -> None:
    """tests/conftest.py imports hypothesis, and test time limits need pytest-timeout. pytest is installed."""
    lines = (ROOT / "scripts" / "gpu_wheels.txt").read_text().splitlines()
    wheels = {line.split("==")[0].replace("_", "-") for line in lines}
    for name in ("hypothesis", "pytest-timeout"):
        needed = [need for need in importlib.metadata.requires(name) or [] if "extra ==" not in need]
        names = {name, *(re.split(r"[^\w-]", need)[0] for need in needed)}
        assert names <= wheels | {"pytest"}


def test_shares_divide_the_tests_that_have_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin, found = script("gpu_pytest.py"), []
    items = [SimpleNamespace(nodeid=name) for name in "abcdefg"]
    monkeypatch.setenv("GPU_CHECK_ROWS", str(tmp_path / "rows"))
    for number in range(3):
        monkeypatch.setenv("GPU_CHECK_SHARE", f"{number}/3")
        share = list(items)
        plugin.pytest_collection_modifyitems(share)
        found += [item.nodeid for item in share]
    assert found[:3] == ["a", "d", "g"] and sorted(found) == list("abcdefg")
    plugin.pytest_runtest_logstart("a")
    monkeypatch.setenv("GPU_CHECK_SHARE", "0/3")
    rest = list(items)
    plugin.pytest_collection_modifyitems(rest)
    assert [item.nodeid for item in rest] == ["d", "g"]
    rows = gpu_check().read_rows(tmp_path / "rows")
    assert [row["again"] for row in rows if row["what"] == "collected"] == [False, False, False, True]


def test_a_killed_check_leaves_every_row(tmp_path: Path) -> None:
    """SIGKILL allows no cleanup."""
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    for name in ("gpu_check", "gpu_goals.py"):
        shutil.copy(ROOT / "scripts" / name, scripts)
    (scripts / "gpu_parts.py").write_text(
        "import json, os, sys, time\n"
        "settings = json.load(open(sys.argv[2]))\n"
        "for number in range(3):\n"
        "    open(settings['rows'], 'a').write(json.dumps({'what': number, 'pid': os.getpid()}) + '\\n')\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, scripts / "gpu_check", "--out", tmp_path / "out", "--parts", "kernels"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
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


def test_the_clock_starts_before_wheels_are_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = arguments(tmp_path, "--minutes", "1", "--parts", "kernels")
    document = gpu_check().new_document(given)
    gpu_check().run_all(given, document, tmp_path, time.monotonic() - 58)  # as if installing had taken so long
    assert document["results"][0]["status"] == "skipped: out of time"


@pytest.mark.parametrize(
    ("leader_ends", "status"),
    [
        ("time.sleep(60)", "stopped after 2 s"),
        ("os.abort()", "failed: exit code -6"),
        ("os._exit(0)", "done"),
    ],
)
@pytest.mark.parametrize("child_starts", ["pass", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_no_child_of_a_part_outlives_it(leader_ends: str, status: str, child_starts: str) -> None:
    child = f"import os, signal, time; {child_starts}; print(os.getpid(), flush=True); time.sleep(60)"
    leader = f"import os, subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]);"
    leader += f" sys.stdin.readline(); {leader_ends}"
    process = subprocess.Popen(
        [sys.executable, "-c", leader], stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=os.setpgrp
    )
    assert process.stdin is not None and process.stdout is not None
    grandchild = int(process.stdout.readline())
    process.stdin.write(b"end\n")
    process.stdin.close()
    seconds = 2.0 if status.startswith("stopped") else 50.0
    assert gpu_check().outcome(process, seconds) == status
    process.stdout.close()
    for _ in range(1000):
        if not is_running(grandchild):
            return
        time.sleep(0.05)
    pytest.fail("the child of a part lives on")


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
    found = new_part("kernels")
    gpu_check().run_part(found, arguments(tmp_path), 30, tmp_path, dict(os.environ))
    assert found["rows"] == [{"what": 1}]
    assert found["status"] == "failed: exit code -6" and "going down" in found["last_words"]
    assert "going down" in (tmp_path / "out" / "gpu_check.log").read_text()


def test_parts_without_time_are_skipped(tmp_path: Path) -> None:
    given = arguments(tmp_path, "--minutes", "0", "--parts", "memory,files")
    document = gpu_check().new_document(given)
    gpu_check().run_all(given, document, tmp_path, time.monotonic())
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
    gpu_check().add_facts(document)
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
    assert "not measured" in gpu_check().table(document)
    assert json.loads(gpu_check().as_text(document)) == document


def test_changes_list_different_speeds_and_outcomes() -> None:
    def of(rtfx: float, outcome: str, ms: float) -> dict:
        encoder = {"what": "encoder", "shape": "a", "rows": 8}
        return document_of(
            memory=[{"what": "from_memory", "shape": {"x": 1}, "pass": "warm", "rtfx": rtfx}, {"what": "load"}],
            tests=[{"what": "test", "test": "t", "outcome": outcome, "took_s": rtfx}],
            encoder=[{**encoder, "ms": ms}, {**encoder, "rows": int(ms), "ms": ms}],
        )

    changes = script("gpu_goals.py").changes
    assert changes(of(100.0, "passed", 5.0), of(104.0, "passed", 5.1)) == []
    found = changes(of(100.0, "passed", 5.0), of(90.0, "failed", 6.0))
    assert [(row["case"]["part"], row["value"], row["was"], row["is"]) for row in found] == [
        ("memory", "rtfx", 90.0, 100.0),
        ("tests", "outcome", "failed", "passed"),
        ("encoder", "ms", 6.0, 5.0),
    ]
    assert "changed: memory from_memory" in gpu_check().table(document_of() | {"changes": found})


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_invalid_earlier_result_is_refused(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(SystemExit):
        arguments(tmp_path, "--earlier", str(tmp_path / "x.json"))
    assert "--earlier" in capsys.readouterr().err


def test_nemos_model_gets_our_weights() -> None:
    """The weights go into the tensors of its own state dict, with NeMo's names and shapes."""
    import torch

    path = ROOT / "tests" / "data" / "models" / "tdt_demo" / "model.nemo"
    with tarfile.open(path) as archive:
        member = next(name for name in archive.getnames() if name.endswith(".ckpt"))
        theirs = torch.load(archive.extractfile(member), weights_only=True)  # type: ignore[arg-type]
    ours = read_checkpoint(path)
    wanted = {name: tensor.clone() for name, tensor in theirs.items()}
    for name, tensor in theirs.items():
        if not name.startswith("preprocessor"):
            tensor.zero_()
    turns = script("gpu_turns.py")
    weights = {name: ours.weights[name] for name in ours.weights if not name.endswith("num_batches_tracked")}
    turns.copy_into_nemo(theirs, ours.config.encoder, weights)
    assert all(torch.equal(theirs[name], wanted[name]) for name in wanted if "num_batches" not in name)
    with pytest.raises(ValueError, match="names differ"):
        turns.copy_into_nemo(theirs, ours.config.encoder, {})


def test_without_rows_no_goal_is_reached() -> None:
    document = document_of()
    gpu_check().add_facts(document)
    assert all(row["measured"] is None for row in document["goals"])
    gpu_check().table(document)


def test_wheels_are_unpacked_if_pip_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
