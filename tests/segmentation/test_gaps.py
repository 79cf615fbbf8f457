"""Speech without words is found and listed; other sounds are left alone."""

from __future__ import annotations

import math
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import soundfile

from fastscribe import Failure, Options, Transcriber, Transcript
from fastscribe.audio.probe import probe
from fastscribe.errors import AudioError
from fastscribe.segmentation import gap_search
from fastscribe.segmentation.gap_search import Surroundings, find_clear_speech
from fastscribe.segmentation.loudness import frame_energy
from fastscribe.segmentation.spans import find_untranscribed_spans
from fastscribe.types import AudioInfo, Hypothesis, Segment, Source, Utterance, Word
from tests.conftest import AUDIO, MODELS, RATE, waveform

CLIPS = [waveform(path).astype(np.float32) / 32768 for path in sorted(AUDIO.glob("0[1-5]*.flac"))]
rng = np.random.default_rng(0)


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE), np.float32)


def noise(seconds: float, level: float) -> np.ndarray:
    return (level * rng.standard_normal(round(seconds * RATE))).astype(np.float32)


def hum(seconds: float) -> np.ndarray:
    return (0.2 * np.sin(2 * np.pi * 50 * np.arange(round(seconds * RATE)) / RATE)).astype(np.float32)


def recording(folder: Path, *pieces: np.ndarray) -> AudioInfo:
    path = folder / "a.wav"
    soundfile.write(path, np.concatenate(pieces), RATE)
    return probe(Source(str(path), str(path), path.name))


def with_words(audio: AudioInfo, *spans_s: tuple[float, float]) -> Transcript:
    words = tuple(Word("word", start_s, end_s, 1.0) for start_s, end_s in spans_s)
    return Transcript(audio, "", (Segment("", 0.0, 0.0, 1.0, words),), ())


def found(transcript: Transcript, **options) -> list[tuple[float, float]]:
    spans = find_untranscribed_spans(transcript)
    speech = find_clear_speech(transcript, spans, Surroundings(transcript, spans, Options(**options)))
    return [(utterance.start_s, utterance.end_s) for utterance in speech]


def test_what_lies_around_several_spans_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And gives each span what it would hear alone."""
    audio = recording(tmp_path, noise(130.123, 0.1))
    spans = [(3.0, 5.0), (20.01, 24.0), (8.0, 9.5), (100.0, 102.7), (125.0, audio.duration_s)]
    transcript = with_words(audio, (0.0, 3.0), (9.5, 20.01), (99.9, 100.0))
    alone = [Surroundings(transcript, [span], Options()).loudness(*span) for span in spans]
    parts: list[tuple[int, int]] = []
    monkeypatch.setattr(
        gap_search,
        "frame_energy",
        lambda part, size: parts.append((part.start, part.num_samples)) or frame_energy(part, size),
    )
    together = Surroundings(transcript, spans, Options())
    for span, (origin, loudness) in zip(spans, alone, strict=True):
        found_origin, found = together.loudness(*span)
        assert found_origin == origin and np.array_equal(found, loudness)
        narrower = span[0] + 0.3, span[1] - 0.3
        first, inner = together.loudness(*narrower)
        assert np.array_equal(inner, loudness[first - origin : first - origin + len(inner)])
    seconds = [(start / RATE, (start + length) / RATE) for start, length in parts]
    assert seconds == [(0.0, 34.0), (90.0, 112.7), (115.0, audio.duration_s)]
    in_words = np.flatnonzero(together.in_words) * together.frame_s
    assert all(any(start - 0.02 <= at <= end for start, end in ((0, 3), (9.5, 20.01), (99.9, 100))) for at in in_words)


@pytest.mark.parametrize(
    ("spans_s", "stretches"),
    [
        ([], [(0.0, 10.0)]),
        ([(0.0, 1.0), (2.9, 9.0)], []),
        ([(2.0, 3.0), (5.0, 8.0)], [(0.0, 2.0), (3.0, 5.0), (8.0, 10.0)]),
        ([(0.0, 6.0), (1.0, 2.0), (7.0, 8.5)], []),
    ],
)
def test_find_untranscribed_spans(spans_s, stretches) -> None:
    assert find_untranscribed_spans(with_words(AudioInfo("a", "a", 1000, 1, 10_000), *spans_s)) == stretches


def test_speech_between_words_is_found(tmp_path: Path) -> None:
    audio = recording(tmp_path, CLIPS[0], CLIPS[1], CLIPS[2])
    first_s, second_s = len(CLIPS[0]) / RATE, len(CLIPS[1]) / RATE
    [(start_s, end_s)] = found(
        with_words(audio, (0.2, first_s - 0.2), (first_s + second_s + 0.2, audio.duration_s - 0.1))
    )
    assert first_s <= start_s <= first_s + 0.4
    assert first_s + second_s - 0.5 <= end_s <= first_s + second_s + 0.1


def test_speech_at_both_ends_or_without_any_word(tmp_path: Path) -> None:
    audio = recording(tmp_path, CLIPS[0], CLIPS[1], CLIPS[2])
    first_s = len(CLIPS[0]) / RATE
    spans = found(with_words(audio, (first_s + 0.2, first_s + len(CLIPS[1]) / RATE - 0.2)))
    assert [round(start_s) for start_s, _ in spans] == [0, round(first_s + len(CLIPS[1]) / RATE)]
    [(start_s, end_s)] = found(with_words(audio))
    assert (start_s < 0.3, end_s > audio.duration_s - 0.5) == (True, True)


@pytest.mark.parametrize("between", ["silence", "noise", "loud noise", "hum", "a knock", "soft speech"])
def test_other_sounds_are_not_clear_speech(tmp_path: Path, between: str) -> None:
    knock = silence(5)
    knock[2 * RATE : 2 * RATE + RATE // 4] = noise(0.25, 0.3)
    pieces = {
        "silence": silence(5),
        "noise": noise(5, 0.003),
        "loud noise": noise(5, 0.1),
        "hum": np.concatenate([silence(1), hum(3), silence(1)]),
        "a knock": knock,
        "soft speech": 0.02 * CLIPS[1],
    }
    first_s, between_s = len(CLIPS[0]) / RATE, len(pieces[between]) / RATE
    audio = recording(tmp_path, CLIPS[0], pieces[between], CLIPS[2])
    ends = (0.2, first_s - 0.2), (first_s + between_s + 0.2, audio.duration_s - 0.1)
    assert found(with_words(audio, *ends)) == []


@pytest.mark.parametrize("sound", [silence(5), noise(5, 1e-4), noise(5, 0.1), hum(5)], ids=["0", "soft", "loud", "hum"])
def test_recordings_without_speech(tmp_path: Path, sound: np.ndarray) -> None:
    assert found(with_words(recording(tmp_path, sound))) == []


@pytest.fixture(scope="module")
def transcriber() -> Transcriber:
    return Transcriber.load(MODELS / "tdt_demo" / "model.nemo", device="cpu", dtype="fp32")


def drop_words(transcriber: Transcriber, monkeypatch, begin_s: float, end_s: float) -> list[float]:
    """Make the model drop the words of a stretch. Returns a list that collects the begins of the decoded utterances."""
    original = transcriber._engine._read
    starts: list[float] = []

    def without(utterance: Utterance, hypothesis: Hypothesis) -> Hypothesis:
        starts.append(utterance.start_s)
        times = [utterance.start_s + 0.08 * frame for frame in hypothesis.token_frames]
        kept = [i for i, time_s in enumerate(times) if not begin_s - 0.5 <= time_s < end_s]
        lists = (hypothesis.token_ids, hypothesis.token_frames, hypothesis.token_durations, hypothesis.logprobs)
        return Hypothesis(*(tuple(values[i] for i in kept) for values in lists))

    def read(decoded):
        for batch, hypotheses in original(decoded):
            yield batch, [without(*pair) for pair in zip(batch.utterances, hypotheses, strict=True)]

    monkeypatch.setattr(transcriber._engine, "_read", read)
    return starts


def test_speech_without_words_is_a_gap(transcriber: Transcriber, tmp_path: Path, monkeypatch) -> None:
    audio = recording(tmp_path, CLIPS[0], silence(1), CLIPS[1], silence(1), CLIPS[2])
    begin_s = len(CLIPS[0]) / RATE + 1
    end_s = begin_s + len(CLIPS[1]) / RATE
    starts = drop_words(transcriber, monkeypatch, begin_s, end_s)
    [result] = transcriber.transcribe(audio.path)
    assert isinstance(result, Transcript)
    [gap] = result.gaps
    assert (gap.start_s, gap.end_s) == (pytest.approx(begin_s, abs=0.4), pytest.approx(end_s, abs=0.4))
    assert starts == [0.0] and len(result.text) > 20
    assert (transcriber.progress.gaps, transcriber.progress.gap_s) == (1, pytest.approx(gap.end_s - gap.start_s))


def test_a_search_does_not_wait_for_all_inputs(transcriber: Transcriber, tmp_path: Path, monkeypatch) -> None:
    audio = recording(tmp_path, CLIPS[0], silence(1), CLIPS[1], silence(1), CLIPS[2])
    begin_s = len(CLIPS[0]) / RATE + 1
    drop_words(transcriber, monkeypatch, begin_s, begin_s + len(CLIPS[1]) / RATE)
    has_result = Event()

    def inputs():
        yield audio.path
        assert has_result.wait(60), "the result waits for the next input"

    results = transcriber.transcribe(inputs())
    first = next(results)
    has_result.set()
    assert isinstance(first, Transcript) and len(first.gaps) == 1
    assert list(results) == []


def test_recording_with_a_pause_is_only_searched(transcriber: Transcriber, tmp_path: Path, monkeypatch) -> None:
    audio = recording(tmp_path, CLIPS[0], silence(3), CLIPS[1], silence(3))
    starts = drop_words(transcriber, monkeypatch, math.inf, math.inf)
    [result] = transcriber.transcribe(audio.path)
    assert isinstance(result, Transcript)
    assert (starts, result.gaps) == ([0.0], ())


def test_ordinary_recordings_are_not_opened_again(transcriber: Transcriber, monkeypatch) -> None:
    monkeypatch.setattr("fastscribe.segmentation.gap_search.find_clear_speech", lambda *_: pytest.fail("opened again"))
    results = list(transcriber.transcribe(sorted(AUDIO.glob("[01]*.flac"))))
    assert all(isinstance(result, Transcript) and result.gaps == () for result in results)


@pytest.mark.parametrize("error", [AudioError("a.wav", "it is gone"), SystemExit("the thread ends")])
def test_recording_that_vanishes_before_the_search(
    transcriber: Transcriber, tmp_path: Path, monkeypatch, error: BaseException
) -> None:
    """A missing file keeps its words, with the span as a gap; any other error is its failure."""
    audio = recording(tmp_path, CLIPS[0], silence(3))

    def vanish(*_):
        raise error

    monkeypatch.setattr("fastscribe.segmentation.gap_search.find_clear_speech", vanish)
    clip = str(next(AUDIO.glob("02*.flac")))
    results = {
        r.path if isinstance(r, Failure) else r.audio.path: r for r in transcriber.transcribe([audio.path, clip])
    }
    assert isinstance(results[clip], Transcript)
    result = results[audio.path]
    if isinstance(error, AudioError):
        assert isinstance(result, Transcript) and result.text
        assert [(gap.start_s, gap.end_s) for gap in result.gaps] == [(result.words[-1].end_s, result.audio.duration_s)]
    else:
        assert isinstance(result, Failure) and (result.stage, result.error_type) == ("load", "SystemExit")
