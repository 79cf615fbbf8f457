"""A process that runs parts of scripts/gpu_check one after the other: `python -m scripts.gpu.worker`.

It reads a line of JSON for each part and answers with one. Models stay loaded for the next part. What else is printed goes to
stderr.
"""

from __future__ import annotations

import argparse
import gc
import traceback
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any

from scripts.gpu.goals import Row, read_rows
from scripts.gpu.plan import PARTS
from scripts.gpu.processes import answer


def serve() -> None:
    """Answer {"part", "rows", "end", "known", "device", "quick", "scratch"} with {"status", "import_s", "is_lost"}."""
    start, loaded = monotonic(), dict[Any, Any]()
    import torch  # noqa: F401 - what takes long

    import_s = [monotonic() - start]  # of the first part

    def reply(settings: dict[str, Any]) -> dict[str, Any]:
        status, is_lost = run(settings, loaded)
        return {"status": status, "import_s": import_s.pop() if import_s else 0.0, "is_lost": is_lost}

    answer(reply)


def run(settings: dict[str, Any], loaded: dict[Any, Any]) -> tuple[str, bool]:
    """Run a part. Returns its status, and True if nothing else can run in this process."""
    import torch

    from scripts.gpu.part import FULL, QUICK, Part
    from scripts.measurement_log import MeasurementLog

    notes = MeasurementLog(Path(settings["rows"]), settings["end"] - monotonic(), settings["known"])
    sizes = QUICK if settings["quick"] else FULL
    part = Part(torch.device(settings["device"]), sizes, Path(settings["scratch"]), notes, loaded)
    status, is_lost = "done", False
    try:
        function(settings["part"])(part)
    except Exception as error:  # the parts behind it may still work
        traceback.print_exc()
        is_lost = isinstance(error, torch.AcceleratorError)
        status = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    rows = read_rows(notes.path)
    models = [loaded[key] for key in part.used if key in loaded]
    if status == "done" and (refused := refused_path(rows, models)):
        status = f"failed: {refused}"
    elif status == "done" and is_skipped(rows):
        status = "skipped: all tests were"
    gc.collect()
    if torch.cuda.is_available() and not is_lost:
        torch.cuda.empty_cache()
    return status, is_lost


def function(name: str) -> Any:
    """Return the function that runs a part."""
    module, _, found = PARTS[name].run.partition(":")
    return getattr(import_module(f"scripts.gpu.parts.{module}"), found)


def refused_path(rows: Iterable[Row], models: Iterable[Any]) -> str | None:
    """Return the first fast path that a row of the part or a model of it says was refused, with its reason; None: none was."""
    said = [row.get("refused", {}) for row in rows] + [one.refused_paths for one in models]
    found = (f"{path} was refused: {' '.join(reason.split())[:200]}" for one in said for path, reason in one.items())
    return next(found, None)


def is_skipped(rows: Iterable[Row]) -> bool:
    """Return True if the rows have tests, and each of them was skipped."""
    return {row.get("outcome") for row in rows if row.get("what") == "test"} == {"skipped"}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    serve()
