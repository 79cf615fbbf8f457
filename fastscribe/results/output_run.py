"""What a run writes, as its caller states it: into a stream, a folder or an object store (outputs.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastscribe.config import OutputStyle
from fastscribe.results.shards import UNSHARDED, Shard


@dataclass(frozen=True)
class OutputRun:
    """What a run writes.

    Attributes:
        style: The formats and their options. A stream has the first format alone; elsewhere rows are always written.
        fingerprint: All that decides results besides the inputs. A stream needs none.
        shard: The part of the inputs that this run transcribes.
        inputs: As the user gave them; their output names are checked before anything is written.
        overwrite: Remove the results of earlier runs first.
        retry_failed: Transcribe inputs again that failed in an earlier run.
        ordered: Write rows in the order of the inputs.
    """

    style: OutputStyle
    fingerprint: Mapping[str, Any]
    shard: Shard = UNSHARDED
    inputs: Sequence[str] = ()
    overwrite: bool = False
    retry_failed: bool = False
    ordered: bool = False

    @property
    def header(self) -> dict[str, Any]:
        return {**self.fingerprint, "shard": str(self.shard)}

    @property
    def has_files(self) -> bool:
        """True if each input gets a file besides its row."""
        return any(format != "jsonl" for format in self.style.formats)
