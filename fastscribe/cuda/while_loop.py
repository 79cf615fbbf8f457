"""A CUDA graph that repeats another graph while a flag on the device is true, without the host.

torch 2.11 has no conditional nodes, so the loop is built with cuda.bindings, and only here:

    WHILE handle:  step -> step -> .. -> set_condition<<<1, 1>>>(handle, flag)

The step is an ordinary captured graph, added as child graphs, so that nothing is captured inside a conditional body. The
handle is 1 at each launch: the first iteration always runs, and `set_condition` decides about the next. Conditional nodes (CUDA
programming guide, "Conditional graph nodes") need a driver for CUDA 12.4. Only device code can set a handle, hence the kernel.
It is PTX, which the driver compiles for its device. NVRTC could be newer than the driver and emit PTX that the driver rejects.

Every failure, from a missing library to an error code, becomes GraphsUnavailable with the failed action. Only lack of memory
becomes torch.OutOfMemoryError, because it does not show that graphs are unavailable.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from fastscribe.cuda.graph_capture import GraphsUnavailable
from fastscribe.errors import first_line

_OLDEST_DRIVER = 12040
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_KERNEL = b"set_condition"
# The same machine code as NVRTC's for
#     extern "C" __global__ void set_condition(cudaGraphConditionalHandle handle, const bool *is_active) {
#         cudaGraphSetConditional(handle, *is_active ? 1u : 0u);
#     }
# cudaGraphSetConditional belongs to CUDA's device runtime; the driver links it when it loads the module. Drivers accept PTX of
# every older version and target, so these two precede all drivers with conditional nodes and their GPUs.
_PTX = b"""
.version 7.0
.target sm_52
.address_size 64

.extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value);

.visible .entry set_condition (.param .u64 handle, .param .u64 is_active)
{
    .reg .pred %is_active;
    .reg .u16 %byte;
    .reg .u32 %value;
    .reg .u64 %handle, %address;

    ld.param.u64 %handle, [handle];
    ld.param.u64 %address, [is_active];
    cvta.to.global.u64 %address, %address;
    ld.global.u8 %byte, [%address];
    setp.ne.s16 %is_active, %byte, 0;
    selp.u32 %value, 1, 0, %is_active;
    {
        .param .b64 handle_argument;
        .param .b32 value_argument;
        st.param.b64 [handle_argument], %handle;
        st.param.b32 [value_argument], %value;
        call.uni cudaGraphSetConditional, (handle_argument, value_argument);
    }
    ret;
}
"""


@dataclass(frozen=True)
class Toolkit:
    """Driver, context and kernel, shared by all loops on a device. Never unloaded: a kernel of a few hundred bytes."""

    driver: Any  # the module cuda.bindings.driver
    bindings_major: int
    context: Any
    set_condition: Any


def toolkit(device: torch.device) -> Toolkit:
    """Return the toolkit of a CUDA device. Raises GraphsUnavailable naming the missing library or the failed call."""
    return _toolkit(torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index))


@cache
def _toolkit(device: torch.device) -> Toolkit:
    with _AsGraphsUnavailable("cuda.bindings cannot be imported"):
        import cuda.bindings
        from cuda.bindings import driver

        major = int(cuda.bindings.__version__.split(".")[0])
    with _AsGraphsUnavailable("the CUDA driver cannot be used"):
        _call(driver.cuInit, 0)
        (version,) = _call(driver.cuDriverGetVersion)
    if version < _OLDEST_DRIVER:
        found_version, needed_version = (f"{v // 1000}.{v % 1000 // 10}" for v in (version, _OLDEST_DRIVER))
        raise GraphsUnavailable(
            f"the driver is for CUDA {found_version}, conditional graph nodes need {needed_version}"
        )
    with torch.cuda.device(device), _AsGraphsUnavailable("the loop's kernel cannot be loaded"):
        torch.cuda.current_stream().query()  # makes torch's context current in this thread
        (context,) = _call(driver.cuCtxGetCurrent)
        (module,) = _call(driver.cuModuleLoadData, _PTX + b"\0")
        (function,) = _call(driver.cuModuleGetFunction, module, _KERNEL)
    return Toolkit(driver, major, context, function)


class WhileGraph:
    """The loop, ready to launch. Keep the step's tensors and its graph's memory pool alive until `close`."""

    def __init__(self, tools: Toolkit, step_graph: int, flag_address: int, steps_per_iteration: int) -> None:
        """Build the loop.

        Args:
            tools: toolkit of the device.
            step_graph: a cudaGraph_t, which is cloned.
            flag_address: address of a bool on the device.
            steps_per_iteration: steps between two evaluations of the flag.

        Raises:
            GraphsUnavailable: a driver call failed.
            torch.OutOfMemoryError: no memory left.
        """
        driver = tools.driver
        handles: list[tuple[Any, Any]] = []  # (destroy function, handle) in the order of creation
        self._close = weakref.finalize(self, _destroy, handles)
        self._close.atexit = False  # the driver has shut down by then and has freed everything
        try:
            with _AsGraphsUnavailable("the loop's graph cannot be built"):
                (graph,) = _call(driver.cuGraphCreate, 0)
                handles.append((driver.cuGraphDestroy, graph))
                _fill(tools, graph, step_graph, flag_address, steps_per_iteration)
                (self._executable,) = _call(driver.cuGraphInstantiate, graph, 0)
                handles.append((driver.cuGraphExecDestroy, self._executable))
        except BaseException:
            self._close()
            raise
        self._driver = driver

    def launch(self, stream: int) -> None:
        """Enqueue the whole loop on a cudaStream_t. Raises GraphsUnavailable or torch.OutOfMemoryError."""
        with _AsGraphsUnavailable("the loop's graph cannot be launched"):
            _call(self._driver.cuGraphLaunch, self._executable, stream)

    def close(self) -> None:
        """Destroy the graph, which must not be running; garbage collection does the same."""
        self._close()


def _destroy(handles: list[tuple[Any, Any]]) -> None:
    while handles:
        destroy, handle = handles.pop()
        with suppress(RuntimeError):
            destroy(handle)


def _fill(tools: Toolkit, graph: Any, step_graph: int, flag_address: int, steps_per_iteration: int) -> None:
    driver = tools.driver
    (handle,) = _call(
        driver.cuGraphConditionalHandleCreate, graph, tools.context, 1, driver.CU_GRAPH_COND_ASSIGN_DEFAULT
    )
    body = _add_while_node(tools, graph, handle)
    before: list[Any] = []
    for _ in range(steps_per_iteration):
        child = driver.CUgraph(init_value=step_graph)
        (node,) = _call(driver.cuGraphAddChildGraphNode, body, before, len(before), child)
        before = [node]
    launch = driver.CUDA_KERNEL_NODE_PARAMS()
    launch.func = tools.set_condition
    launch.gridDimX = launch.gridDimY = launch.gridDimZ = 1
    launch.blockDimX = launch.blockDimY = launch.blockDimZ = 1
    launch.kernelParams = ((int(handle), flag_address), (ctypes.c_ulonglong, ctypes.c_void_p))
    _call(driver.cuGraphAddKernelNode, body, before, len(before), launch)


def _add_while_node(tools: Toolkit, graph: Any, handle: Any) -> Any:
    """Add the conditional node and return the graph of its body."""
    driver = tools.driver
    node = driver.CUgraphNodeParams()
    node.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    node.conditional.handle = handle
    node.conditional.type = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
    node.conditional.size = 1
    node.conditional.ctx = tools.context
    # Since 13 the call takes edge data between the dependencies and their number.
    nothing_before = (None, None, 0) if tools.bindings_major >= 13 else (None, 0)
    _call(driver.cuGraphAddNode, graph, *nothing_before, node)
    return node.conditional.phGraph_out[0]


def _call(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> tuple[Any, ...]:
    """Call a driver function; if memory is short, empty torch's cache and retry once."""
    result = function(*arguments)
    if int(result[0]) == _OUT_OF_MEMORY:
        torch.cuda.empty_cache()
        result = function(*arguments)
        if int(result[0]) == _OUT_OF_MEMORY:
            raise torch.OutOfMemoryError(f"CUDA out of memory in {function.__name__}")
    code, *values = result
    if int(code) != 0:
        raise GraphsUnavailable(f"{function.__name__}: {getattr(code, 'name', code)}")
    return tuple(values)


class _AsGraphsUnavailable:
    """Convert exceptions, which the bindings raise for unexpected libraries, symbols, names and signatures.

    Not a generator's context manager, for the reason in graph_capture.py: _as_capture_error().
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        converted = (ImportError, RuntimeError, AttributeError, TypeError)
        if isinstance(error, converted) and not isinstance(error, torch.OutOfMemoryError):
            raise GraphsUnavailable(f"{self._what} ({first_line(error)})") from error
