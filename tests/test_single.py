"""fastscribe.transcribe(): one recording, a model that stays loaded, and clear refusals."""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path

import pytest

import fastscribe
from fastscribe import AudioError, Options, UsageError, single
from fastscribe._system import remote
from fastscribe.errors import ManifestError, MissingExtra, OptionError, UnsupportedCheckpoint, WeightsMismatch
from tests.conftest import AUDIO, MODELS, waveform

PATH = AUDIO / "01_0_00010.flac"
SETTINGS = {"model": MODELS / "tdt_demo" / "model.nemo", "device": "cpu", "dtype": "fp32"}


def test_one_recording_and_one_model() -> None:
    single._loaded.cache_clear()
    first = fastscribe.transcribe(PATH, **SETTINGS)
    assert first.text and fastscribe.transcribe(PATH.read_bytes(), **SETTINGS).text == first.text
    assert single._loaded.cache_info().misses == 1
    fastscribe.transcribe(PATH, **SETTINGS, options=Options(vad="energy", window=10))
    assert single._loaded.cache_info().misses == 2
    single._loaded.cache_clear()


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}")
    several = (tmp_path, str(tmp_path / "*.wav"), tmp_path / "a.jsonl", "-", [PATH], fastscribe.Audio(tmp_path))
    for audio in several:
        with pytest.raises(UsageError, match="Transcriber"):
            fastscribe.transcribe(audio, **SETTINGS)
    with pytest.raises(AudioError, match=r"^gone.wav: no such file or folder$"):
        fastscribe.transcribe("gone.wav", **SETTINGS)
    for audio, may_pass in (("gone.wav", False), ("http://127.0.0.1:1/a.wav", True)):
        with pytest.raises(AudioError) as refused:
            fastscribe.transcribe(audio, **SETTINGS)
        assert refused.value.may_pass is may_pass
        with pytest.raises(AudioError, match=re.escape(str(refused.value))) as refused:
            fastscribe.probe(audio)
        assert refused.value.may_pass is may_pass
    with pytest.raises(UsageError, match="Transcriber"):
        fastscribe.probe(tmp_path)


def test_a_length_is_known_without_a_model() -> None:
    file, samples = io.BytesIO(PATH.read_bytes()), waveform(PATH)
    for audio in (PATH, file, (samples, 16_000)):
        assert fastscribe.probe(audio).duration_s == len(samples) / 16_000
    assert fastscribe.probe(fastscribe.Audio(file, duration_s=1.5)).duration_s == 1.5


def test_errors_pass_between_processes() -> None:
    """A pool of processes breaks, with all that it still does, on an exception that it cannot unpickle."""
    kinds = [
        AudioError("a.wav", "is text"),
        UsageError("no"),
        OptionError("beam", 0, "too few"),
        WeightsMismatch("m", ["x"]),
    ]
    kinds += [
        UnsupportedCheckpoint("m", "joint", 3, "2"),
        ManifestError("a.jsonl", 3, "no text"),
        MissingExtra("a", "b", "c"),
    ]
    for error in kinds:
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error) and str(copy) == str(error) and vars(copy) == vars(error)


def test_what_turns_out_to_name_several(tmp_path: Path) -> None:
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).write_bytes(b"not audio")
        remote.write_object(f"memory://several/{name}", b"not audio")
    for audio in ({"path": str(tmp_path)}, "memory://several", "memory://several/*.wav"):
        with pytest.raises(UsageError, match=r"^several recordings: "):
            fastscribe.transcribe(audio, **SETTINGS)


def test_changed_turns_are_read_again(tmp_path: Path) -> None:
    turns = tmp_path / "turns.rttm"
    for name in ("Ann", "Bob"):
        turns.write_text(f"SPEAKER {PATH.stem} 1 0 99 <NA> <NA> {name} <NA> <NA>\n")
        found = fastscribe.transcribe(PATH, **SETTINGS, options=Options(rttm=str(turns)))
        assert found.speakers == (name,)
    turns.unlink()
    with pytest.raises(UsageError, match=r"turns\.rttm: no such file"):
        fastscribe.transcribe(PATH, **SETTINGS, options=Options(rttm=str(turns)))


def test_the_packaged_model_says_who_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Once, when it is loaded; and of each recording that is beyond it."""
    single._loaded.cache_clear()
    samples = waveform(PATH)
    for given in (samples, samples, samples[::-1].copy()):
        fastscribe.transcribe((given, 16_000), device="cpu")
    name, beyond = capsys.readouterr().err.splitlines()
    assert "the small English model" in name and 'model="nvidia/parakeet-tdt-0.6b-v3"' in name
    assert "input 0 is beyond the small English model" in beyond and "fastscribe.transcribe(" in beyond
    fastscribe.transcribe((samples[::-1].copy(), 16_000), **SETTINGS)
    assert capsys.readouterr().err == ""
    single._loaded.cache_clear()
