"""Many files on a GPU: the model has a process of its own, with helpers beside it, and this process if those cannot go on.

No option asks for these processes, so no run ends because of them: if they are refused, the run begins in this process; if they
fail in the middle, it goes on in this process with what has no result. One line says why.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fastscribe.config import Options
from fastscribe.errors import DeviceFailed, DeviceUnusable, FastscribeError
from fastscribe.fast_paths import RefusedPath, RefusedPaths

if TYPE_CHECKING:
    from fastscribe.pipeline.local import LocalExecutor
    from fastscribe.pipeline.model_facts import ModelFacts
    from fastscribe.transcriber import Transcriber


def load_beside_helpers(
    model: Path, device: str, dtype: str, options: Options, gpu: int, say: Callable[[str], None]
) -> Transcriber:
    """Load a model into a process for a GPU, with helpers; if that is refused, into this process.

    Args:
        model: As for Transcriber.load(), as are all others but one.
        device: In this process.
        dtype: The dtype.
        options: Of every run.
        gpu: Number of the GPU, which `device` names too.
        say: Called with each line for the user.

    Raises what Transcriber.load() raises for one device.
    """
    from fastscribe.transcriber import Transcriber

    say = RefusedPaths.around(say)  # the transcriber's too

    def load_here(failed: DeviceFailed, facts: ModelFacts) -> LocalExecutor:
        """Load the model into this process in the middle of a run: on the same kind of device, in the same dtype.

        The rows that are written have them, and a GPU that is lost ends a run without helpers too.
        """
        here = ("cuda" if facts.is_gpu else "cpu") if device == "auto" else device
        try:
            executor = Transcriber.load(model, here, facts.dtype, options, say)._local
        except (FastscribeError, OSError, RuntimeError, MemoryError) as error:
            raise DeviceFailed(f"{failed.problem}; this process", error) from error
        say(_refused(failed.problem, executor.facts))
        return executor

    try:
        loaded = Transcriber.load(model, "auto", dtype, options, say, devices=str(gpu))
    except (DeviceFailed, DeviceUnusable) as error:
        problem, says_why = error.problem, isinstance(error, DeviceUnusable)
    else:
        loaded._load_here = load_here
        return loaded
    if device == "auto":
        from fastscribe.pipeline.model_building import choose_device

        device = str(choose_device(device, _say_nothing if says_why else say))
    loaded = Transcriber.load(model, device, dtype, options, say)
    say(_refused(problem, loaded.facts))
    return loaded


def _say_nothing(line: str) -> None:
    """The line of the refused processes has the reason."""


def _refused(problem: str, facts: ModelFacts) -> RefusedPath:
    line = f"no processes beside this one ({problem}): the run goes on in this process, on {facts.device_name}"
    return RefusedPath("helpers", problem, line)
