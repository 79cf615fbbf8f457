"""scripts/gpu_rehearsal runs the command on a simulated GPU, which is strict as a GPU is. No GPU takes part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from scripts.gpu import rehearsal
from scripts.gpu.rehearsal import SCENES, Done, Wrong

pytestmark = pytest.mark.linux

PROGRAM = """
import sys
import torch

before = set(sys.modules)
layer = torch.nn.Linear(4, 4).requires_grad_(False).to(torch.device("cuda", 0), torch.float32)
given = torch.ones(2, 4).to("cuda", non_blocking=True)
out = layer(given).t().contiguous()[1:]
assert out.device.type == "cuda" and out.is_cuda and layer.weight.is_cuda
assert torch.equal(out.cpu(), torch.nn.functional.linear(torch.ones(2, 4), layer.weight.cpu(), layer.bias.cpu()).t()[1:])
for wrong, expected in (
    (lambda: given + torch.ones(4), "same device"),
    (lambda: given.numpy(), "cuda:0 device type tensor to numpy"),
    (lambda: torch.zeros(1 << 20, device="cuda"), "out of memory"),
):
    try:
        wrong()
    except (RuntimeError, TypeError) as error:
        assert expected in str(error), error
    else:
        raise AssertionError(expected)
assert not torch.empty(8).is_pinned() and torch.empty(8, pin_memory=True).is_pinned()
held = torch.cuda.memory_allocated()
del given
assert torch.cuda.memory_allocated() == held - 32
print([name for name in set(sys.modules) - before if name.startswith("torch")])
"""


def test_the_simulated_gpu_is_strict_and_imports_no_more_of_torch() -> None:
    """A program that imports torch in part must fail here as on a GPU: the simulation completes no import."""
    env = os.environ | {"PYTHONPATH": str(rehearsal.SITE), "SIMULATED_GPU": json.dumps({"memory_bytes": 1 << 20})}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, timeout=100)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_the_smallest_scene(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton")
    rehearsal.main(["few"])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("few") and said[-1].startswith("gpu_rehearsal: rows are equal")


SCENE = next(scene for scene in SCENES if scene.name == "many")
ROWS = ["a", "b"]
EVENTS = [
    {"pid": 7, "is_worker": True, "event": name}
    for name in ("context", "batch", "pinned batch", "interpreted kernel", "graph", "loop")
]


@pytest.fixture
def done(tmp_path: Path) -> Done:
    (tmp_path / "report.json").write_text('{"refused": {}}')
    (tmp_path / "transcripts.jsonl").write_text("b\na\n")
    return Done(0, "", tmp_path, EVENTS)


def test_what_is_right_is_accepted(done: Done) -> None:
    rehearsal.check(SCENE, done, ROWS)


@pytest.mark.parametrize("number", range(1, len(EVENTS)))
def test_what_did_not_happen_is_wrong(done: Done, number: int) -> None:
    with pytest.raises(Wrong):
        rehearsal.check(SCENE, replace(done, events=EVENTS[:number] + EVENTS[number + 1 :]), ROWS)


def test_other_results_are_wrong(done: Done) -> None:
    with pytest.raises(Wrong, match="exit code 3: why"):
        rehearsal.check(SCENE, replace(done, code=3, stderr="why"), ROWS)
    with pytest.raises(Wrong, match="nothing handles: Traceback"):
        rehearsal.check(SCENE, replace(done, stderr="Traceback (most recent call last):"), ROWS)
    with pytest.raises(Wrong, match="2 rows, not 3"):
        rehearsal.check(SCENE, done, [*ROWS, "c"])
    with pytest.raises(Wrong, match="b is not c"):
        rehearsal.check(SCENE, done, ["a", "c"])
    with pytest.raises(Wrong, match="stderr does not say 'words'"):
        rehearsal.check(replace(SCENE, says="words"), done, ROWS)
    with pytest.raises(Wrong, match="did not happen: killed"):
        rehearsal.check(replace(SCENE, happens=["killed"]), done, ROWS)
    with pytest.raises(Wrong, match="1 processes of devices decoded, not 2"):
        rehearsal.check(replace(SCENE, devices=2), done, ROWS)
    coordinator = {"pid": 1, "is_worker": False, "event": "context"}
    with pytest.raises(Wrong, match="made a CUDA context"):
        rehearsal.check(SCENE, replace(done, events=[*EVENTS, coordinator]), ROWS)
    with pytest.raises(Wrong, match="0 processes beside those of devices decoded"):
        rehearsal.check(replace(SCENE, goes_on_here=True), done, ROWS)


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([], "texts of 0 clips, not of 2"),
        ([{"text": "a"}, {"error": "no"}], "texts of 1 clips, not of 2"),
        ([{"text": "a"}, {"text": "a"}], "the same text"),
    ],
)
def test_a_cpu_must_have_texts(rows: list[dict[str, str]], wrong: str) -> None:
    scene = replace(SCENE, clips=2)
    rehearsal.check_expected(scene, ['{"text": "a"}', '{"text": ""}'])
    with pytest.raises(Wrong, match=wrong):
        rehearsal.check_expected(scene, [json.dumps(row) for row in rows])


def test_refusals_are_wrong_unless_they_are_meant(done: Done) -> None:
    pinning = next(scene for scene in SCENES if scene.name == "pinning")
    told = replace(done, stderr="the memory cannot be pinned")
    with pytest.raises(Wrong, match=r"report\.json does not say that pinning was refused"):
        rehearsal.check(pinning, told, ROWS)
    (done.out / "report.json").write_text('{"refused": {"triton": "a reason"}}')
    with pytest.raises(Wrong, match="refused: triton: a reason"):
        rehearsal.check(SCENE, done, ROWS)
    (done.out / "report.json").write_text("{}")
    with pytest.raises(Wrong, match="no field `refused`"):
        rehearsal.check(SCENE, done, ROWS)


def test_the_scene_of_tests_runs_pytest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the options of pyproject.toml, and a module that costs little in place of the devices'."""
    monkeypatch.setattr(rehearsal, "CUDA_TESTS", "tests/pipeline/test_stats.py")
    rehearsal.run_tests(tmp_path)


@pytest.mark.parametrize(
    ("code", "last"),
    [(1, "1 failed, 2 passed"), (0, "2 passed, 1 skipped"), (0, "3 skipped"), (5, "no tests ran"), (0, "")],
)
def test_tests_must_all_pass(tmp_path: Path, code: int, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = subprocess.CompletedProcess([], code, f"....\n{last}\n", "")
    monkeypatch.setattr(rehearsal, "run_module", lambda *_: outcome)
    with pytest.raises(Wrong, match=f"exit code {code}"):
        rehearsal.run_tests(tmp_path)


def test_every_fused_operation_is_interpreted_in_a_scene() -> None:
    from fastscribe.families.conformer.operations import Operations

    assert {field.name for field in fields(Operations)} == set(rehearsal.OPERATIONS)


def test_unknown_scenes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        rehearsal.main(["few", "fewer"])
    assert "no such scene: fewer" in capsys.readouterr().err
