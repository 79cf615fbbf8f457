"""A simulated CUDA device for a whole process: tensors that say that they are on the GPU, with their values on the CPU.

tests/fakes/gpu_processes installs it into processes of a real command. No GPU takes part. What it is strict about, as a GPU
is: an operation takes no tensors of two devices, NumPy sees no tensor of the GPU, memory has a limit, and host memory is pinned
only where the program has pinned it. What it cannot show: the order of streams, speed, compiled kernels, a driver's refusals.

Events of a process (the first of each kind) go to the file $SIMULATED_GPU names, a JSON document a line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.utils import _pytree as pytree

GPU = "Simulated GPU"
_FACTORIES = ("empty", "zeros", "ones", "full", "arange", "tensor", "as_tensor", "rand", "randn", "randint", "linspace")
# These take CPU tensors beside those of a GPU.
_MIXES = (
    "aten::copy_",
    "aten::_to_copy",
    "aten::index",
    "aten::index_put_",
    "aten::index_put",
    "aten::_index_put_impl_",
)


@dataclass(frozen=True)
class Settings:
    """What the GPUs are like.

    Attributes:
        gpus: How many there are.
        memory_bytes: Memory of each.
        events: Where events go.
        largest_copy_bytes: Samples of a larger batch find no memory.
        killed_at_copy: The first device's process with as many batches is killed; needs `once`.
        dies_again: So is every later one, at its first batch.
        refuses_model: The first device's process has no memory for its model; needs `once`.
        refuses_pinning: No host memory can be registered.
        interpreted_frames: Rows times frames of the largest input of a kernel that is interpreted, which takes milliseconds for
            each; torch's form takes the others.
        once: File that is made when the process is killed or refuses.
    """

    gpus: int = 1
    memory_bytes: int = 1 << 30
    events: str = ""
    largest_copy_bytes: int | None = None
    killed_at_copy: int | None = None
    dies_again: bool = False
    refuses_model: bool = False
    refuses_pinning: bool = False
    interpreted_frames: int = 16
    once: str = ""


class Device:
    """The GPU of this process."""

    def __init__(self, settings: Settings, count: int) -> None:
        self.settings, self.count = settings, count
        self.is_worker = "pipeline.workers.device" in " ".join(sys.orig_argv)
        self.allocated = self.peak = self.batches = self.launches = 0
        self.fraction = 1.0
        self.pinned: dict[int, int] = {}  # begin and size of host memory
        self._seen: set[str] = set()
        self._lock = threading.Lock()
        self.streams = sys.modules["sitecustomize"].load("cuda").SimulatedCuda()

    def event(self, kind: str, **facts: Any) -> None:
        """Write the first event of each kind."""
        with self._lock:
            if kind in self._seen or not self.settings.events:
                return
            self._seen.add(kind)
            row = {"pid": os.getpid(), "is_worker": self.is_worker, "event": kind, **facts}
            with open(self.settings.events, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def is_first(self) -> bool:
        """Return True once in a run, for one process of a device."""
        if not self.is_worker:
            return False
        try:
            os.close(os.open(self.settings.once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def context(self) -> None:
        self.event("context")

    def hold(self, inner: torch.Tensor) -> None:
        """Count the memory of a tensor until it is freed."""
        storage = inner.untyped_storage()
        if hasattr(storage, "is_counted"):
            return
        size = storage.nbytes()
        if self.allocated + size > self.settings.memory_bytes * self.fraction:
            self.event("out of memory", tried=size, allocated=self.allocated)
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
        storage.is_counted = True
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.allocated -= size

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        address = tensor.data_ptr()
        return any(begin <= address < begin + size for begin, size in list(self.pinned.items()))

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        self.pinned[address] = max(1, storage.nbytes())
        weakref.finalize(storage, self.pinned.pop, address, None)
        return tensor

    def upload(self, tensor: torch.Tensor, non_blocking: bool) -> None:
        """Note a copy from the host, which may find no memory, or end the process."""
        self.context()
        if self.settings.refuses_model and self.is_first():
            self.event("model refused")
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        size = tensor.nbytes
        is_batch = tensor.dim() == 2 and tensor.dtype in (torch.int16, torch.float32)
        if not is_batch or not non_blocking:
            return
        self.batches += 1
        self.event("batch")
        self.event("pinned batch" if self.is_pinned(tensor) else "pageable batch", shape=list(tensor.shape))
        limit, killed_at = self.settings.largest_copy_bytes, self.settings.killed_at_copy
        if limit is not None and size > limit:
            self.event("out of memory", tried=size)
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
        if killed_at is None or not self.is_worker:
            return
        dies_again = self.settings.dies_again and os.path.exists(self.settings.once)
        if dies_again or (self.batches >= killed_at and self.is_first()):
            self.event("killed")
            os.kill(os.getpid(), signal.SIGKILL)

    # --- functions of torch.cuda ---

    def synchronize(self, device: Any = None) -> None:
        self.context()
        self.streams.completed = self.streams.enqueued

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        self.context()
        return self.settings.memory_bytes - self.allocated, self.settings.memory_bytes

    def reset_peak(self, device: Any = None) -> None:
        self.peak = self.allocated

    def set_fraction(self, fraction: float, device: Any = None) -> None:
        self.context()
        self.fraction = fraction

    def properties(self, device: Any = None) -> SimpleNamespace:
        self.context()
        total = self.settings.memory_bytes
        return SimpleNamespace(name=GPU, total_memory=total, multi_processor_count=132, major=9, minor=0)

    def register(self, address: int, size: int, flags: int) -> int:
        self.context()
        if self.settings.refuses_pinning:
            return 2
        self.pinned[address] = size
        self.event("registered", bytes=size)
        return 0

    def functions(self) -> dict[str, Callable[..., Any]]:
        def current_device() -> int:
            self.context()
            return 0

        def make_graph(keep_graph: bool) -> Any:
            self.event("graph")
            return self.streams.make_graph(keep_graph)

        return {
            **self.streams.functions(),
            "CUDAGraph": make_graph,
            "_lazy_init": self.context,
            "init": self.context,
            "is_initialized": lambda: "context" in self._seen,
            "is_available": lambda: self.count > 0,
            "device_count": lambda: self.count,
            "current_device": current_device,
            "set_device": lambda device: self.context(),
            "_exchange_device": lambda index: 0,
            "_maybe_exchange_device": lambda index: 0,
            "get_device_name": lambda device=None: GPU,
            "get_device_capability": lambda device=None: (9, 0),
            "get_device_properties": self.properties,
            "is_bf16_supported": lambda including_emulation=True: True,
            "is_current_stream_capturing": lambda: bool(self.streams.capturing),
            "synchronize": self.synchronize,
            "mem_get_info": self.mem_get_info,
            "memory_reserved": lambda device=None: self.allocated,
            "memory_allocated": lambda device=None: self.allocated,
            "max_memory_allocated": lambda device=None: self.peak,
            "reset_peak_memory_stats": self.reset_peak,
            "set_per_process_memory_fraction": self.set_fraction,
            "get_per_process_memory_fraction": lambda device=None: self.fraction,
            "cudart": lambda: SimpleNamespace(
                cudaHostRegister=self.register,
                cudaHostUnregister=lambda address: 0 if self.pinned.pop(address, None) else 1,
                cudaError=SimpleNamespace(success=0),
                cudaGetErrorString=lambda error: "out of memory",
            ),
        }


DEVICE: Device


class GpuTensor(torch.Tensor):
    """A tensor of the simulated GPU."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> GpuTensor:
        DEVICE.hold(inner)
        with torch.inference_mode(False):  # views of ordinary tensors are ordinary
            made: GpuTensor = torch.Tensor._make_wrapper_subclass(  # for torch's own code, a tensor of the CPU
                cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype
            )
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, dict(kwargs or {}))

    device = property(lambda self: torch.device("cuda", 0))
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def get_device(self) -> int:
        return 0

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        copies = kwargs.pop("copy", False)
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype)
        device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None and device.type == "cpu":
            DEVICE.synchronize()
            return self.inner.detach().to(dtype or self.dtype, copy=True)
        return super().to(dtype or self.dtype, copy=copies)

    def new_tensor(self, data: Any, dtype: Any = None, **_: Any) -> torch.Tensor:
        return GpuTensor(torch.tensor(data, dtype=dtype or self.dtype))

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def cpu(self, *_: Any) -> torch.Tensor:
        return self.to("cpu")

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor first.")

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def untyped_storage(self) -> Any:
        return self.inner.untyped_storage()

    def record_stream(self, stream: Any) -> None:
        pass

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def __repr__(self, *_: object, **__: object) -> str:
        return f"GpuTensor({self.inner})"


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation of torch on the values."""
    flat = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    name = func._schema.name
    if name not in _MIXES and any(one.dim() and not one.is_cuda for one in flat):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found cuda:0 and cpu ({name})")
    kwargs.pop("device", None)
    kwargs.pop("pin_memory", None)
    wrappers = {id(one.inner): one for one in flat if isinstance(one, GpuTensor)}
    inner_args, inner_kwargs = pytree.tree_map(_inner, (args, kwargs))
    run = _fused_lstm_cell if name == "aten::_thnn_fused_lstm_cell" else func
    with torch.inference_mode():
        result = run(*inner_args, **inner_kwargs)
    if name == "aten::copy_" and not args[0].is_cuda:
        return args[0]
    for before in wrappers.values():
        assert before.shape == before.inner.shape, f"{name} changes a tensor's shape, which is not simulated"
    return pytree.tree_map(lambda one: _outer(one, wrappers), result)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, GpuTensor) else value


def _outer(value: Any, wrappers: dict[int, GpuTensor]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return wrappers[id(value)] if id(value) in wrappers else GpuTensor(value)


def _fused_lstm_cell(gates_BG: torch.Tensor, recurrent_BG: torch.Tensor, cell_BH: torch.Tensor) -> tuple[Any, ...]:
    """What CUDA has and a CPU lacks."""
    in_BH, forget_BH, candidate_BH, out_BH = (recurrent_BG + gates_BG).chunk(4, dim=1)
    new_BH = forget_BH.sigmoid() * cell_BH + in_BH.sigmoid() * candidate_BH.tanh()
    return out_BH.sigmoid() * new_BH.tanh(), new_BH, torch.empty(0)


def install(settings: dict[str, Any], count: int) -> None:
    """Give torch, whose import has just ended, the simulated device."""
    global DEVICE
    assert set(settings) <= {field.name for field in fields(Settings)}
    before = set(sys.modules)
    DEVICE = Device(Settings(**settings), count)
    torch.Tensor.to = _to_of(torch.Tensor.to)
    torch.Tensor.cuda = lambda self, *_, **__: self.to("cuda")
    torch.Tensor.is_pinned = lambda self, *_: DEVICE.is_pinned(self)
    torch.Tensor.pin_memory = lambda self, *_: DEVICE.pin(self.clone())
    for name in _FACTORIES:
        setattr(torch, name, _factory_of(getattr(torch, name)))
    for name, value in DEVICE.functions().items():
        assert hasattr(torch.cuda, name), name
        setattr(torch.cuda, name, value)
    torch._C._cuda_endAllocateToPool = DEVICE.streams.end_allocate_to_pool
    torch._C._cuda_releasePool = lambda device, pool: DEVICE.streams.release(pool)
    are_alike = torch._has_compatible_shallow_copy_type
    torch._has_compatible_shallow_copy_type = lambda a, b: type(b) is not GpuTensor and are_alike(a, b)
    torch.backends.cuda.is_built = lambda: True
    torch.version.cuda = "13.0"
    if (driver := sys.modules.get("cuda.bindings.driver")) is not None:
        install_driver(driver)
    torch.backends.cudnn.is_acceptable = lambda tensor: True
    # torch asks it for a class at the first operation of a GpuTensor, which would import what a program may have left out.
    if "torch.distributed.tensor" not in sys.modules:
        stand_in = sys.modules["torch.distributed.tensor"] = ModuleType("torch.distributed.tensor")
        stand_in.DTensor = type("DTensor", (), {})
    added = set(sys.modules) - before
    more = sorted(name for name in added if name.startswith("torch.") and name != "torch.distributed.tensor")
    assert not more, f"the simulation imports more of torch: {more}"


def _new(inner: torch.Tensor) -> GpuTensor:
    DEVICE.context()
    return GpuTensor(inner)


def _to_of(to: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def move(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        options = {name: value for name, value in kwargs.items() if name != "copy"}
        others = [one for one in args if isinstance(one, torch.Tensor)]
        if isinstance(self, GpuTensor) or others:
            return to(self, *args, **kwargs)
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **options)
        if device is None or device.type != "cuda":
            return to(self, *args, **kwargs)
        DEVICE.upload(self, non_blocking)
        return GpuTensor(to(self.detach(), dtype or self.dtype, copy=True))

    return move


def _factory_of(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def made(*args: Any, device: Any = None, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if device is not None and torch.device(device).type == "cuda":
            return _new(make(*args, **options))
        if pin_memory:
            DEVICE.context()
            return DEVICE.pin(make(*args, **options))
        return make(*args, **options) if device is None else make(*args, device=device, **options)

    return made


def install_driver(driver: Any) -> None:
    """Replace what cuda.bindings calls in the driver's library."""
    fake = sys.modules["sitecustomize"].load("cuda_driver").FakeCuda(driver_version=13000)
    import cuda.bindings

    fake.version = cuda.bindings.__version__
    fake.steps = DEVICE.streams.steps
    launch = fake.cuGraphLaunch

    def cuGraphLaunch(executable: int, stream: int) -> tuple[()]:  # noqa: N802
        DEVICE.event("loop")
        launch(executable, stream)
        return ()

    fake.cuGraphLaunch = cuGraphLaunch
    for name, value in vars(fake.modules()["cuda.bindings.driver"]).items():
        if not name.startswith("__"):
            assert hasattr(driver, name), name
            setattr(driver, name, value)


def install_interpreter(interpreter: Any) -> None:
    """Let Triton's interpreter take tensors of the GPU, and graphs record the kernels."""
    run = interpreter.GridExecutor.__call__

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        args, kwargs = pytree.tree_map(_inner, (args, kwargs))
        call = lambda: run(self, *args, **kwargs)  # noqa: E731
        recorded = [] if DEVICE.streams.recorder is None else DEVICE.streams.recorder.calls
        before = len(recorded)
        call()
        DEVICE.launches += 1
        DEVICE.event("interpreted kernel", kernel=self.fn.__name__)
        recorded[before:] = [(call, (), {}, None)]  # one launch, whatever the interpreter asks of torch

    interpreter.GridExecutor.__call__ = launch


def limit_interpreted(kernels: Any) -> None:
    """Run torch's forms of what Triton would run once the interpreter has run enough: each program takes it milliseconds."""
    from fastscribe.families.conformer.operations import TORCH, Operations

    def limited(name: str) -> Callable[..., torch.Tensor]:
        ours, torchs = getattr(kernels.TRITON, name), getattr(TORCH, name)

        def call(x: torch.Tensor, *args: Any) -> torch.Tensor:
            if x.shape[0] * x.shape[1] > DEVICE.settings.interpreted_frames:
                DEVICE.event("torch's form")
                return torchs(x, *args)
            before = DEVICE.launches
            result = ours(x, *args)
            if DEVICE.batches and DEVICE.launches > before:  # no launch: the kernel has no such form and called torch
                DEVICE.event(f"interpreted {name}")
            return result

        return call

    kernels.TRITON = Operations(*(limited(field.name) for field in fields(Operations)))


def shorten(gpu_operations: Any) -> None:
    """Compare kernels on short rows."""
    assert gpu_operations._LENGTHS[0] > gpu_operations._LENGTHS[1]
    gpu_operations._LENGTHS = (3, 2, 1, 0)


def measure_little(cost_model: Any) -> None:
    """Measure the budget with small passes, and make it small: a run of short clips has several batches."""
    assert cost_model._MAX_FRAMES > cost_model.MIN_FRAMES
    cost_model.SHAPES = tuple((max(1, rows // 8), frames // 64) for rows, frames in cost_model.SHAPES)
    cost_model._MAX_FRAMES, cost_model.MIN_FRAMES = 256, 64
