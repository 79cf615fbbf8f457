"""What a benchmark leaves: one JSON object.

    {"benchmark", "fastscribe", "date", "command", "complete", .. settings ..,
     "case_keys": [..], "rows": [{..}, ..], "machine": {..}}

A row has the keys of `case_keys`, which tell it from the others, and measurements whose names end in
their unit (_ms, _s, _bytes, _share, _ratio, _per_s, _usd ..) or are `rtfx`. A measurement that was made several times is its
median, with all of them beside it under the name with `_runs`; from these comes what is noise. A case that could
not be measured has `error` in place of measurements. One that nothing is known of is null, never 0. Where the command was
interrupted or failed, `complete` is false. Where figures are worth nothing, `doubts` says why. What measures models
has `refused`: the fast paths that the machine refused, with their reasons (fastscribe/fast_paths.py).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastscribe.version import __version__

if TYPE_CHECKING:
    import torch

_MAX_ERROR = 600  # characters


def describe_error(error: BaseException) -> str:
    """The `error` of a case that could not be measured: one line with the exception's type."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_MAX_ERROR]


def document(
    name: str,
    device: torch.device,
    results: Mapping[str, Any],
    case_keys: Sequence[str],
    complete: bool = True,
) -> dict[str, Any]:
    """`results` has the settings and "rows"."""
    from fastscribe.bench import machine

    missing = {key for row in results["rows"] for key in case_keys if key not in row}
    assert not missing, f"rows without {missing}"
    return {
        **_head(name, case_keys),
        "device": str(device),
        "complete": complete,
        **results,
        "machine": machine.facts(device, Path.cwd()),
    }


def not_measured(name: str, results: Mapping[str, Any], case_keys: Sequence[str]) -> dict[str, Any]:
    """A document without a machine, of a device that answers no query."""
    return {**_head(name, case_keys), **results}


def _head(name: str, case_keys: Sequence[str]) -> dict[str, Any]:
    return {
        "benchmark": name,
        "fastscribe": __version__,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "command": shlex.join(["fastscribe", *sys.argv[1:]]),
        "case_keys": list(case_keys),
    }
