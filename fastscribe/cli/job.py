"""Validated options of `fastscribe transcribe`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fastscribe.config import Options, OutputStyle
from fastscribe.resume.shards import Shard


@dataclass(frozen=True)
class OutputTarget:
    """Output folder (None: stdout), shard and resume options."""

    directory: Path | None
    shard: Shard
    overwrite: bool
    retry_failed: bool
    ordered: bool


@dataclass(frozen=True)
class TranscribeJob:
    inputs: list[str]
    model: str
    device: str
    dtype: str
    options: Options
    style: OutputStyle
    target: OutputTarget
    price_per_hour: float | None
    report_html: Path | None = None
    events: Path | None = None
    log_file: Path | None = None
