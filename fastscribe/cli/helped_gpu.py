"""Many files on a GPU: the model has a process of its own, with helpers beside it, and this process if those cannot go on.

No option asks for these processes, so no run ends because of them: if they are refused, the run begins in this process; if they
fail in the middle, it goes on in this process with what has no result. One line says why.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fastscribe import rooms
from fastscribe._system.gpus import num_gpus
from fastscribe.errors import DeviceFailed, DeviceUnusable, FastscribeError
from fastscribe.fast_paths import RefusedPath, RefusedPaths

if TYPE_CHECKING:
    from fastscribe.cli.run_part import TranscribeJob
    from fastscribe.pipeline.local import LocalExecutor
    from fastscribe.pipeline.model_facts import ModelFacts
    from fastscribe.transcriber import Transcriber

MANY_INPUTS = 256  # a GPU with this number of inputs gets helpers


def helped_gpu(job: TranscribeJob) -> int | None:
    """Return the number of the GPU that gets a process of its own, with helpers, which keep it busy with many files.

    A few files are done sooner in this process, and so are those of a room that sees whole recordings. `--threads 0` keeps a
    run in it. Helpers have not been tried on Windows.

    Returns:
        None if the run stays in this process, or `--devices` names its devices.
    """
    if job.devices is not None or job.options.threads == 0 or not job.engine.takes_helpers:
        return None
    if any(needs_whole(job.options) for needs_whole in rooms.offered("needs_whole_recordings", job.options)):
        return None
    named = re.fullmatch("auto|cuda(?::([0-9]+))?", job.device)
    if named is None or sys.platform == "win32" or not int(named[1] or 0) < num_gpus():
        return None
    from fastscribe.cli.input_count import has_many

    return int(named[1] or 0) if has_many(job.inputs, MANY_INPUTS) else None


def load_beside_helpers(job: TranscribeJob, gpu: int, say: Callable[[str], None]) -> Transcriber:
    """Load the job's model into a process for the GPU; if that is refused, into this one, on the device of `--device`.

    Raises what Transcriber.load() raises for one device.
    """
    from fastscribe.transcriber import Transcriber

    say = RefusedPaths.around(say)  # the transcriber's too
    try:
        loaded = Transcriber.load(Path(job.model), "auto", job.dtype, job.options, say, devices=str(gpu))
    except (DeviceFailed, DeviceUnusable) as error:
        problem = error.problem
    else:
        loaded._load_here = lambda failed, facts: _executor_here(job, failed, facts, say)
        return loaded
    from fastscribe.pipeline.model_building import has_usable_gpu

    device = "cpu" if job.device == "auto" and not has_usable_gpu() else job.device
    loaded = Transcriber.load(Path(job.model), device, job.dtype, job.options, say)
    say(_refused(problem, loaded._executor.facts))
    return loaded


def _executor_here(
    job: TranscribeJob, failed: DeviceFailed, facts: ModelFacts, say: Callable[[str], None]
) -> LocalExecutor:
    """Load the model into this process in the middle of a run.

    The device is of the same kind and the dtype is the same, because the rows that are written have them. A GPU that is lost
    ends a run as it does without helpers.

    Raises:
        DeviceFailed: This process cannot have the model either. The run stops.
    """
    from fastscribe.transcriber import Transcriber

    device = ("cuda" if facts.is_gpu else "cpu") if job.device == "auto" else job.device
    try:
        executor = Transcriber.load(Path(job.model), device, facts.dtype, job.options, say)._local
    except (FastscribeError, OSError, RuntimeError, MemoryError) as error:
        raise DeviceFailed(f"{failed.problem}; this process", error) from error
    say(_refused(failed.problem, executor.facts))
    return executor


def _refused(problem: str, facts: ModelFacts) -> RefusedPath:
    line = f"no processes beside this one ({problem}): the run goes on in this process, on {facts.device_name}"
    return RefusedPath("helpers", problem, line)
