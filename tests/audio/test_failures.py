"""What a failure says of an error, and where it says that a defect is."""

from __future__ import annotations

import ast
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fastscribe import Failure, Transcriber
from fastscribe._system.remote import RemoteNotFound, RemoteUnavailable
from fastscribe.audio import failures, probe, read
from fastscribe.audio.failures import to_failure
from fastscribe.audio.media import FileObject
from fastscribe.config import OutputStyle
from fastscribe.errors import AudioError, ModelOutputError, OutputError, RecordingKilledProcess
from fastscribe.types import Source
from tests.conftest import AUDIO, MODELS, ROOT, model_path
from tests.helpers.markdown import blocks

CLIP = AUDIO / "01_0_00010.flac"
SOURCE = Source("a.wav", "a.wav", "a.wav")


def in_the_package(code: str, **names: Any) -> Callable[..., Any]:
    """Return the function `f` of some code that counts as the package's own."""
    file = Path(failures.__file__).parents[1] / "decode" / "another.py"
    exec(compile(code, str(file), "exec"), names | {"__name__": "fastscribe.decode.another"}, found := dict[str, Any]())
    return found["f"]


def message(stage: str, call: Callable[..., Any], *arguments: Any) -> str:
    try:
        call(*arguments)
    except Exception as error:
        return to_failure(SOURCE, stage, error).message
    raise AssertionError("no error")


@pytest.mark.parametrize("stage", ["probe", "split", "load", "model", "assemble", "align"])
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("a @ b", r"RuntimeError mat1 and mat2 shapes cannot be multiplied \(2x3 and 2x4\)"),
        (
            "linear(b)",
            r"RuntimeError mat1 and mat2 shapes cannot be multiplied \(2x4 and 3x2\)",
        ),  # in a module of torch
        ("np.stack([np.zeros(2), np.zeros(3)])", "a defect of fastscribe, ValueError all input arrays .*"),
        ("np.zeros(2) + np.zeros(3)", "a defect of fastscribe, ValueError operands could not be broadcast .*"),
        ("int('x')", "a defect of fastscribe, ValueError invalid literal for int.*"),
        ("json.dumps({1})", "a defect of fastscribe, TypeError Object of type set .*"),  # in a module of Python
        ("{}[1]", "a defect of fastscribe, KeyError 1"),
    ],
)
def test_what_libraries_raise_has_the_line_that_called_them(stage: str, code: str, said: str) -> None:
    given = {"a": torch.zeros(2, 3), "b": torch.zeros(2, 4), "linear": nn.Linear(3, 2), "np": np, "json": json}
    call = in_the_package(f"def f():\n    {code}", **given)
    assert re.fullmatch(said + r" in fastscribe/decode/another\.py, line 2", message(stage, call))


def raising(error: BaseException) -> Callable[[], Any]:
    return in_the_package("def f():\n    raise error", error=error)


@pytest.mark.parametrize(
    ("stage", "error", "said"),
    [
        ("load", AudioError("a.wav", "damaged"), "damaged"),
        ("model", ModelOutputError("NaN"), "NaN"),
        ("assemble", OutputError("a.srt", OSError(28, "disk full")), "disk full"),
        ("input", ValueError("an array of 3 dimensions"), "an array of 3 dimensions"),
        ("model", MemoryError("no room"), "no room"),
        ("model", torch.OutOfMemoryError("no room"), "no room"),
        ("model", RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "can't allocate memory"),
    ],
)
def test_what_is_raised_on_purpose_or_for_want_of_memory_has_no_place(stage: str, error: Exception, said: str) -> None:
    found = message(stage, raising(error))
    assert said in found and "line" not in found and "defect" not in found


@pytest.mark.parametrize(
    ("stage", "error", "may_pass"),
    [
        ("load", MemoryError("no room"), True),
        ("load", ImportError("_umath.so: failed to map segment from shared object"), True),
        ("load", ImportError("no module of this name"), False),
        ("model", MemoryError("no room"), False),
    ],
)
def test_a_later_run_tries_what_memory_was_short_for(stage: str, error: Exception, may_pass: bool) -> None:
    failure = to_failure(Source("a", "a", "a"), stage, error)
    assert (failure.may_pass, failure.error_type) == (may_pass, type(error).__name__)


@pytest.mark.parametrize(
    ("stage", "error", "cause", "status"),
    [
        ("probe", AudioError("a.wav", "damaged"), None, 422),
        ("load", AudioError("a.wav", "no such object"), RemoteNotFound("no such object"), 422),
        ("load", AudioError("a.wav", "no answer"), RemoteUnavailable("no answer"), 503),
        ("split", MemoryError("no room"), None, 503),
        ("model", torch.OutOfMemoryError("no room"), None, 500),
        ("model", ModelOutputError("NaN"), None, 500),
        ("model", RecordingKilledProcess("was killed by SIGSEGV"), None, 500),
        ("assemble", KeyError("odd"), None, 500),
        ("input", ValueError("an array of 3 dimensions"), None, 500),
    ],
)
def test_whose_matter_a_failure_is(stage: str, error: Exception, cause: Exception | None, status: int) -> None:
    """The status is that of the guide to servers."""
    [text] = [one.text for one in blocks(ROOT / "docs" / "python.md", "python") if "def status_of" in one.text]
    [function] = [one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef) and one.name == "status_of"]
    exec(ast.unparse(function), names := {"Failure": Failure})
    error.__cause__ = cause
    assert names["status_of"](to_failure(SOURCE, stage, error)) == status


def test_another_library_and_a_callers_object_have_no_place() -> None:
    def theirs() -> None:
        raise ValueError("out of paper")

    assert message("load", in_the_package("def f(theirs):\n    theirs()"), theirs) == "out of paper"


class Unwilling(io.BytesIO):
    def seek(self, offset: int, whence: int = 0) -> int:
        raise ValueError("I/O operation on closed file")


def test_a_callers_closed_file_is_no_defect_wherever_it_is_found() -> None:
    file = io.BytesIO(CLIP.read_bytes())
    medium = FileObject(file, "a")
    audio = probe.probe(Source("a", medium, "a"))
    file.close()
    for source, call in ((Source("a", medium, "a"), probe.probe), (audio, lambda _: list(read.blocks(audio, 9)))):
        with pytest.raises(AudioError, match=r"^a: (I/O operation on closed file|.* closed file)\.?$"):
            call(source)  # type: ignore[arg-type, operator]
    with pytest.raises(AudioError, match=r"closed file$"):
        probe.probe(Source("a", FileObject(Unwilling(), "a"), "a"))


def test_a_path_that_no_system_has_is_no_defect() -> None:
    with pytest.raises(AudioError, match=r"null (byte|character)$"):
        probe.probe(Source("a\0b", "a\0b", "a"))


@pytest.mark.parametrize(
    ("stage", "where", "code", "said"),
    [
        ("probe", "audio.probe.plain_header", "int('x')", "a defect of fastscribe, ValueError invalid literal"),
        (
            "load",
            "audio.read._check_length",
            "np.zeros(2) + np.zeros(3)",
            "a defect of fastscribe, ValueError operands",
        ),
        (
            "model",
            "decode.label_looping.LabelLooping.submit",
            "torch.zeros(2, 3) @ torch.zeros(2, 4)",
            "RuntimeError mat1",
        ),
        ("assemble", "results.formats.writers.to_object", "int('x')", "a defect of fastscribe, ValueError invalid"),
    ],
)
def test_each_stage_says_where_a_defect_is(
    stage: str, where: str, code: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transcriber = Transcriber.load(model_path(MODELS / "tdt_demo"), device="cpu")
    call = in_the_package(f"def f(*given, **named):\n    {code}", np=np, torch=torch)
    monkeypatch.setattr(f"fastscribe.{where}", call)
    [failure] = transcriber.results([CLIP], style=OutputStyle(("jsonl",)))
    assert isinstance(failure, Failure) and failure.stage == stage
    assert failure.message.startswith(said) and re.search(
        r" in fastscribe/decode/another\.py, line 2$", failure.message
    )
