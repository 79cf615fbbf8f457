"""A fake CUDA driver in the place of cuda.bindings: graphs with a loop, whose steps are Python functions. No GPU takes part."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any


class Code(enum.IntEnum):
    SUCCESS = 0
    ERROR_OUT_OF_MEMORY = 2
    ERROR_NOT_SUPPORTED = 801


class LibraryNotFound(RuntimeError):
    """Replaces cuda.pathfinder's DynamicLibNotFoundError."""


class Node:
    """A struct of the bindings, with any attributes, also nested ones."""

    def __init__(self) -> None:
        self.conditional = SimpleNamespace()


class FakeCuda:
    """A fake driver. `failures` maps a call to its error code or exception; `once` applies to the next call only."""

    def __init__(self, version: str = "13.0.2", driver_version: int = 13000) -> None:
        self.version = version
        self.driver_version = driver_version
        self.failures: dict[str, Code | Exception] = {}
        self.once: dict[str, Code | Exception] = {}
        self.calls: list[str] = []
        self.live: dict[int, Any] = {}
        self.steps: dict[int, Callable[[], None]] = {}  # Python functions of captured graphs
        self.iterations = 0
        self._next = 1000

    def modules(self) -> dict[str, ModuleType]:
        cuda, bindings = ModuleType("cuda"), ModuleType("cuda.bindings")
        driver = ModuleType("cuda.bindings.driver")
        bindings.__version__ = self.version
        cuda.bindings, bindings.driver = bindings, driver
        for name in dir(self):
            if name.startswith("cu"):
                setattr(driver, name, self._call(name))
        driver.CU_GRAPH_COND_ASSIGN_DEFAULT = 1
        driver.CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_CONDITIONAL=13)
        driver.CUgraphConditionalNodeType = SimpleNamespace(CU_GRAPH_COND_TYPE_WHILE=1)
        driver.CUgraphNodeParams = driver.CUDA_KERNEL_NODE_PARAMS = Node
        driver.CUgraph = lambda init_value: init_value
        return {m.__name__: m for m in (cuda, bindings, driver)}

    def _call(self, name: str) -> Callable[..., tuple[Any, ...]]:
        def call(*args: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            failure = self.once.pop(name, None) or self.failures.get(name)
            if isinstance(failure, Exception):
                raise failure
            if failure is not None:
                return (failure, *[None] * (name not in ("cuInit", "cuGraphLaunch")))
            return (Code.SUCCESS, *getattr(self, name)(*args))

        call.__name__ = name
        return call

    def _new(self, value: Any) -> tuple[int]:
        self._next += 1
        self.live[self._next] = value
        return (self._next,)

    def cuInit(self, flags: int) -> tuple:  # noqa: N802
        return ()

    def cuDriverGetVersion(self) -> tuple:  # noqa: N802
        return (self.driver_version,)

    def cuCtxGetCurrent(self) -> tuple:  # noqa: N802
        return ("context",)

    def cuModuleLoadData(self, image: bytes) -> tuple:  # noqa: N802
        from fastscribe.cuda import while_loop

        assert image.startswith(while_loop._PTX) and image.endswith(b"\0")  # a C string
        return ("module",)

    def cuModuleGetFunction(self, module: str, name: bytes) -> tuple:  # noqa: N802
        assert (module, name) == ("module", b"set_condition")
        return ("set_condition",)

    def cuGraphCreate(self, flags: int) -> tuple:  # noqa: N802
        return self._new([])

    def cuGraphConditionalHandleCreate(self, graph: int, context: str, default: int, flags: int) -> tuple:  # noqa: N802
        assert (graph in self.live, context, default, flags) == (True, "context", 1, 1)
        return (77,)

    def cuGraphAddNode(self, graph: int, *args: Any) -> tuple:  # noqa: N802
        if len(args) != (4 if self.version >= "13" else 3):
            raise TypeError("cuGraphAddNode() takes another number of arguments")
        node = args[-1]
        assert (node.type, node.conditional.type, node.conditional.size) == (13, 1, 1)
        assert (node.conditional.handle, node.conditional.ctx) == (77, "context")
        node.conditional.phGraph_out = [("body of", graph)]
        return ("while node",)

    def cuGraphAddChildGraphNode(self, body: tuple, before: list, num: int, child: int) -> tuple:  # noqa: N802
        return self._add(body, before, num, self.steps[child])

    def cuGraphAddKernelNode(self, body: tuple, before: list, num: int, launch: Node) -> tuple:  # noqa: N802
        assert launch.func == "set_condition"
        assert (launch.gridDimX, launch.gridDimY, launch.gridDimZ) == (1, 1, 1)
        assert (launch.blockDimX, launch.blockDimY, launch.blockDimZ) == (1, 1, 1)
        (handle, address), types = launch.kernelParams
        assert (handle, types) == (77, (ctypes.c_ulonglong, ctypes.c_void_p))
        return self._add(body, before, num, address)

    def _add(self, body: tuple, before: list, num: int, work: Any) -> tuple:
        nodes = self.live[body[1]]
        assert before == ([len(nodes) - 1] if nodes else []) and num == len(before)  # one after the other
        nodes.append(work)
        return (len(nodes) - 1,)

    def cuGraphInstantiate(self, graph: int, flags: int) -> tuple:  # noqa: N802
        return self._new(list(self.live[graph]))

    def cuGraphLaunch(self, executable: int, stream: int) -> tuple:  # noqa: N802
        *steps, address = self.live[executable]
        goes_on = True
        while goes_on:
            for step in steps:
                step()
            self.iterations += 1
            goes_on = ctypes.c_bool.from_address(address).value
        return ()

    def cuGraphExecDestroy(self, executable: int) -> tuple:  # noqa: N802
        del self.live[executable]
        return ()

    def cuGraphDestroy(self, graph: int) -> tuple:  # noqa: N802
        del self.live[graph]
        return ()
