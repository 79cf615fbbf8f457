"""Cutting a long recording keeps words and times of an uncut decode, and times are exact after ten hours."""

from __future__ import annotations

import difflib
import tracemalloc
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fastscribe import Options, Transcriber, Transcript
from fastscribe.audio.probe import probe
from fastscribe.audio.read import read
from fastscribe.segmentation.segment import choose_pieces, split
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.text.transcript import assemble
from fastscribe.types import AudioInfo, Hypothesis, Source, Utterance
from tests.conftest import AUDIO, MODELS, RATE, checkpoint, recognizer, waveform
from tests.helpers.collate import collate

CLIPS = [waveform(path).astype(np.float32) / 32768 for path in sorted(AUDIO.glob("[01]*.flac"))]
TEN_HOURS_S = 36_000


def talk(seed: int, length_s: float) -> np.ndarray:
    """Sentences that the checkpoints know, in any order, with pauses of 0.2 to 2 s and faint noise."""
    rng = np.random.default_rng(seed)
    pieces, last, num_samples = [], -1, 0
    while num_samples < length_s * RATE:
        clip = (last + int(rng.integers(1, len(CLIPS)))) % len(CLIPS)
        pieces += [np.zeros(int(rng.uniform(0.2, 2.0) * RATE), np.float32), CLIPS[clip]]
        last, num_samples = clip, num_samples + len(pieces[-2]) + len(pieces[-1])
    samples = np.concatenate(pieces)
    return samples + 1e-3 * rng.standard_normal(len(samples)).astype(np.float32)


def transcribed(model: str, max_utterance_s: float, path: Path) -> Transcript:
    options = Options(max_utterance_s=max_utterance_s)
    transcriber = Transcriber.load(MODELS / model / "model.nemo", "cpu", "fp32", options)
    [result] = transcriber.transcribe([str(path)])
    assert isinstance(result, Transcript)
    return result


@cache
def transcribed_uncut(model: str, path: Path) -> Transcript:
    return transcribed(model, 0, path)


@pytest.fixture(scope="module")
def talk_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("talk") / "a.wav"
    soundfile.write(path, talk(1, 80), RATE)
    return path


@pytest.mark.parametrize(
    ("model", "max_utterance_s", "least_matched", "least_near"),
    [("tdt_demo", 20.0, 1.0, 0.97), ("ctc", 12.0, 0.96, 1.0)],
)
def test_cutting_keeps_word_times(
    talk_file: Path, model: str, max_utterance_s: float, least_matched: float, least_near: float
) -> None:
    uncut, cut = transcribed_uncut(model, talk_file), transcribed(model, max_utterance_s, talk_file)
    names = [[word.text.lower().strip(".,?") for word in result.words] for result in (uncut, cut)]
    blocks = difflib.SequenceMatcher(None, *names, autojunk=False).get_matching_blocks()
    pairs = [(uncut.words[b.a + i], cut.words[b.b + i]) for b in blocks for i in range(b.size)]
    off_s = np.array([abs(a.start_s - b.start_s) for a, b in pairs])
    assert len(pairs) >= least_matched * max(map(len, names))
    assert (off_s <= 0.0801).mean() >= least_near
    assert off_s.max() < 0.5
    assert cut.gaps == ()


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 44100, 48000])
def test_no_drift_after_ten_hours(rate: int) -> None:
    """A word at 9:59:59.x keeps its time to the millisecond in a recording cut into a thousand pieces."""
    audio = AudioInfo("a", "a", rate, 1, TEN_HOURS_S * rate)
    energy = np.random.default_rng(0).random(TEN_HOURS_S * 50)
    quiet = np.arange(len(energy)) % 331 < 20
    pieces = choose_pieces(energy, quiet, 0.02, 40.0)
    assert len(pieces) > 900
    tokenizer = Tokenizer(pieces=("▁word",), kind="subword")
    grid = 8 * rate // 100
    begins = [round(begin / 4) * grid for begin, _ in pieces]
    parts = [(Utterance(audio, begin, grid), Hypothesis()) for begin in begins[:-1]]
    last_frame = (TEN_HOURS_S * 100 - 56) // 8  # 9:59:59.44
    last_hypothesis = Hypothesis((0,), (last_frame - begins[-1] // grid,), (1,), (-0.1,))
    parts.append((Utterance(audio, begins[-1], audio.num_samples - begins[-1]), last_hypothesis))
    [word] = assemble(audio, parts, tokenizer, 0.08, True).words
    assert (round(word.start_s, 3), round(word.end_s, 3)) == (35999.44, 35999.52)


def test_a_sentence_at_the_end_of_an_hour(tmp_path: Path) -> None:
    """The file is sparse; splitting holds only a few numbers per frame."""
    path, rate = tmp_path / "a.wav", 8000
    clip = waveform(AUDIO / "08_0_00214.flac", rate).astype(np.float32)
    pcm = (clip / np.abs(clip).max() * 20_000).astype("<i2")
    soundfile.write(path, pcm, rate)
    alone = transcribed("tdt_demo", 0, path)
    header = bytearray(path.read_bytes()[:44])
    num_bytes = 2 * 3600 * rate
    header[4:8], header[40:44] = (36 + num_bytes).to_bytes(4, "little"), num_bytes.to_bytes(4, "little")
    at_s = 59 * 60 + 50
    with path.open("wb") as file:
        file.write(header)
        file.seek(44 + 2 * at_s * rate)
        file.write(pcm.tobytes())
        file.truncate(44 + num_bytes)
    audio = probe(Source(str(path), str(path), "a.wav"))
    tracemalloc.start()
    utterances = split(audio, 40.0, 0.08)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 15e6  # 180,000 frames
    [spoken] = utterances  # the rest is digital silence
    samples = read(audio, spoken.start, spoken.num_samples, sample_rate=RATE)
    [hypothesis] = recognizer(MODELS / "tdt_demo").transcribe(collate([spoken], [samples]))
    tokenizer = checkpoint(MODELS / "tdt_demo").tokenizer
    result = assemble(audio, [(spoken, hypothesis)], tokenizer, 0.08, True)
    assert result.text == alone.text
    off_s = [b.start_s - at_s - a.start_s for a, b in zip(alone.words, result.words, strict=True)]
    assert np.abs(off_s).max() < 0.25  # the silence that stays in front, in which this model begins to write
