"""Fast paths of a run on a GPU with many files, found by such a run: the packaged model in its own process, with helpers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from fastscribe.doctor import hardware
from fastscribe.doctor.check import Check
from fastscribe.doctor.packages import install_command
from fastscribe.errors import first_line
from fastscribe.fast_paths import PathName, RefusedPaths
from fastscribe.types import Failure

_S, _RATE_HZ = 2.0, 16_000
_RUNS = 3  # the encoder's graphs are captured in the second
_WORKS: Mapping[PathName, str] = {
    "graphs": "full: loops on the GPU",
    "triton": "fused by Triton",
    "pinning": "copies to the GPU do not block the host",
    "helpers": "other processes read files and write rows",
}


def gpu_run() -> Check:
    """Whether a run on the GPU works."""
    _, problem = _outcome()
    if problem is not None:
        return Check("gpu run", "problem", f"a run on the GPU fails: {problem}")
    return Check("gpu run", "ok", "the packaged model transcribes on the GPU")


def fast_path(name: str, path: PathName) -> Check:
    """Whether that run had a fast path."""
    refused, problem = _outcome()
    if problem is not None:
        return Check(name, "missing", "not known while no run on the GPU works")
    reason = refused.get(path)
    if reason is None:
        return Check(name, "ok", _WORKS[path])
    return Check(name, "missing", f"refused, so runs are slower: {reason}", _fix(path, reason), refused={path: reason})


def refused_paths(devices: str) -> dict[str, str]:
    """Transcribe two seconds on devices a few times. Return the fast paths that were refused, with their reasons.

    Raises:
        FastscribeError: The devices cannot be used.
        RuntimeError: The recording fails.
    """
    import numpy as np

    from fastscribe.transcriber import Transcriber

    samples_S = np.random.default_rng(0).integers(-3000, 3000, int(_S * _RATE_HZ), np.int16)
    heard = RefusedPaths(lambda line: None)
    with Transcriber.load("default", say=heard, devices=devices) as transcriber:
        for _ in range(_RUNS):
            for result in transcriber.transcribe((samples_S, _RATE_HZ)):
                if isinstance(result, Failure):
                    raise RuntimeError(f"{result.stage}: {result.message}")
    return heard.reasons


@cache
def _outcome() -> tuple[Mapping[str, str], str | None]:
    """Return what a run on the first GPU was refused, and why it failed, if it did."""
    try:
        return refused_paths("0"), None
    except Exception as error:  # a driver or an installation fails in any way
        return {}, f"{type(error).__name__}: {first_line(error)}"


def _fix(path: PathName, reason: str) -> str | None:
    if path == "triton":
        return install_command("triton") if "cannot be imported" in reason else None
    if path == "graphs":
        return install_command("cuda-bindings") if "cuda.bindings" in reason else hardware.UPDATE_DRIVER
    return None
