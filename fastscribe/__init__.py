"""fastscribe: a mountain of audio into text, with FastConformer transducer and CTC checkpoints.

>>> from fastscribe import Failure, Transcriber
>>> transcriber = Transcriber.load("model.nemo")                          # doctest: +SKIP
>>> for result in transcriber.transcribe(["recordings/", "talk.flac"]):   # doctest: +SKIP
...     print(result.message if isinstance(result, Failure) else result.text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastscribe.config import Options
from fastscribe.errors import AudioError, CheckpointError, FastscribeError, UsageError
from fastscribe.types import Failure, Segment, Token, Transcript, Word
from fastscribe.version import __version__

if TYPE_CHECKING:
    from fastscribe.transcriber import Transcriber

__all__ = [
    "AudioError",
    "CheckpointError",
    "Failure",
    "FastscribeError",
    "Options",
    "Segment",
    "Token",
    "Transcriber",
    "Transcript",
    "UsageError",
    "Word",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Transcriber brings torch in, which takes a second: only for those who ask for it."""
    if name == "Transcriber":
        from fastscribe._system.openmp import limit_openmp_spin

        limit_openmp_spin()
        from fastscribe.transcriber import Transcriber

        return Transcriber
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
