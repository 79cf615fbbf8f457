"""What an adapter meets in NeMo Curator: names and signatures of nemo-curator 1.4.0, nemo_curator/models/asr/base.py.

The package pulls in Ray and more, so that tests use this stand-in where it is not installed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol, runtime_checkable


@dataclass
class ASRResult:
    text: str
    skipped: bool = False
    skip_reason: str | None = None
    unsupported_language: str | None = None
    extras: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class ASRAdapter(Protocol):
    model_id: str

    def download_weights_on_node(self) -> None: ...

    def load_model(self, *, num_gpus: int) -> None: ...

    def unload_model(self) -> None: ...

    def transcribe_batch(self, items: list[dict[str, Any]]) -> list[ASRResult]: ...


def modules() -> dict[str, ModuleType]:
    """Return modules of the package's names, for sys.modules."""
    names = ("nemo_curator", "nemo_curator.models", "nemo_curator.models.asr")
    return {name: ModuleType(name) for name in names} | {"nemo_curator.models.asr.base": sys.modules[__name__]}
