"""The driver knows manifest rows that no worker sees: with redaction, none of them gets out."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from fastscribe.config import Options
from fastscribe.ray.run import RayTranscriber
from fastscribe.ray.worker import unpacked
from fastscribe.types import Failure, RenderedTranscript, Source, Transcript
from tests.readable.test_fillers import AUDIO, transcript_of

FAILURE = Failure("a.wav", "a", "load", "AudioError", "no", {"text": "call five five", "n": 5})


def hidden(options: Options) -> Failure:
    facts: Any = SimpleNamespace(config=None, load_s=0.0, model=None, batch_frames=1.0)
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
    assert hidden(Options(redact=("numbers",), language="auto")).row == unknown.row  # the model says the language
    assert hidden(Options(redact=("numbers",), language="en", target_language="de")).row == {
        "text": "call five five",
        "n": 5,
    }
    assert hidden(Options(itn=True)) is FAILURE


def test_a_whole_transcript_keeps_the_row_that_its_worker_redacted() -> None:
    source = Source("a.wav", "a.wav", "a", {"text": "call five"}, index=3)
    audio = replace(AUDIO, row={"text": "call [number]"})
    found = unpacked(replace(transcript_of("call [number]"), audio=audio), source)
    assert isinstance(found, Transcript)
    assert (found.audio.row, found.audio.index) == ({"text": "call [number]"}, 3)
    rendered = unpacked(RenderedTranscript(replace(AUDIO, row=None), "", (), (), texts={}), source)
    assert isinstance(rendered, Transcript) and rendered.audio.row == source.row  # its texts are made already
