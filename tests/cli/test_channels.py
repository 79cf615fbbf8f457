"""Recordings of several channels from the command line and from Python: what is read of them, and what their rows say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fastscribe import Options, Transcriber, Transcript
from fastscribe.results.formats.writers import to_object
from tests.conftest import AUDIO, MODEL, SENTENCE
from tests.helpers.processes import fastscribe, refused
from tests.helpers.schemas import check_schema

SPEECH, RATE = soundfile.read(AUDIO / "01_0_00010.flac", dtype="float32")
NOISE = np.random.default_rng(0).normal(0, 0.05, (5, len(SPEECH)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings whose mean has no text."""
    found = tmp_path_factory.mktemp("channels")
    surround = [NOISE[0], NOISE[1], SPEECH, NOISE[2], NOISE[3], NOISE[4]]
    soundfile.write(found / "surround.wav", np.stack(surround, axis=1), RATE)
    soundfile.write(found / "opposite.wav", np.stack([SPEECH, -SPEECH], axis=1), RATE)
    soundfile.write(found / "opposite_48k.flac", np.repeat(np.stack([SPEECH, -SPEECH], axis=1), 3, axis=0), 3 * RATE)
    soundfile.write(found / "mono.wav", SPEECH, RATE)
    return found


def rows_of(folder: Path, **settings) -> dict[str, dict]:
    """Return the rows by file, which must be as the schema says."""
    with Transcriber.load(MODEL, dtype="fp32", **settings) as transcriber:
        results = list(transcriber.transcribe([folder]))
    assert all(isinstance(one, Transcript) for one in results)
    rows = [to_object(one) for one in results]
    check_schema("result", rows)
    return {Path(row["audio_filepath"]).name: row for row in rows}


@pytest.mark.parametrize("settings", [{"device": "cpu"}, {"devices": "cpu:1"}], ids=["threads", "helpers"])
def test_speech_is_heard_and_rows_say_what_was_done(folder: Path, settings: dict[str, str]) -> None:
    rows = rows_of(folder, options=Options(threads=2), **settings)
    length = rows["mono.wav"]["duration"]
    for name in ("surround.wav", "opposite.wav", "mono.wav"):
        assert rows[name]["text"] == SENTENCE, name
        assert ("opposite_phase" in rows[name]) == name.startswith("opposite")
    assert rows["opposite_48k.flac"]["text"]
    for name in ("opposite.wav", "opposite_48k.flac"):
        assert rows[name]["opposite_phase"] == [{"start": 0.0, "end": pytest.approx(length, abs=0.001)}]
    assert not any("missing_channel" in row for row in rows.values())
    centre = "taken for surround sound (FL FR FC LFE BL BR): its centre, channel 2, is read"
    assert {name: row.get("audio_notes") for name, row in rows.items() if "audio_notes" in row} == {
        "surround.wav": [centre]
    }


def test_what_is_read_of_surround_sound_is_told_once(folder: Path, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "b.wav", np.stack([SPEECH, *NOISE], axis=1), RATE)
    done = fastscribe("transcribe", folder / "surround.wav", tmp_path / "b.wav", "-m", MODEL, "-q", "--ordered")
    assert done.returncode == 0 and done.stderr.count("is read; --speakers channels transcribes each channel") == 1


@pytest.mark.parametrize("device", [(), ("--devices", "cpu:1")], ids=["threads", "helpers"])
def test_voices_on_channels_are_told_at_the_end(tmp_path: Path, device: tuple[str, ...]) -> None:
    (folder := tmp_path / "in").mkdir()
    zeros = np.zeros_like(SPEECH)
    first, second = np.concatenate([SPEECH, zeros]), np.concatenate([zeros, SPEECH])
    soundfile.write(folder / "interview.wav", np.stack([first + 0.03 * second, second + 0.03 * first], axis=1), RATE)
    has = f"1 recording has a voice on each of two channels: {folder / 'interview.wav'}"
    line = f"{has}; --speakers channels tells who speaks\n"
    given = ("transcribe", folder, "-m", MODEL, "--dtype", "fp32", *device)
    for place, more in (("mixed", ("--max-utterance-s", "4")), ("told", ("--speakers", "channels"))):
        done = fastscribe(*given, "-o", tmp_path / place, *more)
        assert done.returncode == 0 and (line in done.stderr) == (place == "mixed"), done.stderr
    to_stdout = ("transcribe", folder / "interview.wav", "-m", MODEL, "--max-utterance-s", "4", "-f", "txt")
    assert line in fastscribe(*to_stdout).stderr and line not in fastscribe(*to_stdout, "-q").stderr


def test_a_missing_channel_falls_back_and_is_told_once(folder: Path) -> None:
    done = fastscribe("transcribe", folder, "-m", MODEL, "--channel", 2, "--quiet", "--ordered")
    rows = {Path(row["audio_filepath"]).name: row for row in map(json.loads, done.stdout.splitlines())}
    check_schema("result", rows.values())
    assert done.returncode == 0
    assert {name for name, row in rows.items() if row.get("missing_channel") == 2} == rows.keys() - {"surround.wav"}
    assert rows["surround.wav"]["text"] == rows["opposite.wav"]["text"] == rows["mono.wav"]["text"] == SENTENCE
    told = done.stderr.splitlines()
    assert len(told) == 2 and "mono.wav has no channel 2: all that it has are mixed" in told[0]
    assert "opposite.wav cancel each other, so one is taken there" in told[1]


def test_the_centre(folder: Path) -> None:
    done = fastscribe(
        "transcribe", folder / "surround.wav", folder / "mono.wav", "-m", MODEL, "--channel", "center", "-q"
    )
    rows = list(map(json.loads, done.stdout.splitlines()))
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["text"] for row in rows] == [SENTENCE] * 2 and not any("missing_channel" in row for row in rows)
    assert "'left' is neither a channel from 0 nor center" in refused(
        "transcribe", folder, "-m", MODEL, "--channel", "left"
    )
