"""Documents that benchmarks left (document.py), read again and not trusted; and what each was measured on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fastscribe._system.safe_open import safe_read
from fastscribe.errors import UsageError

_MAX_BYTES = 64 * 2**20
_MIN_NUMBER, _MAX_NUMBER, _MAX_DIGITS = 1e-60, 1e60, 20


@dataclass(frozen=True)
class Hardware:
    """What did the work, and the machine around it."""

    device: str  # a GPU's name, or a CPU's
    num_vcpus: int | None  # None where a GPU did it
    machine: str  # in words; two measurements are of one machine when these are equal

    @property
    def label(self) -> str:
        return self.device if self.num_vcpus is None else f"{self.device}, {self.num_vcpus} vCPUs"


def read(path: Path) -> dict[str, Any]:
    """The document. Raises UsageError, in one line, for what is no benchmark's result, whole, and for numbers beyond all
    measure."""
    try:
        text = safe_read(path, _MAX_BYTES).decode("utf-8")
        found = json.loads(text, parse_constant=_refuse, parse_float=_number, parse_int=_whole_number)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a benchmark's result: a recording or other binary data") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a benchmark's result: not whole JSON ({error})") from error
    problem = _problem(found)
    if problem:
        raise UsageError(f"{path}: not a benchmark's result: {problem}")
    return dict(found)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _number(text: str) -> float:
    """One with which what benchmarks measure can be reckoned: quotients of these are finite, and no 0 that was none."""
    value = float(text)
    if value and not _MIN_NUMBER <= abs(value) <= _MAX_NUMBER:
        raise ValueError(f"{text[:40]} is out of range")
    return value


def _whole_number(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"{text[:40]}.. is out of range")
    return int(text)


def _problem(found: Any) -> str | None:
    """What keeps it from being a document, or None."""
    if not isinstance(found, dict):
        return "not an object"
    keys, rows = found.get("case_keys"), found.get("rows")
    if not isinstance(found.get("benchmark"), str):
        return 'no "benchmark"'
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        return 'no "case_keys"'
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return 'no "rows"'
    missing = {key for row in rows for key in keys if key not in row}
    if missing:
        return f"rows without {', '.join(sorted(missing))}"
    return None


def hardware(document: Mapping[str, Any]) -> Hardware | None:
    """None where the document does not say: it was not measured on one machine."""
    machine = document.get("machine")
    if not isinstance(machine, dict):
        return None
    cpu = f"{machine.get('cpu') or 'unknown CPU'}, {machine.get('cpu_cores') or '?'} vCPUs"
    memory = machine.get("memory_gib")
    around = cpu + (f", {memory:.0f} GiB" if isinstance(memory, (int, float)) else "")
    if not str(document.get("device")).startswith("cuda"):
        cores = machine.get("cpu_cores")
        return Hardware(str(machine.get("cpu") or "unknown CPU"), cores if isinstance(cores, int) else 0, around)
    gpu = machine.get("gpu")
    name = str(gpu.get("torch_name") or "unknown GPU") if isinstance(gpu, dict) else "unknown GPU"
    return Hardware(name, None, f"{name} with {around}")


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
