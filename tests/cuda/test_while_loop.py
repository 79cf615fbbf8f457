"""The while graph is built as the driver expects, and everything that is missing is reported as one reason.

No GPU is needed. FakeCuda replaces cuda.bindings and the driver: it counts handles, fails on request, and runs graphs with
Python functions as steps. CUDA's assembler checks the kernel's PTX, which only a driver can load.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastscribe.cuda import while_loop
from fastscribe.cuda.graph_capture import GraphsUnavailable
from fastscribe.cuda.while_loop import WhileGraph, toolkit
from tests.fakes.cuda_driver import Code, FakeCuda, LibraryNotFound

DEVICE = torch.device("cuda", 0)


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeCuda) -> None:
    """Install the fake bindings and replace torch's CUDA functions."""
    for name, module in fake.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    stream = SimpleNamespace(query=lambda: True, cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *device: stream)


@pytest.fixture(autouse=True)
def fresh_toolkits() -> Iterator[None]:
    while_loop._toolkit.cache_clear()
    yield
    while_loop._toolkit.cache_clear()


BUILD_CALLS = ("cuGraphCreate", "cuGraphConditionalHandleCreate", "cuGraphAddNode", "cuGraphAddChildGraphNode")
BUILD_CALLS += ("cuGraphAddKernelNode", "cuGraphInstantiate")
TOOLKIT_CALLS = ("cuInit", "cuDriverGetVersion", "cuCtxGetCurrent", "cuModuleLoadData", "cuModuleGetFunction")


def countdown(flag: torch.Tensor, count: int) -> tuple[list[int], Callable[[], None]]:
    done: list[int] = []

    def step() -> None:
        done.append(1)
        flag.fill_(len(done) < count)

    return done, step


@pytest.mark.parametrize("version", ["12.9.10", "13.0.2"])
@pytest.mark.parametrize("steps_per_iteration", [1, 2, 3])
def test_repeats_until_flag_is_false(monkeypatch, version: str, steps_per_iteration: int) -> None:
    fake = FakeCuda(version)
    install(monkeypatch, fake)
    flag = torch.tensor(False)
    done, fake.steps[5] = countdown(flag, 7)
    loop = WhileGraph(toolkit(DEVICE), 5, flag.data_ptr(), steps_per_iteration)
    loop.launch(0)
    assert fake.iterations == -(-7 // steps_per_iteration)
    assert len(done) == fake.iterations * steps_per_iteration
    loop.launch(0)
    assert fake.iterations == -(-7 // steps_per_iteration) + 1  # the first iteration ignores the flag
    loop.close()
    loop.close()
    assert not fake.live


def test_handles_freed_with_object(monkeypatch) -> None:
    fake = FakeCuda()
    install(monkeypatch, fake)
    flag = torch.tensor(False)
    fake.steps[5] = lambda: None
    for _ in range(3):
        loop = WhileGraph(toolkit(DEVICE), 5, flag.data_ptr(), 1)
        assert len(fake.live) == 2
        del loop
        gc.collect()
        assert not fake.live
    assert fake.calls.count("cuModuleLoadData") == 1


@pytest.mark.parametrize("failure", [Code.ERROR_NOT_SUPPORTED, RuntimeError("Function not found")])
@pytest.mark.parametrize("call", TOOLKIT_CALLS + BUILD_CALLS)
def test_failed_call_is_named(monkeypatch, call: str, failure: Code | Exception) -> None:
    fake = FakeCuda()
    install(monkeypatch, fake)
    fake.failures[call] = failure
    fake.steps[5] = lambda: None
    with pytest.raises(GraphsUnavailable) as raised:
        WhileGraph(toolkit(DEVICE), 5, 0, 2)
    assert (f"{call}: {failure.name}" if isinstance(failure, Code) else "Function not found") in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not fake.live
    del fake.failures[call]
    WhileGraph(toolkit(DEVICE), 5, 0, 2).close()  # a later attempt succeeds


def build_and_launch() -> WhileGraph:
    flag = torch.tensor(False)
    loop = WhileGraph(toolkit(DEVICE), 5, flag.data_ptr(), 2)
    loop.launch(0)
    return loop


@pytest.mark.parametrize("call", [*TOOLKIT_CALLS, *BUILD_CALLS, "cuGraphLaunch"])
def test_out_of_memory_is_retried_once(monkeypatch, call: str) -> None:
    """After the allocator's cache is emptied. A second failure is raised."""
    fake, emptied = FakeCuda(), []
    install(monkeypatch, fake)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(len(fake.calls)))
    fake.steps[5] = lambda: None
    fake.failures[call] = Code.ERROR_OUT_OF_MEMORY
    with pytest.raises(torch.OutOfMemoryError, match=f"out of memory in {call}"):
        build_and_launch()
    assert fake.calls.count(call) == 2
    del fake.failures[call]
    while_loop._toolkit.cache_clear()
    emptied.clear()
    fake.once[call] = Code.ERROR_OUT_OF_MEMORY
    build_and_launch().close()
    assert len(emptied) == 1 and fake.calls[emptied[0] - 1] == fake.calls[emptied[0]] == call
    assert not fake.live


def test_failed_call_frees_tensors() -> None:
    """The memory is free when the error is caught, before any garbage collection."""
    held: list[weakref.ref[FakeCuda]] = []

    def build() -> None:
        kept = FakeCuda()
        held.append(weakref.ref(kept))
        with while_loop._AsGraphsUnavailable("no loop"):
            raise RuntimeError("on purpose")

    gc.disable()
    try:
        with pytest.raises(GraphsUnavailable, match=r"no loop \(on purpose\)"):
            build()
        assert held[0]() is None
    finally:
        gc.enable()


def test_bindings_not_installed(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(GraphsUnavailable, match=r"cuda\.bindings cannot be imported"):
        toolkit(DEVICE)


def test_driver_too_old(monkeypatch) -> None:
    install(monkeypatch, FakeCuda(driver_version=12030))
    with pytest.raises(GraphsUnavailable, match=r"driver is for CUDA 12\.3, conditional graph nodes need 12\.4"):
        toolkit(DEVICE)


def test_library_not_found(monkeypatch) -> None:
    fake = FakeCuda()
    install(monkeypatch, fake)
    fake.failures["cuInit"] = LibraryNotFound("no such library\nlooked in many places")
    with pytest.raises(GraphsUnavailable, match=r"CUDA driver.*no such library"):
        toolkit(DEVICE)


def test_unknown_signatures(monkeypatch) -> None:
    fake = FakeCuda("13.0.2")
    install(monkeypatch, fake)
    fake.steps[5] = lambda: None
    tools = toolkit(DEVICE)
    fake.version = "12.9"  # a version with another signature
    with pytest.raises(GraphsUnavailable, match="another number of arguments"):
        WhileGraph(tools, 5, 0, 1)
    assert not fake.live


def assemblers() -> list[Path]:
    """Find every ptxas: those in the wheel of Triton, and that of an installed CUDA toolkit."""
    spec = importlib.util.find_spec("triton")
    found = sorted(Path(spec.origin).parent.glob("backends/nvidia/bin/ptxas*")) if spec and spec.origin else []
    toolkits = shutil.which("ptxas")
    return [*found, *([Path(toolkits)] if toolkits else [])]


@pytest.mark.skipif(not assemblers(), reason="neither Triton, whose wheel has a ptxas, nor a CUDA toolkit is installed")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_kernel_assembles(tmp_path: Path, architecture: str) -> None:
    """Tries the assemblers of several CUDA versions; a driver contains one of them. Loading needs a device."""
    source, cubin = tmp_path / "set_condition.ptx", tmp_path / "set_condition.cubin"
    source.write_bytes(while_loop._PTX)
    for ptxas in assemblers():
        done = subprocess.run(
            [ptxas, f"-arch={architecture}", source, "-o", cubin], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), ptxas
        assert b"cudaGraphSetConditional" in cubin.read_bytes()  # the driver links it
        cubin.unlink()


def test_real_bindings() -> None:
    """Without a driver the structs still accept the names and types used here."""
    driver = pytest.importorskip("cuda.bindings.driver")
    filled: list[Any] = []

    class Driver:
        def __getattr__(self, name: str) -> Any:
            return getattr(driver, name) if name[:2] == "CU" else self._take

        def _take(self, *args: Any) -> tuple[int, Any]:
            filled.extend(args)
            return 0, driver.CUgraphConditionalHandle(7)

    tools = while_loop.Toolkit(Driver(), 13, driver.CUcontext(5), driver.CUfunction(3))
    while_loop._fill(tools, driver.CUgraph(1), 2, 3, 2)
    node = next(value for value in filled if isinstance(value, driver.CUgraphNodeParams))
    assert int(node.conditional.handle) == 7 and node.conditional.size == 1
    assert node.conditional.type == driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
    launch = next(value for value in filled if isinstance(value, driver.CUDA_KERNEL_NODE_PARAMS))
    assert launch.gridDimX == launch.blockDimZ == 1 and launch.kernelParams
