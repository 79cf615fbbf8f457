"""Tones, noise, chords and clicks do not sound like speech; speech does, also in noise and at other rates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from fastscribe import Transcriber, Transcript
from fastscribe.segmentation.speech_likeness import sounds_like_speech
from fastscribe.types import Float32Array
from tests.conftest import AUDIO, waveform
from tests.helpers.signals import RATE, signals

SOUNDS = signals(12.0)
CLIPS = [waveform(path).astype(np.float32) / 32768 for path in sorted(AUDIO.glob("0*.flac"))]


def pieces(samples_S: Float32Array, rate: int = RATE) -> list[Float32Array]:
    return [samples_S[begin : begin + 3 * rate] for begin in range(0, len(samples_S) - 2 * rate, 3 * rate)]


@pytest.mark.parametrize("rate", [8000, RATE, 44100])
def test_sounds_and_speech_are_told_apart(rate: int) -> None:
    for name, sound_S in SOUNDS.items():
        resampled_S = soxr.resample(sound_S, RATE, rate)
        assert not any(sounds_like_speech(piece_S, rate) for piece_S in pieces(resampled_S, rate)), name
    for clip_S in CLIPS:
        resampled_S = soxr.resample(clip_S, RATE, rate)
        assert all(sounds_like_speech(piece_S, rate) for piece_S in pieces(resampled_S, rate))


def test_speech_in_noise_and_faint_noise_behind_tones() -> None:
    rng = np.random.default_rng(0)
    for clip_S in CLIPS:
        noisy_S = clip_S + 0.3 * clip_S.std() * rng.standard_normal(len(clip_S)).astype(np.float32)
        assert all(sounds_like_speech(piece_S, RATE) for piece_S in pieces(noisy_S))
    for name in ("dial tone", "busy tone", "fast busy tone", "ringback", "dtmf", "beeps", "off-hook"):
        noisy_S = SOUNDS[name] + 0.003 * rng.standard_normal(len(SOUNDS[name])).astype(np.float32)
        assert not any(sounds_like_speech(piece_S, RATE) for piece_S in pieces(noisy_S)), name


def test_what_is_too_short_to_tell_sounds_like_speech() -> None:
    assert all(sounds_like_speech(CLIPS[0][8000 : 8000 + size], RATE) for size in (0, 1, 100, 1000, 6000))


def test_the_packaged_model_writes_nothing_for_sounds_and_lists_no_gaps(tmp_path: Path) -> None:
    """Words for a dial tone and for beeps, gaps for a telephone's keys, brown noise and typing. Speech after them stays."""
    clip_S = CLIPS[0]
    names = ("dial tone", "beeps", "dtmf", "brown noise", "typing", "busy tone")
    silence_S = np.zeros(RATE, np.float32)
    for name in names:
        soundfile.write(tmp_path / f"{name}.wav", SOUNDS[name], RATE)
    soundfile.write(tmp_path / "speech.wav", np.concatenate([SOUNDS["dial tone"][: 4 * RATE], silence_S, clip_S]), RATE)
    results = Transcriber.load("default", "cpu", "fp32").transcribe(str(tmp_path))
    found = {Path(one.audio.path).stem: one for one in results if isinstance(one, Transcript)}
    assert {name: (found[name].text, found[name].gaps) for name in names} == dict.fromkeys(names, ("", ()))
    first, *others = found["speech"].words
    assert first.start_s > 4.5 and [one.text for one in others[-4:]] == ["crowd", "greeted", "the", "President."]
    assert not found["speech"].gaps
