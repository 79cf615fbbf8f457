"""Streams, events, pinned memory and stage times on a CPU, and in the tests marked `cuda` on a GPU."""

from __future__ import annotations

import contextlib
import sys

import numpy as np
import pytest
import torch

from fastscribe.cuda.device import (
    StageTimes,
    Stream,
    host_array,
    recover,
    short_switch_interval,
    to_device,
    to_host,
)
from fastscribe.errors import is_out_of_memory
from fastscribe.pipeline.stats import Stopwatch

CPU = torch.device("cpu")


def test_stage_times_add_up() -> None:
    times, stopwatch = StageTimes(CPU), Stopwatch()
    for _ in range(2):
        with times.time("encode"):
            pass
    stopwatch.add("encode", 1.0)
    times.add_to(stopwatch.add)
    assert stopwatch.seconds["encode"] > 1.0


def test_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 58)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    assert is_out_of_memory(torch.AcceleratorError("CUDA error: out of memory"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    assert not is_out_of_memory(torch.AcceleratorError("CUDA error: an illegal memory access was encountered"))


def test_switch_interval_restored() -> None:
    before = sys.getswitchinterval()
    with short_switch_interval(CPU):
        assert sys.getswitchinterval() == before
    with contextlib.suppress(ValueError), short_switch_interval(torch.device("cuda")):
        assert sys.getswitchinterval() < before
        raise ValueError
    assert sys.getswitchinterval() == before


@pytest.mark.cuda
def test_events_and_copies_on_gpu() -> None:
    device = torch.device("cuda", 0)
    copies, work = Stream(device), Stream(device, high_priority=True)
    array = host_array((1 << 20,), np.dtype(np.int16), device)
    assert torch.from_numpy(array).is_pinned()
    array[:] = 3
    times, stopwatch = StageTimes(device), Stopwatch()
    with copies.activate(), times.time("copy"):
        sent = to_device(array, device)
    work.wait_event(copies.record_event())
    with work.activate(), times.time("work"):
        back = to_host(sent.float() * 2)
    work.record_event().synchronize()
    assert (back == 6).all()
    times.add_to(stopwatch.add)
    assert stopwatch.seconds["copy"] > 0 and stopwatch.seconds["work"] > 0
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(1 << 50, device=device)
    assert is_out_of_memory(caught.value)
    assert recover(device) is None
