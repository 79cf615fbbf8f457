"""The detector (extra `vad`) gives the same probabilities for any blocks; cuts and gaps follow it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from fastscribe import Options, Transcriber, UsageError
from fastscribe.audio.probe import probe
from fastscribe.segmentation import vad
from fastscribe.segmentation.segment import split
from fastscribe.types import AudioInfo, Source
from tests.conftest import AUDIO, MODELS, RATE, waveform

CLIPS = [waveform(path).astype(np.float32) / 32768 for path in sorted(AUDIO.glob("0[1-5]*.flac"))]
missing = [name for name in ("silero_vad", "onnxruntime") if importlib.util.find_spec(name) is None]
needs_the_extra = pytest.mark.skipif(bool(missing), reason=f"the extra `vad` is not installed: no {', '.join(missing)}")


def recording(path: Path, samples: np.ndarray, rate: int = RATE) -> AudioInfo:
    soundfile.write(path, samples, rate)
    return probe(Source(str(path), str(path), path.name))


def babble(length_s: float) -> np.ndarray:
    return (0.02 * np.random.default_rng(0).standard_normal(round(length_s * RATE))).astype(np.float32)


def test_missing_extra_is_a_usage_error(monkeypatch) -> None:
    vad._network.cache_clear()
    monkeypatch.setattr(vad, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="install fastscribe with its extra vad"):
        Transcriber.load("no such model", options=Options(vad="silero"))


def test_options() -> None:
    with pytest.raises(UsageError, match="vad 'loud': not one of energy, silero"):
        Options(vad="loud")  # type: ignore[arg-type]


@needs_the_extra
@pytest.mark.parametrize("rate", [16000, 8000, 44100])
def test_speech_differs_from_noise(tmp_path: Path, rate: int) -> None:
    samples = np.concatenate([babble(3), CLIPS[0], babble(3)])
    samples = samples if rate == RATE else soxr.resample(samples, RATE, rate)
    audio = recording(tmp_path / "a.wav", samples, rate)
    frame_samples = rate // 50
    speech = vad.speech_probability(audio, frame_samples) >= vad.SPEECH
    assert len(speech) == -(-audio.num_samples // frame_samples)
    assert not speech[:145].any() and not speech[-130:].any()
    assert speech[170 : 150 + round((len(CLIPS[0]) / RATE - 0.5) * 50)].mean() > 0.9


@needs_the_extra
@pytest.mark.parametrize("num_samples", [0, 1, 511, 512, 513, 575, 576, 1024, 16000, 16001])
def test_blocks_do_not_matter(num_samples: int) -> None:
    samples = CLIPS[0][4000 : 4000 + num_samples]

    def probabilities_by_block(*sizes: int) -> np.ndarray:
        pieces, at = [], 0
        while at < len(samples):
            pieces.append(samples[at : at + sizes[len(pieces) % len(sizes)]])
            at += len(pieces[-1])
        return np.concatenate([np.zeros(0), *vad._probabilities(vad._chunks(iter(pieces)))])

    whole = probabilities_by_block(1 << 20)
    assert len(whole) == -(-num_samples // 512)
    np.testing.assert_allclose(probabilities_by_block(100, 3000, 1, 512), whole, atol=1e-5)


@needs_the_extra
def test_a_stretch_is_read_by_itself(tmp_path: Path) -> None:
    audio = recording(tmp_path / "a.flac", np.concatenate([babble(3), CLIPS[0]]))
    assert len(vad.speech_probability(audio.part(3 * RATE, RATE), 320)) == 50
    assert vad.speech_probability(audio.part(3 * RATE, 3 * RATE), 320).max() > 0.9


@needs_the_extra
def test_cuts_lie_in_loud_noise_without_speech(tmp_path: Path) -> None:
    """The noise is as loud as the speech, so energy finds no pause."""
    loud = np.concatenate([np.concatenate([clip, 3 * babble(0.8)]) for clip in CLIPS])
    audio = recording(tmp_path / "a.wav", loud)
    ends_s = np.cumsum([len(clip) / RATE + 0.8 for clip in CLIPS])
    cuts_s = [utterance.start_s for utterance in split(audio, 14.0, 0.08, "silero")[1:]]
    assert len(cuts_s) >= 1
    assert all(np.abs(ends_s - cut_s).min() < 0.4 for cut_s in cuts_s)


@needs_the_extra
def test_run_with_vad(tmp_path: Path) -> None:
    audio = recording(tmp_path / "a.wav", np.concatenate([CLIPS[0], babble(3), CLIPS[1]]))
    transcriber = Transcriber.load(
        MODELS / "ctc" / "model.nemo", "cpu", "fp32", Options(vad="silero", max_utterance_s=8)
    )
    [result] = transcriber.transcribe(audio.path)
    assert "rice stadium" in result.text and "circumstances" in result.text
    assert result.gaps == ()
