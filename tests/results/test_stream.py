"""What goes to stdout from several recordings: lines of text have names and the given order, subtitles are refused."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.audio.input_names import Repeats
from fastscribe.audio.inputs import expand
from fastscribe.config import OutputStyle
from fastscribe.errors import UsageError
from fastscribe.results.formats.writers import SINGLE_FORMATS
from fastscribe.results.interfaces import OutputRun
from fastscribe.results.stream import StreamOutput, check_inputs
from fastscribe.types import Source, Transcript
from tests.audio.test_inputs import touch, write_manifest
from tests.results.test_output import failed, spoken


def written(inputs: list[str], *results: Transcript) -> str:
    """Expect all, then write them in the opposite order."""
    stream = io.StringIO()
    with StreamOutput(stream, OutputRun(OutputStyle(("txt",)), {}, inputs=inputs)) as output:
        for index, result in enumerate(results):
            path = "-" if inputs == ["-"] and result.text == "stdin" else "x"
            assert output.ledger.expect(Source(path, "x", "x", index=index))
        for result in reversed(results):
            output.write(result)
    return stream.getvalue()


def test_text_has_names_unless_one_file_was_given(tmp_path: Path) -> None:
    assert written(["a.wav"], spoken("a.wav", "one")) == "one\n"
    assert written(["-"], spoken("a.wav", "stdin")) == "stdin\n"
    assert written(["https://host/a.wav?signature=x*"], spoken("a.wav", "one")) == "one\n"
    named = "/in/a\\tb.wav\tone\n"
    for inputs in (["a.wav", "b.wav"], [str(tmp_path)], ["*.wav"], ["-"], ["list.jsonl"]):
        assert written(inputs, spoken("a\tb.wav", "one")) == named
    assert written(["x", "y"], spoken("a.wav"), spoken("b.wav", index=1)) == "/in/a.wav\ta.wav\n/in/b.wav\tb.wav\n"
    part = spoken("a.wav", "two")
    part = replace(part, audio=replace(part.audio, row={"audio_filepath": "/in/a.wav", "offset": 1.5}))
    assert written(["list.jsonl"], part) == "/in/a.wav@1500\ttwo\n"
    stream = io.StringIO()
    with StreamOutput(stream, OutputRun(OutputStyle(("txt",)), {}, inputs=["x", "y"])) as output:
        for index in range(2):
            output.ledger.expect(Source("x", "x", "x", index=index))
        output.write(spoken("b.wav", index=1))
        output.write(failed("a.wav"))
    assert stream.getvalue() == "/in/b.wav\tb.wav\n"


@pytest.mark.parametrize("format", sorted(SINGLE_FORMATS))
def test_subtitles_of_several_recordings_are_refused_at_once(tmp_path: Path, format: str) -> None:
    touch(tmp_path, "one/a.wav", "two/a.wav", "two/b.wav")
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    row = {"audio_filepath": "one/a.wav"}
    manifest = str(write_manifest(tmp_path / "m.jsonl", row, {**row, "offset": 1}))
    for inputs in ([one], [f"{one}/a.wav"], [f"{one}/*.wav"], ["missing.wav"], [one, f"{one}/a.wav"], ["-"]):
        check_inputs(format, inputs, expand(inputs, repeats=Repeats()))
        check_inputs("txt", [*inputs, two], ())
    for inputs in ([two], [f"{two}/*"], [manifest], [one, f"{two}/a.wav"], [one, "-"]):
        with pytest.raises(UsageError, match=f"-f {format}: several recordings"):
            check_inputs(format, inputs, expand(inputs, repeats=Repeats()))


def test_a_list_on_stdin_may_name_several() -> None:
    """It is refused before the first is decoded; a recording on stdin is not."""
    for path, index in (("a.wav", 0), ("-", 1)):
        ledger = StreamOutput(io.StringIO(), OutputRun(OutputStyle(("srt",)), {}, inputs=["-"])).ledger
        with pytest.raises(UsageError, match="several recordings"):
            ledger.expect(Source(path, path, "x", index=index))
    assert StreamOutput(io.StringIO(), OutputRun(OutputStyle(("srt",)), {}, inputs=["-"])).ledger.expect(
        Source("-", "-", "x")
    )


def test_streams_get_utf8_and_are_flushed_but_not_closed() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(io.BufferedWriter(raw), encoding="ascii")
    with StreamOutput(stream, OutputRun(OutputStyle(), {})) as output:
        output.write(spoken("ä.wav"))
        assert json.loads(raw.getvalue())["text"] == "ä.wav"
        output.write(failed("b.wav"))
    assert len(raw.getvalue().splitlines()) == 2
    assert not stream.closed
    stream.detach()


def test_closed_pipe_is_raised_to_the_caller() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    with pytest.raises(BrokenPipeError):
        StreamOutput(stream, OutputRun(OutputStyle(), {})).write(spoken("a.wav"))
    with pytest.raises(BrokenPipeError):
        stream.close()


@given(st.permutations(range(6)))
def test_ordered_streams_wait_for_earlier_results(order: list[int]) -> None:
    stream = io.StringIO()
    output = StreamOutput(stream, OutputRun(OutputStyle(), {}, ordered=True))
    results = [failed("b.wav", 1) if n == 1 else spoken(f"{n}.wav", index=n) for n in range(6)]
    for n in range(6):
        assert output.ledger.expect(Source("x", "x", "x", index=n))
    for count, n in enumerate(order, start=1):
        output.write(results[n])
        num_out = next((first for first in range(6) if first not in order[:count]), 6)
        assert len(stream.getvalue().splitlines()) == num_out
    paths = [json.loads(line)["audio_filepath"] for line in stream.getvalue().splitlines()]
    assert paths == ["/in/b.wav" if n == 1 else f"/in/{n}.wav" for n in range(6)]
