"""Which dtype --dtype auto and fastest are here, and which dtypes a device has.

`auto` chooses among those that hardly change a text: fp32 and bf16. `fastest` admits 8 bits too. On a GPU both go by what it
has. On a CPU a table of instruction sets decides, from measurements (docs/log.md, "Which dtype on which instruction sets").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, get_args

import torch

from fastscribe._system.processors import NO_BF16, instructions, is_amd, may_gain_from_bf16
from fastscribe.config import DtypeChoice, DtypePolicy, EncoderSettings
from fastscribe.errors import UsageError
from fastscribe.fast_paths import RefusedPath

# Models narrower than this are fast in any dtype on a CPU, and in fp32 they are exact (docs/log.md, 2026-11-21).
NARROW_ON_CPU = 256


class _Processor(NamedTuple):
    """A kind of processor: the faster one of fp32 and bf16, and what is fastest for encoders with and without loops."""

    instructions: tuple[str, ...]  # it has any of these
    float: str
    with_loops: str
    without_loops: str
    reason: str


_AMD_BF16 = ("avx512_bf16",)  # of Intel's processors it is slower than fp32
_TABLE = (  # the first row that fits decides
    _Processor(("amx_bf16",), "bf16", "int8", "bf16", "AMX multiplies bf16 three times as fast as fp32"),
    _Processor(_AMD_BF16, "bf16", "bf16", "bf16", "AVX512-BF16 of AMD multiplies bf16 twice as fast as fp32"),
    _Processor(("avx512_vnni", "avx_vnni"), "fp32", "int8", "int8", "VNNI multiplies int8 twice as fast as fp32"),
    _Processor(("avx2",), "fp32", "int8", "fp32", "AVX2 multiplies int8 up to 1.4 times as fast as fp32"),
)
_OTHERS = _Processor((), "fp32", "fp32", "fp32", "nothing else was measured on such a processor")


def check_dtype(name: str, device: torch.device) -> None:
    """Raise UsageError if there is no such dtype, or the device does not support it."""
    if name not in get_args(DtypeChoice):
        raise UsageError(f"--dtype {name}: not one of {', '.join(get_args(DtypeChoice))}")
    problem = None
    if name == "int8":
        problem = _int8_problem() if device.type == "cpu" else "int8 is for CPUs; GPUs have fp8"
    elif name == "fp8":
        problem = _fp8_problem(device)
    if problem is not None:
        raise UsageError(f"--dtype {name}: unavailable: {problem}")


def choose_dtype(name: str, device: torch.device, encoder: EncoderSettings, say: Callable[[str], None]) -> str:
    """Return the dtype.

    Args:
        name: auto, fastest or the name of a dtype.
        device: Where the model runs.
        encoder: The model's encoder.
        say: Called with one line about a dtype that the processor emulates, or if `fastest` does without 8 bits that the
            device has.

    Raises:
        UsageError: The device does not support the dtype.
    """
    check_dtype(name, device)
    if name not in get_args(DtypePolicy):
        if name == "bf16" and device.type == "cpu" and (line := emulated_bf16()) is not None:
            say(f"--dtype bf16: {line}")
        return name
    if device.type == "cpu":
        return _on_cpu(name, encoder, say)
    from fastscribe.families.blocks.fp8 import fp8_hardware_problem

    if name != "fastest" or not encoder.has_matrices or fp8_hardware_problem(device) is not None:
        return "bf16"
    if (problem := _fp8_problem(device)) is None:
        return "fp8"
    say(RefusedPath("fp8", problem, f"--dtype fastest: bf16, because {problem}"))
    return "bf16"


def _int8_problem() -> str | None:
    """Return why the CPU has no int8, None if it has it. Imported here, as few runs ask."""
    from fastscribe.families.blocks.int8 import int8_problem

    return int8_problem()


def _fp8_problem(device: torch.device) -> str | None:
    from fastscribe.families.blocks.fp8 import fp8_problem

    return fp8_problem(device)


def choose_on_cpu(name: str, d_model: int, has_matrices: bool = True, has_loops: bool = True) -> tuple[str, str]:
    """Return the dtype that `auto` or `fastest` takes on this processor, and the reason.

    Args:
        name: auto or fastest.
        d_model: Width of the encoder.
        has_matrices: See EncoderSettings.
        has_loops: See EncoderSettings.
    """
    if name == "auto" and d_model < NARROW_ON_CPU:
        return "fp32", f"narrower than {NARROW_ON_CPU}"
    row = next(filter(_fits, _TABLE), _OTHERS)
    if name == "auto" or d_model < NARROW_ON_CPU or not has_matrices or _int8_problem() is not None:
        return row.float, row.reason
    return row.with_loops if has_loops else row.without_loops, row.reason


def _fits(row: _Processor) -> bool:
    return not instructions().isdisjoint(row.instructions) and (is_amd() or row.instructions != _AMD_BF16)


def emulated_bf16() -> str | None:
    """Return one line that says that the processor emulates bf16; None if it does not."""
    if may_gain_from_bf16():
        return None
    return f"emulated, because {NO_BF16}; fp32 is faster and more exact"


def _on_cpu(name: str, encoder: EncoderSettings, say: Callable[[str], None]) -> str:
    if name == "fastest" and encoder.has_matrices and (problem := _int8_problem()) is not None:
        from fastscribe.families.blocks.int8 import int8_hardware_problem

        if int8_hardware_problem() is None:
            say(RefusedPath("int8", problem, f"--dtype fastest: without int8, because {problem}"))
    return choose_on_cpu(name, encoder.d_model, encoder.has_matrices, encoder.has_loops)[0]
