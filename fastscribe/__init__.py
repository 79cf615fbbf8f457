"""fastscribe: transcribe large amounts of audio with FastConformer, Canary, Citrinet, ContextNet, Jasper and QuartzNet models.

>>> import fastscribe
>>> print(fastscribe.transcribe("talk.m4a").text)                         # doctest: +SKIP
>>> from fastscribe import Failure, Transcriber
>>> transcriber = Transcriber.load("model.nemo")                          # doctest: +SKIP
>>> for result in transcriber.transcribe(["recordings/", "talk.flac"]):   # doctest: +SKIP
...     print(result.message if isinstance(result, Failure) else result.text)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastscribe.config import Options, OutputStyle, SpeakerNames, SubtitleStyle
from fastscribe.errors import AudioError, CheckpointError, DeviceFailed, FastscribeError, ModelClosed, UsageError
from fastscribe.types import (
    Alternative,
    AudioInfo,
    Failure,
    Gap,
    Phrase,
    RenderedTranscript,
    Segment,
    Source,
    Token,
    Transcript,
    Turn,
    Voice,
    Word,
)
from fastscribe.version import __version__

if TYPE_CHECKING:
    from fastscribe.alignment.aligner import Aligner
    from fastscribe.audio.given import Audio
    from fastscribe.results.formats.writers import render
    from fastscribe.results.interfaces import Ledger
    from fastscribe.single import probe, transcribe
    from fastscribe.transcriber import Transcriber

__all__ = [
    "Aligner",
    "Alternative",
    "Audio",
    "AudioError",
    "AudioInfo",
    "CheckpointError",
    "DeviceFailed",
    "Failure",
    "FastscribeError",
    "Gap",
    "Ledger",
    "ModelClosed",
    "Options",
    "OutputStyle",
    "Phrase",
    "RenderedTranscript",
    "Segment",
    "Source",
    "SpeakerNames",
    "SubtitleStyle",
    "Token",
    "Transcriber",
    "Transcript",
    "Turn",
    "UsageError",
    "Voice",
    "Word",
    "__version__",
    "probe",
    "render",
    "transcribe",
]
_MODULES = {  # of what is imported on first use
    "Aligner": "fastscribe.alignment.aligner",
    "Audio": "fastscribe.audio.given",
    "Ledger": "fastscribe.results.interfaces",
    "Transcriber": "fastscribe.transcriber",
    "probe": "fastscribe.single",
    "render": "fastscribe.results.formats.writers",
    "transcribe": "fastscribe.single",
}


def __dir__() -> list[str]:
    """List what is public, also what is imported on first use."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import on first use only: two import torch, which takes a second; the others are for few programs."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("Aligner", "Transcriber"):
        from fastscribe._system.process_settings import limit_openmp_spin
        from fastscribe.python_names import speak_python

        limit_openmp_spin()
        speak_python()
    return getattr(import_module(_MODULES[name]), name)
