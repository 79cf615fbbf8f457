"""What `--devices` accepts, with processors and GPUs that this machine need not have."""

from __future__ import annotations

import pytest

from fastscribe.errors import UsageError
from fastscribe.pipeline.workers import devices
from fastscribe.pipeline.workers.devices import parse_devices
from tests.conftest import AUDIO
from tests.helpers.processes import fastscribe

CLIP = next(AUDIO.glob("01*.flac"))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight processors and three GPUs."""
    monkeypatch.setattr(devices, "usable_processors", lambda: 8)
    monkeypatch.setattr(devices, "_num_gpus", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(("number", "shares"), [(1, [8]), (2, [4, 4]), (3, [3, 3, 2]), (8, [1] * 8)])
def test_processes_share_all_processors(machine: None, number: int, shares: list[int]) -> None:
    found = parse_devices(f"cpu:{number}")
    assert [one.processors for one in found] == [int(one.variables["OMP_NUM_THREADS"]) for one in found] == shares
    assert [(one.name, one.kind) for one in found] == [(f"cpu:{index}", "cpu") for index in range(number)]


@pytest.mark.parametrize(
    ("text", "visible", "names", "own"),
    [
        ("all", None, ["cuda:0", "cuda:1", "cuda:2"], ["0", "1", "2"]),
        ("0,2", None, ["cuda:0", "cuda:2"], ["0", "2"]),
        ("cuda:2,cuda:0", None, ["cuda:2", "cuda:0"], ["2", "0"]),
        ("1", None, ["cuda:1"], ["1"]),
        ("0,2", "4, 5,7", ["cuda:0", "cuda:2"], ["4", "7"]),
        ("1", "GPU-1a,GPU-2b,MIG-3c", ["cuda:1"], ["GPU-2b"]),
    ],
)
def test_each_gpu_is_the_only_one_that_its_process_sees(
    machine: None, monkeypatch: pytest.MonkeyPatch, text: str, visible: str | None, names: list[str], own: list[str]
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = parse_devices(text)
    assert [one.name for one in found] == names
    assert [one.variables["CUDA_VISIBLE_DEVICES"] for one in found] == own
    assert {one.kind for one in found} == {"cuda"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cpu:0", "from 1 to 8 processes"),
        ("cpu:9", "from 1 to 8 processes"),
        ("cpu:-1", "cpu:N for N processes"),
        ("cpu", "cpu:N for N processes"),
        ("cpu:2,0", "cpu:N for N processes"),
        ("", "cpu:N for N processes"),
        ("0,", "cpu:N for N processes"),
        ("0,9", "there is no CUDA device 9: 3 are visible, 0 to 2"),
        ("1,cuda:1", "names CUDA device 1 twice"),
    ],
)
def test_other_devices_are_refused(machine: None, text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_devices(text)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["cpu:0"], "--devices cpu:0: from 1 to "),
        (["cpu:x"], "--devices cpu:x: not all, numbers of GPUs such as 0,2, or cpu:N for N processes"),
        (["cpu"], "--devices cpu: use cpu:N, for N processes"),
        (["cpu:1", "--device", "cpu"], "--device and --devices exclude each other"),
        (["cpu:1", "--stop-at-usd", 5], "no price is known for this machine: give --price-per-hour USD"),
    ],
    ids=["none", "no number", "other tools", "device", "price"],
)
def test_the_command_says_so_in_one_line_before_it_looks_for_the_model(options: list[object], problem: str) -> None:
    done = fastscribe("transcribe", CLIP, "-m", "/no/such/model", "--devices", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and problem in done.stderr


@pytest.mark.parametrize("text", ["all", "0,9", "0"])
def test_without_gpus_cpu_is_suggested(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(devices, "_num_gpus", lambda: 0)
    with pytest.raises(UsageError, match=f"--devices {text}: no CUDA device is visible here: cpu:N"):
        parse_devices(text)
