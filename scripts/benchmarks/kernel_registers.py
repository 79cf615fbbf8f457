"""Table of registers, spills and shared memory of every Triton kernel by architecture. Needs Triton but no GPU.

    python -m scripts.benchmarks.kernel_registers [--capabilities 80,90,100] [--dtypes bf16,fp32]

A cell is registers per thread / bytes that a thread spills / KiB of shared memory per program.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from collections.abc import Callable

import torch
import triton
from triton import knobs

from tests.helpers.compiled_kernels import CAPABILITIES, WORK, compiled, launches

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capabilities", default=",".join(map(str, CAPABILITIES)))
    parser.add_argument("--dtypes", default="bf16,fp32")
    arguments = parser.parse_args()
    capabilities = [int(text) for text in arguments.capabilities.split(",")]
    knobs.compilation.always_compile = knobs.nvidia.dump_ptxas_log = True  # the assembler's report, not a cached kernel
    print(f"Triton {triton.__version__}: registers / bytes spilled / KiB shared\n", flush=True)
    print(f"| kernel | dtype | {' | '.join(f'sm_{capability}' for capability in capabilities)} |")
    print("| --- |" + " --- |" * (1 + len(capabilities)))
    for name, work in WORK.items():
        for dtype in arguments.dtypes.split(","):
            cells = [
                "" if name.startswith("fp8") and capability < 89 else cell(work, DTYPES[dtype], capability)
                for capability in capabilities
            ]
            print(f"| {name} | {dtype} | {' | '.join(cells)} |", flush=True)


def cell(work: Callable[[torch.dtype], None], dtype: torch.dtype, capability: int) -> str:
    (launch,) = launches(lambda: work(dtype), capability)
    with contextlib.redirect_stdout(io.StringIO()) as report:
        kernel = compiled(launch, capability)
    registers = re.search(r"Used (\d+) registers", report.getvalue())
    spilled = re.search(r"(\d+) bytes spill stores", report.getvalue())
    assert registers and spilled, report.getvalue()
    return f"{registers[1]} / {spilled[1]} / {kernel.metadata.shared / 1024:.0f}"


if __name__ == "__main__":
    main()
