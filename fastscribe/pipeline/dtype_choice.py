"""Which dtype --dtype auto and fastest are here, and which dtypes a device has.

`auto` chooses among those that hardly change a text: fp32 and bf16. `fastest` admits 8 bits too. On a GPU both go by what it
has. On a CPU the instruction sets propose a dtype, and a measurement (dtype_rates.py) overrules them if another one is faster
by a margin: so machines of a kind choose alike, though no two measurements agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import get_args

import torch

from fastscribe._system.processors import NO_BF16, has_native_bf16, may_gain_from_bf16
from fastscribe.config import DtypeChoice, DtypePolicy, EncoderSettings, FloatDtypeName
from fastscribe.errors import UsageError
from fastscribe.fast_paths import RefusedPath

# Models narrower than this are fast in any dtype on a CPU, and in fp32 they are exact (docs/log.md, 2026-11-21).
NARROW_ON_CPU = 256
MARGIN = 1.15  # times as fast as the proposed dtype is another one that takes its place


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
        say: Called with one line about a new measurement, about a dtype that the processor emulates, or if `fastest` does
            without 8 bits that the device has.

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


def candidates(name: str, d_model: int, has_matrices: bool = True) -> tuple[str, ...]:
    """Return the dtypes that `auto` or `fastest` compares on this processor; the first is taken unless another is faster.

    Dtypes that the processor emulates are not among them.
    """
    if name == "auto" and d_model < NARROW_ON_CPU:
        return ("fp32",)
    floats: tuple[str, ...] = get_args(FloatDtypeName)  # fp32 first
    found = floats[::-1] if has_native_bf16() else floats if may_gain_from_bf16() else floats[:1]
    if name == "auto" or not has_matrices or _int8_problem() is not None:
        return found
    return ("int8", *found) if found[0] == "fp32" else ("bf16", "int8", "fp32")


def choose(dtypes: tuple[str, ...], gflop_per_s: Mapping[str, float]) -> str:
    """Return the first dtype, or the fastest one if that is faster by the margin. A dtype without a rate is the slowest.

    >>> rates = {"bf16": 100.0, "fp32": 110.0, "int8": 300.0}
    >>> choose(("bf16", "fp32"), rates), choose(("bf16", "int8", "fp32"), rates)
    ('bf16', 'int8')
    """
    fastest = max(dtypes, key=lambda dtype: gflop_per_s.get(dtype, 0.0))
    return fastest if gflop_per_s.get(fastest, 0.0) > MARGIN * gflop_per_s.get(dtypes[0], 0.0) else dtypes[0]


def emulated_bf16() -> str | None:
    """Return one line that says that the processor emulates bf16; None if it does not, or only a measurement tells."""
    if may_gain_from_bf16():
        return None
    return f"emulated, because {NO_BF16}; fp32 is faster and more exact"


def _on_cpu(name: str, encoder: EncoderSettings, say: Callable[[str], None]) -> str:
    if name == "fastest" and encoder.has_matrices and (problem := _int8_problem()) is not None:
        from fastscribe.families.blocks.int8 import int8_hardware_problem

        if int8_hardware_problem() is None:
            say(RefusedPath("int8", problem, f"--dtype fastest: without int8, because {problem}"))
    dtypes = candidates(name, encoder.d_model, encoder.has_matrices)
    if len(dtypes) == 1:
        return dtypes[0]
    from fastscribe.pipeline.dtype_rates import CannotKeep, cpu_rates, widths_of

    widths = widths_of(encoder)
    try:  # of all that "fastest" compares, so that one measurement serves both
        rates = cpu_rates(widths, candidates("fastest", encoder.d_model, encoder.has_matrices))
    except CannotKeep as reason:
        say(f"--dtype {name}: {dtypes[0]}, by the processor's instruction sets; not measured, because {reason}")
        return dtypes[0]
    chosen = choose(dtypes, rates.gflop_per_s)
    if rates.is_new:
        say(f"--dtype {name}: {chosen}; measured once for matrices of {widths[0]} x {widths[1]}: {rates.text()}")
    return chosen
