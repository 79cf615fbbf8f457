"""The transducer losses' CUDA kernels.

No GPU takes part, except in the tests marked `cuda`: numba's CUDA simulator runs the kernels as Python on the CPU, and its
compiler, where there is one, translates them to PTX.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fastscribe.config import JointConfig
from fastscribe.errors import UsageError
from fastscribe.families.blocks.heads import Joint
from fastscribe.training import TransducerLossConfig, joint_transducer_loss, loss, transducer_loss
from fastscribe.training.loss import cuda, logits
from scripts.benchmarks.loss_memory import (
    LossShape,
    loss_memory,
)
from tests.fakes.simulated_cuda_loss import CASES, CONFIGS, simulate

GIB = 1 << 30
DTYPES = {torch.float32: 2e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
cuda_target = pytest.importorskip("numba.cuda", reason="needs numba-cuda")
NvvmSupportError = pytest.importorskip("numba.cuda.cudadrv.error").NvvmSupportError


@pytest.mark.filterwarnings("ignore")  # infinity - infinity without a path
@pytest.mark.parametrize("case", CASES)
def test_simulated_kernels_equal_definition(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        CASES[case]()


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What was found out about numba's CUDA is found out anew."""
    caches = (cuda._usable, cuda._compile_one, cuda._kernels)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.mark.usefixtures("forgotten")
def test_without_numba_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastscribe.training.loss.cuda_kernels", None)
    monkeypatch.delattr(loss, "cuda_kernels", raising=False)  # where an earlier import has put it
    with pytest.raises(
        UsageError, match=r"needs numba-cuda .*pip install 'numba-cuda\[cu1[23]\]', or train on --device"
    ):
        cuda.check_usable()


@pytest.mark.usefixtures("forgotten")
def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_target, "is_available", lambda: False)
    monkeypatch.setattr(cuda_target, "cuda_error", lambda: "no libcuda\n here")
    with pytest.raises(UsageError, match="finds no CUDA driver: no libcuda here"):
        cuda.check_usable()
    monkeypatch.setattr(cuda_target, "cuda_error", lambda: None)
    with pytest.raises(UsageError, match=r"finds no CUDA compiler: pip install 'numba-cuda"):
        cuda.check_usable()


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("error", "line"),
    [
        (NvvmSupportError("libnvvm\nis missing"), r"libnvvm is missing.: pip install 'numba-cuda"),
        # numba-cuda 0.30 looks for what numpy 2.5 no longer has.
        (AttributeError("module 'numpy' has no attribute 'row_stack'"), r"row_stack'.: pip install 'numpy<2.5'"),
    ],
)
def test_what_numba_cannot_do_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, line: str) -> None:
    """It looks for a toolkit, and for parts of numpy, when it compiles its first kernel."""

    def jit(*_: object) -> Callable[..., None]:
        raise error

    monkeypatch.setattr(cuda_target, "is_available", lambda: True)
    monkeypatch.setattr(cuda_target, "jit", jit)
    with pytest.raises(UsageError, match=rf"cannot compile for this GPU .*{line}"):
        cuda.check_usable()


def test_other_devices_refused() -> None:
    with pytest.raises(UsageError, match="not on meta"):
        transducer_loss(
            torch.zeros(1, 2, 1, 3, device="meta"),
            torch.zeros(1, 0, dtype=torch.int64),
            torch.tensor([2]),
            torch.tensor([0]),
            blank_id=0,
        )
    assert logits.compiled_for(torch.device("cuda:1")) is cuda


def test_few_shapes_for_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps something for every shape, and the number of a group's cells is nearly always a new one."""
    monkeypatch.setattr(cuda, "_usable", lambda: SimpleNamespace(SIMULATED=False))
    monkeypatch.setattr(cuda_target, "as_cuda_array", lambda memory, sync: memory, raising=False)
    logits_CW = torch.zeros(70, 5, dtype=torch.bfloat16)
    empty_C = torch.empty(0, dtype=torch.float64)
    found = [cuda.as_array(logits_CW[2:]), cuda._cells(logits_CW[2:]), cuda._cells(empty_C)]
    said = [memory.__cuda_array_interface__ for memory in found]
    assert [(x["shape"], x["typestr"], x["strides"]) for x in said] == [
        ((68, 5), "<u2", None), ((1, 5), "<u2", None), ((1,), "<f8", None)
    ]  # fmt: skip
    assert said[0]["data"] == said[1]["data"] == (logits_CW.data_ptr() + 20, False)


# Every dtype and every GPU once.
@pytest.mark.skipif(
    not hasattr(np, "row_stack"),
    reason="numba-cuda 0.30 needs np.row_stack, which NumPy 2.5 lacks: pip install 'numpy<2.5'",
)
@pytest.mark.parametrize(
    ("dtype", "capability"),
    [(torch.float32, (9, 0)), (torch.float16, (8, 0)), (torch.bfloat16, (10, 0))],
    ids=str,
)
def test_kernels_compile_without_a_device(
    dtype: torch.dtype, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the types of the very arguments that they are launched with, each once."""
    from numba.cuda import dispatcher

    from fastscribe.training.loss import cuda_kernels

    device = SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: device, raising=False)
    kernels = cuda_kernels.plain_kernels(cuda.DTYPES[dtype])
    launched = [launch for name in ("rnnt", "tdt") for launch in launches(name, dtype, monkeypatch)]
    for kernel, types in dict.fromkeys(
        (kernel, tuple(dispatcher.typeof(argument, dispatcher.Purpose.argument) for argument in arguments))
        for kernel, arguments in launched
    ):
        try:
            ptx, _ = cuda_target.compile_ptx(kernels[kernel], types, cc=capability)
        except (ImportError, RuntimeError) as error:  # the toolkit's libraries, which numba loads at this moment
            pytest.skip(f"no CUDA compiler here: {type(error).__name__}: {str(error).splitlines()[0]}")
        assert "st.local" not in ptx and "call.uni" not in ptx
        assert ("shfl.sync.bfly" in ptx) == (kernel == "read_arcs")


def launches(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Any, ...]]]:
    """What a loss with gradient launches, with numpy's arrays for the device's, which numba types alike."""
    from fastscribe.training.loss import cuda_kernels

    found: list[tuple[str, tuple[Any, ...]]] = []

    class Recorder:
        def __init__(self, kernel: str) -> None:
            self.kernel = kernel

        def __getitem__(self, configuration: object) -> Callable[..., None]:
            return lambda *arguments: found.append((self.kernel, arguments))

    monkeypatch.setattr(cuda, "_usable", lambda: cuda_kernels)
    monkeypatch.setattr(cuda, "_kernels", lambda _: {f.__name__: Recorder(f.__name__) for f in cuda_kernels.KERNELS})
    monkeypatch.setattr(cuda_kernels, "SIMULATED", True)
    monkeypatch.setattr(logits, "compiled_for", lambda device: cuda)
    tensors = problem(CONFIGS[name], [4, 3], [2, 1], 6)
    loss_and_gradient(tensors[0].to(dtype), *tensors[1:], config=CONFIGS[name])
    assert [kernel for kernel, _ in found] == ["read_arcs", "fill_lattices", "write_gradient"]
    return found


HEADLINE = LossShape(1024, 500, 150, 640, 1025, 5, 2)


def problem(
    config: TransducerLossConfig, frames_B: list[int], labels_B: list[int], num_tokens: int
) -> list[torch.Tensor]:
    """On the CPU: logits, labels, frame lengths, label lengths; blank is 0."""
    generator = torch.Generator().manual_seed(3)
    shape = (len(frames_B), max(frames_B), max(labels_B) + 1, num_tokens + len(config.durations))
    labels_BU = torch.randint(1, num_tokens, (len(labels_B), max(labels_B)), generator=generator)
    return [2 * torch.randn(shape, generator=generator), labels_BU, torch.tensor(frames_B), torch.tensor(labels_B)]


def loss_and_gradient(logits_BTUW: torch.Tensor, *said: torch.Tensor, **options: Any) -> tuple[torch.Tensor, ...]:
    logits_BTUW = logits_BTUW.detach().clone().requires_grad_()
    losses_B = transducer_loss(logits_BTUW, *said, blank_id=0, reduction="none", **options)
    return losses_B.detach(), torch.autograd.grad(losses_B, logits_BTUW, torch.ones_like(losses_B))[0]


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONFIGS)
def test_gpu_equals_cpu(name: str, dtype: torch.dtype) -> None:
    config = CONFIGS[name]
    tensors = problem(config, [60, 41, 7, 0, 60], [33, 20, 40, 3, 0], 300)
    tensors[0] = tensors[0].to(dtype)
    expected_B, expected = loss_and_gradient(*tensors, config=config)
    losses_B, gradient = loss_and_gradient(*(x.cuda() for x in tensors), config=config)
    assert gradient.is_cuda and losses_B.is_cuda
    torch.testing.assert_close(losses_B.cpu(), expected_B, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(gradient.cpu().float(), expected.float(), rtol=DTYPES[dtype], atol=2e-6)


@pytest.mark.cuda
def test_gpu_precision() -> None:
    """More labels than a block has threads, too."""
    tensors = problem(CONFIGS["tdt"], [900, 350], [120, 600], 20)
    expected_B, expected = loss_and_gradient(*tensors, config=CONFIGS["tdt"])
    losses_B, gradient = loss_and_gradient(*(x.cuda() for x in tensors), config=CONFIGS["tdt"])
    torch.testing.assert_close(losses_B.cpu(), expected_B, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient.cpu(), expected, rtol=2e-4, atol=4e-6)


@pytest.mark.cuda
def test_gpu_current_stream() -> None:
    """What was queued before on that stream, a slow product first, is seen; the default stream is never waited for."""
    tensors = [x.cuda() for x in problem(CONFIGS["rnnt"], [30, 20], [10, 12], 50)]
    expected = loss_and_gradient(*tensors)
    slow = torch.randn(8192, 8192, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(4):
            slow = (slow @ slow).clamp(-1, 1)
        found = loss_and_gradient(tensors[0] + 0 * slow[0, 0], *tensors[1:])
    stream.synchronize()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.cuda
def test_gpu_without_synchronisation() -> None:
    tensors = problem(CONFIGS["rnnt"], [30, 20], [10, 12], 50)
    logits_BTUW = tensors[0].cuda()
    loss_and_gradient(logits_BTUW, *tensors[1:])
    transducer_loss(logits_BTUW, *tensors[1:4], blank_id=0, reduction="mean_volume")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss_and_gradient(logits_BTUW, *tensors[1:])
        transducer_loss(logits_BTUW, *tensors[1:4], blank_id=0, reduction="mean_volume")
    finally:
        torch.cuda.set_sync_debug_mode("default")


def joint_problem(shape: LossShape, device: str, dtype: torch.dtype) -> tuple[Joint, list[torch.Tensor]]:
    torch.manual_seed(5)
    config = JointConfig(hidden=shape.joint_width, activation="relu", max_symbols=10)
    module = Joint(config, 4, 4, shape.num_outputs).to(device)
    sizes = (shape.num_frames, shape.num_labels + 1)
    inputs = [torch.randn(shape.batch_size, n, shape.joint_width, device=device, dtype=dtype) for n in sizes]
    labels_BU = torch.randint(1, shape.num_tokens, (shape.batch_size, shape.num_labels), device=device)
    lengths = [torch.full((shape.batch_size,), n) for n in (shape.num_frames, shape.num_labels)]
    return module, [*(x.requires_grad_() for x in inputs), labels_BU, *lengths]


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES)
def test_joint_gpu_equals_cpu(dtype: torch.dtype) -> None:
    config = TransducerLossConfig(durations=(0, 1, 2), sigma=0.05)
    module, tensors = joint_problem(LossShape(5, 40, 12, 64, 90, 3), "cpu", torch.float32)
    tensors[3][:4], tensors[4][:3] = torch.tensor([11, 40, 0, 23]), torch.tensor([3, 0, 12])
    tensors[:2] = [x.detach().to(dtype).requires_grad_() for x in tensors[:2]]
    leaves = [tensors[0], tensors[1], module.output.weight, module.output.bias]
    rows = torch.tensor([0, 1, 3, 4])
    loss = joint_transducer_loss(module, *(x[rows] for x in tensors), blank_id=0, config=config, reduction="sum")
    expected = torch.autograd.grad(loss, leaves)
    module = module.cuda()
    inputs = [x.detach().to("cuda", dtype).requires_grad_() for x in tensors[:2]]
    said = [x.cuda() for x in tensors[2:]]
    for max_nodes in (None, 60):
        options = {"blank_id": 0, "config": config, "reduction": "sum", "max_nodes": max_nodes}
        found_loss = joint_transducer_loss(module, *(x[rows.cuda()] for x in (*inputs, *said)), **options)
        tolerance = 1e-5 if dtype == torch.float32 else 0.01
        torch.testing.assert_close(found_loss.cpu(), loss.detach(), rtol=tolerance, atol=0)
        found = torch.autograd.grad(found_loss, [*inputs, module.output.weight, module.output.bias])
        for gradient, wanted in zip(found, (one.float() for one in expected), strict=True):
            assert (gradient.cpu().float() - wanted).norm() < (1e-4 if dtype == torch.float32 else 0.02) * wanted.norm()


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (LossShape(24, 300, 60, 640, 1025, 5, 2), torch.bfloat16),
        (LossShape(24, 300, 60, 640, 1025, 0, 4), torch.float32),
        (HEADLINE, torch.bfloat16),
        (replace(HEADLINE, num_tokens=8193), torch.bfloat16),
    ],
)
def test_joint_memory(shape: LossShape, dtype: torch.dtype) -> None:
    """By torch's allocator, within what it rounds up and products' workspaces; the headline under 3 GB."""
    if shape.batch_size == HEADLINE.batch_size and torch.cuda.mem_get_info()[0] < 4 * GIB:
        pytest.skip("the headline case wants 4 GiB of free GPU memory")
    config = TransducerLossConfig(durations=(0, 1, 2, 3, 4)[: shape.num_durations])
    warm, tensors = joint_problem(LossShape(1, 5, 2, 640, 1025, shape.num_durations), "cuda", dtype)
    joint_transducer_loss(warm, *tensors, blank_id=0, config=config).backward()
    del warm, tensors
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    module, tensors = joint_problem(shape, "cuda", dtype)
    loss = joint_transducer_loss(module, *tensors, blank_id=0, config=config)
    loss.backward()
    peak, expected = torch.cuda.max_memory_allocated() - before, sum(loss_memory(shape).values())
    # Behind the peak, because isfinite() makes copies of the whole gradient.
    assert loss.isfinite() and tensors[0].grad is not None and tensors[0].grad.isfinite().all()
    assert expected - (4 << 20) < peak < expected + (160 << 20)
    assert peak < 3e9
