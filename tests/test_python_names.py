"""What a Python program sees: names of settings in messages, one-line representations, errors that say what to do."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

import fastscribe
from fastscribe import Failure, Transcript
from fastscribe.errors import FastscribeError, UsageError
from fastscribe.python_names import in_python
from fastscribe.results import interfaces
from fastscribe.transcriber import Transcriber
from tests.conftest import AUDIO, MODELS
from tests.helpers.warm_process import LIBRARIES_ALONE

CLIP = AUDIO / "15_1_00203.flac"


@pytest.fixture(scope="module")
def transcriber() -> Transcriber:
    return Transcriber.load(MODELS / "tdt_demo" / "model.nemo", device="cpu", dtype="fp32")


@pytest.mark.parametrize(
    ("message", "spoken"),
    [
        ("--beam 4: no", "beam=4: no"),
        ("--language en-US: --align-with MODEL takes", "language en-US: align_with=MODEL takes"),
        ("--no-pnc and --speakers channels", "pnc=False and speakers channels"),
        ("--max-utterance-s: too long", "max_utterance_s: too long"),
        ("--overwrite and a -- b stay", "--overwrite and a -- b stay"),
    ],
)
def test_settings_have_their_python_names(message: str, spoken: str) -> None:
    assert in_python(message) == spoken


def test_a_program_gets_them_and_a_shell_options(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    with pytest.raises(UsageError, match=r"^--dtype fp8: "):
        Transcriber.load(device="cpu", dtype="fp8")
    monkeypatch.setattr(FastscribeError, "spoken", in_python)
    with pytest.raises(UsageError, match=r"^dtype fp8: "):
        Transcriber.load(device="cpu", dtype="fp8")
    assert pickle.loads(pickle.dumps(UsageError("--dtype fp8: no"))).args == ("--dtype fp8: no",)


def test_importing_the_api_is_what_changes_them() -> None:
    code = "import fastscribe; fastscribe.Transcriber.load(dtype='fp8', device='cpu')"
    done = LIBRARIES_ALONE.python(code)
    assert done.returncode == 1 and "UsageError: dtype fp8: unavailable" in done.stderr


def test_dir_shows_what_is_public() -> None:
    assert dir(fastscribe) == sorted(fastscribe.__all__)


def test_what_public_calls_take_and_return_is_public() -> None:
    """Also what their documentation says that they raise. A Ledger's sources and an AudioInfo's file are the run's own."""
    own = {
        name: value
        for module in (fastscribe.types, fastscribe.config, fastscribe.errors, interfaces)
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    }
    calls = [getattr(fastscribe, name) for name in set(fastscribe.__all__) - {"AudioInfo", "Ledger", "__version__"}]
    calls += [vars(kind)[name] for kind, name in ((Transcriber, "results"), (Transcriber, "transcribe"))]
    calls += [Transcriber.load, fastscribe.Aligner.align]
    said = [str(getattr(call, "__annotations__", "")) for call in calls]
    said += [call.__doc__.partition("Raises:")[2].replace(":", "") for call in calls]
    named = {name for name in re.findall(r"\b[A-Z]\w+", " ".join(said)) if name in own}
    assert {"Gap", "DeviceFailed", "Ledger", "SubtitleStyle"} <= named <= set(fastscribe.__all__)


def test_representations_are_one_line(transcriber: Transcriber) -> None:
    [transcript] = transcriber.transcribe(CLIP)
    assert isinstance(transcript, Transcript)
    shown = repr(transcript)
    assert shown.startswith(f"Transcript('{CLIP}', 5.47 s, ") and transcript.text[:40] in shown
    assert len(shown) < 200 + len(str(CLIP)) and "\n" not in shown
    assert (
        repr(transcriber)
        == f"<Transcriber of {MODELS / 'tdt_demo' / 'model.nemo'}, tdt, fp32, on {transcriber._executor.facts.device_name}>"
    )


def test_a_failure_says_why_it_has_no_text(transcriber: Transcriber) -> None:
    [failure] = transcriber.transcribe("missing.flac")
    assert isinstance(failure, Failure) and copy.deepcopy(failure) == pickle.loads(pickle.dumps(failure)) == failure
    for name in ("text", "words"):
        assert not hasattr(failure, name)
        with pytest.raises(AttributeError, match=f"a Failure has no {name}: missing.flac: no such file"):
            getattr(failure, name)
    with pytest.raises(AttributeError, match="no such attribute"):
        _ = failure.nothing  # type: ignore[attr-defined]


def test_a_transcriber_is_not_pickled(transcriber: Transcriber) -> None:
    with pytest.raises(TypeError, match="load the model in the process that uses it"):
        pickle.dumps(transcriber)


@pytest.mark.posix
def test_a_fork_is_told_to_load_its_own(transcriber: Transcriber) -> None:
    """It would wait for threads of the other process for ever. torch with one thread has none, and may load anew."""
    code = f"""
import os, sys, fastscribe, torch
torch.set_num_threads(2)
transcriber = fastscribe.Transcriber.load({str(MODELS / "ctc")!r}, device="cpu", dtype="fp32")
for call in (lambda: next(transcriber.transcribe({str(CLIP)!r})), lambda: fastscribe.transcribe({str(CLIP)!r})):
    if os.fork() == 0:
        try:
            call()
        except fastscribe.UsageError as error:
            print(error, flush=True)
        os._exit(0)
    os.wait()
"""
    done = LIBRARIES_ALONE.python(code)
    assert done.stdout.count("do not survive a fork: load models in the new process alone") == 2, done.stderr
