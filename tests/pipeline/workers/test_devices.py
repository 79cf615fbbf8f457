"""What `--devices` accepts, with processors and GPUs that this machine need not have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastscribe import Options
from fastscribe.checkpoint import reader
from fastscribe.cuda.device import free_bytes
from fastscribe.errors import UsageError
from fastscribe.pipeline.engine import Engine
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.pipeline.stats import DeviceShare
from fastscribe.pipeline.workers import device, devices
from fastscribe.pipeline.workers.devices import parse_devices
from fastscribe.pipeline.workers.messages import Start
from fastscribe.pipeline.workers.pool import WorkerPool


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight processors and three GPUs."""
    monkeypatch.setattr(devices, "usable_processors", lambda: 8)
    monkeypatch.setattr(devices, "num_gpus", lambda: 3)
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


def test_a_gpu_that_is_named_twice_gets_two_processes_with_half_of_it_each(machine: None) -> None:
    found = parse_devices("0,2,cuda:0")
    assert [one.name for one in found] == ["cuda:0", "cuda:2", "cuda:0"]
    assert [one.variables["CUDA_VISIBLE_DEVICES"] for one in found] == ["0", "2", "0"]
    assert [one.memory_share for one in found] == [0.5, 1.0, 0.5]
    names = ["process 1 of cuda:0", "the process of cuda:2", "process 2 of cuda:0"]
    assert [one.process_name for one in found] == names
    assert [one.processors for one in found] == [2, 2, 2]


def test_processes_of_one_gpu_are_one_device_of_the_report() -> None:
    """So that the listed price of the GPU counts once."""
    shares = [
        DeviceShare("cuda:0", "NVIDIA H200", 3, 30, 60.0, 5.0, 100),
        DeviceShare("cuda:1", "NVIDIA H200", 1, 10, 20.0, 4.0, 70),
        DeviceShare("cuda:0", "NVIDIA H200", 2, 20, 40.0, 6.0, 90, died=1),
    ]
    pool: Any = SimpleNamespace(_slots=[SimpleNamespace(share=share) for share in shares])
    both = DeviceShare("cuda:0", "NVIDIA H200", 5, 50, 100.0, 11.0, 190, 1)
    assert WorkerPool.shares(pool) == [both, shares[1]]
    assert shares[0].batches == 3  # counting goes on


def test_a_process_keeps_to_its_share_of_the_gpus_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    monkeypatch.setattr(Recognizer, "build", lambda *_: None)
    monkeypatch.setattr(reader, "read_for_run", lambda *_: None)
    monkeypatch.setattr(Engine, "__init__", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    memory: Any = None
    for share in (1.0, 0.5):
        device.load(Start("model.nemo", "bf16", Options(), "cuda", memory_share=share), memory, print)
    assert shares == [0.95 * 0.5]


@pytest.mark.parametrize(("share", "free_gb"), [(1.0, 60.0), (0.5, 23.0)])
def test_free_memory_is_what_the_process_may_still_take(
    monkeypatch: pytest.MonkeyPatch, share: float, free_gb: float
) -> None:
    """80 GB, of which 55 are free, 20 the process's own, and 15 of these in use: at most 40 GB are its own if it has half."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (55 * 10**9, 80 * 10**9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 20 * 10**9)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 15 * 10**9)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    shares = {3: share * 0.95 if share < 1 else 1.0}  # torch wants a number here
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", shares.__getitem__)
    assert free_bytes(torch.device("cuda")) == free_bytes(torch.device("cuda:3")) == pytest.approx(free_gb * 10**9)


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
    ],
)
def test_other_devices_are_refused(machine: None, text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_devices(text)


@pytest.mark.parametrize("text", ["all", "0,9", "0"])
def test_without_gpus_cpu_is_suggested(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(devices, "num_gpus", lambda: 0)
    with pytest.raises(UsageError, match=f"--devices {text}: no CUDA device is visible here: cpu:N"):
        parse_devices(text)


def test_one_process_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastscribe.pipeline.workers.devices.usable_processors", lambda: 1)
    with pytest.raises(UsageError, match="cpu:2: there is 1 processor here"):
        parse_devices("cpu:2")
