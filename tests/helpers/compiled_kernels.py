"""Compile the Triton kernels for GPUs that are not present, with Triton's compiler, as the package launches them.

No GPU takes part: launches are recorded on torch's meta device, and their arguments and options are given to the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fastscribe.config import LocalAttention
from fastscribe.cuda import fp8_triton
from fastscribe.families.conformer import triton_kernels
from fastscribe.families.conformer.operations import POSITION_ROWS_MULTIPLE

_POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.float8_e4m3fn: "*fp8e4nv",
}
_LAUNCH_OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")


@dataclass(frozen=True)
class Launch:
    kernel: Any
    arguments: dict[str, Any]  # by the kernel's parameter names
    options: dict[str, Any]  # of the compiler


class _Recorder:
    """A kernel that records its launches."""

    def __init__(self, kernel: Any, seen: list[Launch]) -> None:
        self._kernel, self._seen = kernel, seen

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **named: Any) -> None:
            options = {name: named.pop(name) for name in _LAUNCH_OPTIONS if name in named}
            by_name = dict(zip(self._kernel.arg_names, arguments, strict=False)) | named
            self._seen.append(Launch(self._kernel, by_name, options))

        return launch


def launches(work: Callable[[], Any], capability: int) -> list[Launch]:
    """Return the Triton launches that `work`, on meta tensors, would make on a device of this capability (90: 9.0)."""
    seen: list[Launch] = []
    with pytest.MonkeyPatch.context() as patch, torch.device("meta"):
        for module, name in (
            (triton_kernels, "rel_attention_kernel"),
            (triton_kernels, "glu_depthwise_kernel"),
            (triton_kernels, "layer_norm_kernel"),
            (triton_kernels, "first_convolutions_kernel"),
            (triton_kernels, "relu_depthwise_kernel"),
            (fp8_triton, "quantise_rows_kernel"),
        ):
            patch.setattr(module, name, _Recorder(getattr(module, name), seen))
        patch.setattr(torch.cuda, "get_device_capability", lambda *_: divmod(capability, 10))
        patch.setattr(torch.Tensor, "is_cuda", True)
        patch.setattr(torch.cuda, "device_of", lambda _: torch.inference_mode())
        work()
    return seen


def rel_attention(dtype: torch.dtype, width: int, local: bool, heads: int = 8) -> None:
    rows = 2 * POSITION_ROWS_MULTIPLE * -(-200 // POSITION_ROWS_MULTIPLE)
    window = LocalAttention(128, 128) if local else None
    tensors = torch.empty(3, 200, 3 * heads * width, dtype=dtype), torch.empty(heads, rows, width, dtype=dtype)
    triton_kernels.rel_attention(*tensors, torch.empty(heads, rows), torch.empty(3, dtype=torch.int64), window)


def glu_depthwise(dtype: torch.dtype, width: int, taps: int) -> None:
    x_BTD, weight_WD = torch.empty(3, 200, 2 * width, dtype=dtype), torch.empty(taps, width, dtype=dtype)
    triton_kernels.glu_depthwise(x_BTD, weight_WD, weight_WD[0], torch.empty(3, dtype=torch.int64), True)


def layer_norm(dtype: torch.dtype, width: int, twice: bool, adds: bool = False) -> None:
    x_BTD, parameter_D, shift_D = (
        torch.empty(3, 200, width, dtype=dtype),
        torch.empty(width, dtype=dtype),
        torch.empty(width),
    )
    added_BTD = torch.empty_like(x_BTD) if adds else None
    if twice:
        triton_kernels.layer_norm_twice_(x_BTD, shift_D, *[parameter_D] * 4, added_BTD)
    else:
        triton_kernels.layer_norm(x_BTD, shift_D, parameter_D, parameter_D, added_BTD)


def first_convolutions(dtype: torch.dtype, channels: int, num_mels: int) -> None:
    weight_9C, x_BTM = torch.empty(9, channels, dtype=dtype), torch.empty(3, 200, num_mels, dtype=dtype)
    triton_kernels.first_convolutions(x_BTM, weight_9C, weight_9C[0], weight_9C, torch.empty(3, dtype=torch.int64))


def relu_depthwise(dtype: torch.dtype, channels: int, bins: int) -> None:
    triton_kernels.relu_depthwise(
        torch.empty(3, 50, bins, channels, dtype=dtype), torch.empty(9, channels, dtype=dtype)
    )


def quantise_rows(dtype: torch.dtype, width: int) -> None:
    fp8_triton.quantise_rows(torch.empty(600, width, dtype=dtype))


def compiled(launch: Launch, capability: int) -> Any:
    """Compile a kernel. Raises the exceptions of Triton or its assembler."""
    kernel = launch.kernel
    constant_names = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    constants = {name: value for name, value in launch.arguments.items() if name in constant_names or value is None}
    signature, aligned = {}, {}
    for place, name in enumerate(kernel.arg_names):
        value = launch.arguments[name]
        if name in constants:
            signature[name] = "constexpr"
        elif isinstance(value, torch.Tensor):
            signature[name] = _POINTERS[value.dtype]
            aligned[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(kernel, signature, constants, aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch.options)


# The package's launches for models of 1024 and 512 channels, by name.
WORK: dict[str, Callable[[torch.dtype], None]] = {
    "attention, heads of 128": lambda dtype: rel_attention(dtype, 128, False),
    "local attention, heads of 128": lambda dtype: rel_attention(dtype, 128, True),
    "attention, heads of 64": lambda dtype: rel_attention(dtype, 64, False),
    "local attention, heads of 64": lambda dtype: rel_attention(dtype, 64, True),
    "GLU and 9 taps, 1024 channels": lambda dtype: glu_depthwise(dtype, 1024, 9),
    "two layer norms, 1024 channels": lambda dtype: layer_norm(dtype, 1024, True),
    "sum and layer norm, 1024 channels": lambda dtype: layer_norm(dtype, 1024, False, adds=True),
    "sum and two layer norms, 1024 channels": lambda dtype: layer_norm(dtype, 1024, True, adds=True),
    "two layer norms, 512 channels": lambda dtype: layer_norm(dtype, 512, True),
    "first convolutions, 256 channels": lambda dtype: first_convolutions(dtype, 256, 128),
    "ReLU and depthwise convolution, 256 channels": lambda dtype: relu_depthwise(dtype, 256, 32),
    "fp8 of 4096 columns": lambda dtype: quantise_rows(dtype, 4096),
}
