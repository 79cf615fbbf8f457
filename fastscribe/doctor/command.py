"""`fastscribe doctor`: what this machine and this installation can do, and what would add what is missing.

Each fact comes from the function that a run asks. A part that fails in any way is a line of its own and stops no other.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from fastscribe._system.text_layout import escaped
from fastscribe.cli.app import app, check_stdout
from fastscribe.doctor import Check, hardware, packages
from fastscribe.errors import first_line
from fastscribe.version import __version__

_PARTS: dict[str, Callable[[], Check]] = {
    "python": packages.python,
    "packages": packages.required,
    "torch": packages.torch_build,
    "processor": hardware.processor,
    "memory": hardware.memory,
    "torch kernels": hardware.torch_kernels,
    "cpu loops": hardware.cpu_loops,
    "bf16": hardware.bf16,
    "int8": hardware.int8,
    "dtypes": hardware.dtypes,
    "gpu": hardware.gpu,
    "gpu run": hardware.gpu_run,
    "cuda graphs": partial(hardware.fast_path, "cuda graphs", "graphs"),
    "gpu kernels": partial(hardware.fast_path, "gpu kernels", "triton"),
    "pinned memory": partial(hardware.fast_path, "pinned memory", "pinning"),
    "helpers": partial(hardware.fast_path, "helpers", "helpers"),
    "fp8": hardware.fp8,
    "audio files": packages.libsndfile,
    "video and m4a": packages.containers,
    "packaged model": hardware.packaged_model,
    "model cache": hardware.model_cache,
    "free disk": hardware.free_disk,
}
_ON_GPU = ("gpu", "gpu run", "cuda graphs", "gpu kernels", "pinned memory", "helpers", "fp8")
_NEED_TORCH = ("torch kernels", "bf16", "int8", "dtypes", *_ON_GPU)
_MARKS = {"ok": "ok", "missing": "-", "problem": "PROBLEM"}


def examine() -> Iterator[Check]:
    """Yield what each part can do, and then each extra."""
    has_torch = has_gpu = True
    for name, part in _PARTS.items():
        if name in _NEED_TORCH and not has_torch:
            yield Check(name, "missing", "not known while torch cannot be imported")
            continue
        if name in _ON_GPU and not has_gpu:
            yield Check(name, "missing", "needs a GPU that torch can use")
            continue
        check = _guarded(name, part)
        has_torch = has_torch and not (name == "torch" and check.status == "problem")
        has_gpu = has_gpu and not (name == "gpu" and check.status != "ok")
        yield check
    try:
        yield from packages.extras()
    except Exception as error:
        yield _failed("extras", error)


def _guarded(name: str, part: Callable[[], Check]) -> Check:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return part()
    except Exception as error:  # a broken installation fails in any way; its line says how
        return _failed(name, error)


def _failed(name: str, error: Exception) -> Check:
    return Check(name, "problem", f"{type(error).__name__}: {first_line(error)}")


@app.command(
    short_help="Show what this machine can do, and the command that adds what is missing.",
    epilog="Example: fastscribe doctor --json | jq '.checks[] | select(.status != \"ok\")'",
)
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what this machine can do (processor, GPU, dtypes, audio formats, extras, disk) and how to add what is missing.

    A line begins with ok, - (missing; runs do without) or PROBLEM (needed, or there, and does not work). On a GPU it
    transcribes two seconds. Fast paths that were refused stand at the end, and in the JSON's refused. The exit code is 0, or 1
    if there is a problem.
    """
    check_stdout()
    checks = []
    for check in examine():
        checks.append(check)
        if not as_json:
            _show(check)
    problems = sum(check.status == "problem" for check in checks)
    refused = {path: reason for check in checks for path, reason in check.refused.items()}
    if as_json:
        found = [{name: value for name, value in asdict(check).items() if name != "refused"} for check in checks]
        document = {"fastscribe": __version__, "problems": problems, "refused": refused, "checks": found}
        print(json.dumps(document, ensure_ascii=False))
    else:
        print()
        for path, reason in refused.items():
            print(escaped(f"refused fast path: {path}: {reason}"))
        print(f"{problems} problem{'s' * (problems != 1)}" if problems else "no problems: fastscribe can run here")
    if problems:
        raise typer.Exit(1)


def _show(check: Check) -> None:
    """Print a line as soon as it is known: importing torch takes seconds."""
    print(escaped(f"{_MARKS[check.status]:<8} {check.name:<15} {check.finding}"), flush=True)
    if check.fix is not None:
        what = "fix it" if check.status == "problem" else "add it"
        print(escaped(f"{'':<24} {what}: {check.fix}"), flush=True)
