"""Long digital silence within an utterance is cut out of its row, and the words' times are those of the recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from fastscribe.audio import resample
from fastscribe.audio.probe import probe
from fastscribe.config import Options
from fastscribe.pipeline import prefetch
from fastscribe.pipeline.engine import select_rows
from fastscribe.segmentation.silence import find_zeros
from fastscribe.transcriber import Transcriber
from fastscribe.types import Batch, Failure, Purpose, Source, Utterance
from tests.conftest import AUDIO, RATE
from tests.helpers.loading import load_batches


def zeros(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE), np.int16)


def speech(name: str) -> np.ndarray:
    return soundfile.read(AUDIO / f"{name}.flac", dtype="int16")[0]


def loaded(paths: list[Path], native: bool, purpose: Purpose = "words") -> tuple[Batch | None, list[str]]:
    utterances = []
    for path in paths:
        audio = probe(Source(str(path), str(path), path.name))
        utterances.append(Utterance(audio, 0, audio.num_samples, purpose=purpose))
    ((batch, settled),) = load_batches([utterances], sample_rate=RATE, threads=2, ahead=1, native=native)
    return batch, [utterance.audio.id for utterance, _ in settled]


def write(path: Path, samples: np.ndarray, rate: int = RATE) -> Path:
    soundfile.write(path, samples, rate)
    return path


def test_loader_cuts_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mono rows, and rows that a device resamples: their samples are those of the same recordings without the silence."""
    monkeypatch.setattr(prefetch, "MAX_WAIT_S", 60.0)  # on a busy machine a file would be left for a batch of its own
    first, second = speech("04_0_00070"), speech("02_0_00025")
    whole = np.concatenate([first, zeros(5), second, zeros(3)])
    stereo = np.repeat(np.repeat(whole, 3)[:, None], 2, axis=1)  # at 48 kHz
    paths = [
        write(tmp_path / "whole.wav", whole),
        write(tmp_path / "plain.wav", second),
        write(tmp_path / "stereo.wav", stereo, 3 * RATE),
        write(tmp_path / "zero.wav", zeros(4)),
        write(tmp_path / "cancels.wav", np.stack([first, -first], axis=1)),
    ]
    found = {}
    for native in (False, True):
        batch, settled = loaded(paths, native)
        assert batch is not None and settled == ["zero.wav"]
        assert [len(cuts) for cuts in batch.cuts] == [2, 0, 2, 0] and batch.lengths_B[1] == len(second)
        assert batch.lengths_B[3] == len(first)  # of two channels that cancel each other, one is taken
        for cut, expected in zip(batch.cuts[2], batch.cuts[0], strict=True):
            assert cut.at_s == pytest.approx(expected.at_s, abs=0.021) and cut.duration_s == expected.duration_s
        assert batch.lengths_B[0] == batch.lengths_B[2]
        (begin, end), at_end = find_zeros(whole, RATE)
        kept = np.concatenate([whole[:begin], whole[end : at_end[0]], whole[at_end[1] :]])
        samples_BS = resample.fill(batch, torch.from_numpy(batch.samples_BS), RATE).numpy()
        assert np.abs(samples_BS[0, : batch.lengths_B[0]] - kept / 32768).max() < 1e-6
        assert batch.lengths_B[0] == len(kept) and batch.samples_BS.shape[1] < len(whole)
        found[native] = samples_BS[2]
        assert select_rows(batch, [1, 2]).cuts == batch.cuts[1:3]
    assert np.abs(found[False] - found[True]).max() < 2e-3  # two resamplers
    batch, _ = loaded(paths[:1], False, "turns")
    assert batch is not None and batch.cuts == () and batch.lengths_B[0] == len(whole)


def test_words_and_times_of_the_packaged_model(tmp_path: Path) -> None:
    first, second, gap_s = speech("04_0_00070"), speech("02_0_00025"), 60
    write(tmp_path / "joined.wav", np.concatenate([first, zeros(gap_s), second, zeros(4)]))
    write(tmp_path / "first.wav", first)
    write(tmp_path / "second.wav", second)
    transcriber = Transcriber.load(device="cpu", dtype="fp32", options=Options(max_utterance_s=0.0))
    results = {result.audio.id: result for result in transcriber.transcribe([tmp_path])}
    assert not any(isinstance(result, Failure) for result in results.values())
    joined, one, two = (results[f"{name}.wav"] for name in ("joined", "first", "second"))
    assert joined.text == f"{one.text} {two.text}"
    starts = [word.start_s for word in one.words] + [word.start_s + len(first) / RATE + gap_s for word in two.words]
    assert [word.start_s for word in joined.words] == pytest.approx(starts, abs=0.3)


def test_a_word_does_not_last_as_long_as_the_silence_after_it(tmp_path: Path) -> None:
    """The CTC head writes a full stop just before the next word."""
    first, second = speech("04_0_00070"), speech("02_0_00025")
    write(tmp_path / "joined.wav", np.concatenate([first, zeros(9), second, zeros(9)]))
    options = Options(max_utterance_s=0.0, decoder="ctc")
    transcriber = Transcriber.load(device="cpu", dtype="fp32", options=options)
    (joined,) = transcriber.transcribe([tmp_path])
    assert not isinstance(joined, Failure) and "." in joined.text
    assert max(word.end_s - word.start_s for word in joined.words) < 2.5
