"""The driver knows manifest rows that no worker sees: with redaction, those of failed recordings are redacted as well."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from fastscribe.config import Options
from fastscribe.ray.run import RayTranscriber
from fastscribe.types import Failure

FAILURE = Failure("a.wav", "a", "load", "AudioError", "no", {"text": "call five five", "n": 5})


def hidden(options: Options) -> Failure:
    facts: Any = SimpleNamespace(config=None, recovers_gaps=False, load_s=0.0, model=None, batch_frames=1.0)
    driver = RayTranscriber(None, cast(Any, None), facts, options, print)
    assert driver._edits is None  # which the command asks for lines
    found = driver._hidden(FAILURE)
    assert isinstance(found, Failure)
    return found


def test_rows_of_failures_are_redacted() -> None:
    found = hidden(Options(redact=("numbers",), language="en", itn=True))  # without the extra of --itn here
    assert found.row == {"text": "call [number]", "n": 5}
    unknown = hidden(Options(redact=("numbers",)))
    assert unknown.row == {"text": "[redacted]", "n": 5}
    assert hidden(Options(itn=True)) is FAILURE
