"""Random models made once a session: tuning one takes two to three seconds of processor time."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

import pytest
import torch

from fastscribe.checkpoint import native_writer
from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.config import ModelConfig, Options
from fastscribe.families.blocks.heads import Transducer
from fastscribe.pipeline.local import LocalExecutor
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.transcriber import Transcriber
from scripts import random_checkpoint
from scripts.benchmarks import decoding_speed

_make_checkpoint, _make_transducer = random_checkpoint.random_checkpoint, decoding_speed.random_transducer
_TRANSDUCERS: dict[str, Transducer] = {}  # by configuration, in float32


@cache
def checkpoint(shape: str) -> Checkpoint:
    """Return the random checkpoint of a shape. Callers share its weights."""
    return _make_checkpoint(shape)


def folder(shape: str, parent: Path) -> Path:
    """Write the random checkpoint of a shape to a new folder named after it, in float32."""
    native_writer.write(checkpoint(shape), parent / shape, torch.float32)
    return parent / shape


def transcriber(shape: str, dtype: str = "fp32") -> Transcriber:
    return _transcriber(shape, dtype)


@cache
def _transcriber(shape: str, dtype: str) -> Transcriber:
    made = checkpoint(shape)
    return Transcriber(made, LocalExecutor(Recognizer.build(made, "cpu", dtype)), Options(), 0.0)


def transducer(config: ModelConfig, device: torch.device, dtype: torch.dtype | None = None) -> Transducer:
    """Return what decoding_speed.random_transducer does."""
    key = repr(config)
    if key not in _TRANSDUCERS:
        _TRANSDUCERS[key] = _make_transducer(config, device)
    return copy.deepcopy(_TRANSDUCERS[key]).to(dtype or torch.float32)


def make_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands and benchmarks of this process find the models that were made before."""

    def made_before(shape: str, seed: int = 0, device: str = "cpu") -> Checkpoint:
        assert (seed, device) == (0, "cpu")
        return checkpoint(shape)

    monkeypatch.setattr(random_checkpoint, "random_checkpoint", made_before)
    monkeypatch.setattr(decoding_speed, "random_transducer", transducer)
