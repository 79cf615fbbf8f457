"""Speech without words is found, decoded again, marked or listed; other sounds are left alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import soundfile

from fastscribe import Failure, Options, Transcriber, Transcript
from fastscribe.audio.probe import probe
from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.config import DecoderName
from fastscribe.decode.families import DECODERS
from fastscribe.errors import AudioError
from fastscribe.pipeline.engine import Engine
from fastscribe.pipeline.local import LocalExecutor
from fastscribe.segmentation import gaps
from fastscribe.segmentation.gaps import (
    Surroundings,
    find_clear_speech,
    is_new_stretch,
    remaining_gaps,
)
from fastscribe.segmentation.loudness import frame_energy
from fastscribe.segmentation.spans import find_untranscribed_spans
from fastscribe.types import AudioInfo, Gap, Hypothesis, Segment, Source, Utterance, Word
from tests.cli.test_cli import FIRST, MODEL
from tests.conftest import AUDIO, MODELS, waveform
from tests.helpers.processes import fastscribe
from tests.helpers.schemas import check_schema

RATE = 16000
HEARD = Hypothesis((1,), (0,), (1,), (-0.1,))
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
        gaps,
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


def test_long_untranscribed_speech_is_split(tmp_path: Path) -> None:
    audio = recording(tmp_path, *CLIPS)
    spans = found(with_words(audio), max_utterance_s=8.0)
    assert len(spans) >= 3
    assert all(end_s - start_s <= 8.0 for start_s, end_s in spans)
    [(start_s, end_s)] = found(with_words(audio), max_utterance_s=0.0)  # never cut
    assert end_s - start_s > audio.duration_s - 1


def test_same_stretch_is_not_decoded_twice() -> None:
    audio = AudioInfo("a", "a", 1000, 1, 100_000)
    decoded = [Utterance(audio, 0, 10_000), Utterance(audio, 10_000, 30_000)]
    assert not is_new_stretch(Utterance(audio, 500, 9_400), decoded)
    assert is_new_stretch(Utterance(audio, 500, 5_000), decoded)
    assert is_new_stretch(Utterance(audio, 12_000, 20_000), decoded)


def test_gaps_are_the_utterances_without_words() -> None:
    audio = AudioInfo("a", "a", 1000, 1, 100_000)
    spans = [
        (50_000, 3_000, Hypothesis()),
        (10_000, 2_000, HEARD),
        (1_000, 2_000, Hypothesis()),
        (3_000, 500, Hypothesis()),
    ]
    decoded = [(Utterance(audio, start, length), hypothesis) for start, length, hypothesis in spans]
    assert remaining_gaps(decoded) == (Gap(1.0, 3.5), Gap(50.0, 53.0))


@pytest.fixture(scope="module")
def transcriber() -> Transcriber:
    options = Options(recover_gaps=True)
    return Transcriber.load(MODELS / "tdt_demo" / "model.nemo", device="cpu", dtype="fp32", options=options)


def drop_words(transcriber: Transcriber, monkeypatch, begin_s: float, end_s: float, always: bool) -> list[float]:
    """Make the model drop the words of a stretch, `always` or only in utterances that begin before it.

    Returns a list that collects the begins of the decoded utterances.
    """
    original = transcriber._engine._read
    starts: list[float] = []

    def without(utterance: Utterance, hypothesis: Hypothesis) -> Hypothesis:
        starts.append(utterance.start_s)
        if utterance.start_s > begin_s - 0.5 and not always:
            return hypothesis
        times = [utterance.start_s + 0.08 * frame for frame in hypothesis.token_frames]
        kept = [i for i, time_s in enumerate(times) if not begin_s - 0.5 <= time_s < end_s]
        lists = (hypothesis.token_ids, hypothesis.token_frames, hypothesis.token_durations, hypothesis.logprobs)
        return Hypothesis(*(tuple(values[i] for i in kept) for values in lists))

    def read(decoded):
        for batch, hypotheses in original(decoded):
            yield batch, [without(*pair) for pair in zip(batch.utterances, hypotheses, strict=True)]

    monkeypatch.setattr(transcriber._engine, "_read", read)
    return starts


@pytest.mark.parametrize("inputs", [1, 3])
def test_recovered_words_join_the_transcript(
    transcriber: Transcriber, tmp_path: Path, monkeypatch, inputs: int
) -> None:
    audio = recording(tmp_path, CLIPS[0], silence(1), CLIPS[1], silence(1), CLIPS[2])
    begin_s = len(CLIPS[0]) / RATE + 1
    whole = next(transcriber.transcribe(audio.path))
    assert isinstance(whole, Transcript) and whole.gaps == ()
    starts = drop_words(transcriber, monkeypatch, begin_s, begin_s + len(CLIPS[1]) / RATE, always=False)
    results = list(transcriber.transcribe([audio.path] * inputs))
    assert len(results) == inputs and len(starts) == 2 * inputs
    for result in results:
        assert isinstance(result, Transcript)
        assert (result.text, result.gaps) == (whole.text, ())
        assert [token.id for token in result.tokens] == [token.id for token in whole.tokens]
        assert [word.text for word in result.words] == whole.text.split()
        times_s = [word.start_s for word in result.words]
        assert times_s == sorted(times_s)
        np.testing.assert_allclose(times_s, [word.start_s for word in whole.words], atol=0.4)


def test_speech_without_words_twice_is_a_gap(transcriber: Transcriber, tmp_path: Path, monkeypatch) -> None:
    audio = recording(tmp_path, CLIPS[0], silence(1), CLIPS[1], silence(1), CLIPS[2])
    begin_s = len(CLIPS[0]) / RATE + 1
    end_s = begin_s + len(CLIPS[1]) / RATE
    starts = drop_words(transcriber, monkeypatch, begin_s, end_s, always=True)
    [result] = transcriber.transcribe(audio.path)
    assert isinstance(result, Transcript)
    [gap] = result.gaps
    assert (gap.start_s, gap.end_s) == (pytest.approx(begin_s, abs=0.4), pytest.approx(end_s, abs=0.4))
    assert len(starts) == 2 and starts[1] == gap.start_s
    assert (transcriber.progress.gaps, transcriber.progress.gap_s) == (1, pytest.approx(gap.end_s - gap.start_s))
    assert len(result.text) > 20


def test_recovered_words_are_marked_and_counted(transcriber: Transcriber, tmp_path: Path, monkeypatch) -> None:
    audio = recording(tmp_path, CLIPS[0], silence(1), CLIPS[1], silence(1), CLIPS[2])
    begin_s = len(CLIPS[0]) / RATE + 1
    [whole] = transcriber.transcribe(audio.path)
    drop_words(transcriber, monkeypatch, begin_s, begin_s + len(CLIPS[1]) / RATE, always=False)
    [result] = transcriber.transcribe(audio.path)
    progress = transcriber.progress
    monkeypatch.setattr(transcriber, "_recovers_gaps", False)
    [one_pass] = transcriber.transcribe(audio.path)
    assert isinstance(whole, Transcript) and isinstance(result, Transcript) and isinstance(one_pass, Transcript)
    recovered = [segment for segment in result.segments if segment.recovered]
    lost = [word.text for word in whole.words if begin_s - 0.5 <= word.start_s < begin_s + len(CLIPS[1]) / RATE]
    assert [word.text for segment in recovered for word in segment.words] == lost
    assert words_of(result, recovered=False) == list(one_pass.words) and words_of(one_pass, recovered=True) == []
    assert progress.recovered_words == len(lost) > 5
    assert progress.recovered_s == pytest.approx(sum(segment.end_s - segment.start_s for segment in recovered))
    transcriber.progress = progress
    transcriber.progress.not_written(result)
    assert (progress.recovered_words, progress.recovered_s) == (0, pytest.approx(0))


def words_of(transcript: Transcript, recovered: bool) -> list[Word]:
    return [word for segment in transcript.segments if segment.recovered == recovered for word in segment.words]


def test_without_recovery_gaps_are_only_listed(transcriber: Transcriber, tmp_path: Path, monkeypatch) -> None:
    audio = recording(tmp_path, CLIPS[0], silence(1), CLIPS[1], silence(1), CLIPS[2])
    begin_s = len(CLIPS[0]) / RATE + 1
    end_s = begin_s + len(CLIPS[1]) / RATE
    starts = drop_words(transcriber, monkeypatch, begin_s, end_s, always=False)
    monkeypatch.setattr(transcriber, "_recovers_gaps", False)
    [result] = transcriber.transcribe(audio.path)
    assert isinstance(result, Transcript)
    assert starts == [0.0]
    [gap] = result.gaps
    assert (gap.start_s, gap.end_s) == (pytest.approx(begin_s, abs=0.4), pytest.approx(end_s, abs=0.4))
    assert (transcriber.progress.gaps, transcriber.progress.recovered_words) == (1, 0)


@pytest.mark.parametrize("name", ["rnnt", "tdt", "ctc", "aed"])
def test_option_overrides_the_familys_default(transcriber: Transcriber, name: DecoderName) -> None:
    assert not DECODERS[name].recovers_gaps
    recognizer = replace(transcriber._recognizer, decoder_name=name)
    checkpoint = Checkpoint(MODELS, "nemo", transcriber._config, transcriber._tokenizer, {})
    chosen = [
        Transcriber(checkpoint, LocalExecutor(Engine(recognizer)), Options(recover_gaps=requested), 0.0)._recovers_gaps
        for requested in (None, True, False)
    ]
    assert chosen == [DECODERS[name].recovers_gaps, True, False]


def test_command_line_reports_recovered_words(tmp_path: Path) -> None:
    """The sample model writes nothing for a reversed clip among others, and some words for the clip alone."""
    audio = recording(tmp_path, CLIPS[0], silence(1), 0.75 * CLIPS[1][::-1], silence(1), CLIPS[2])
    made = {}
    for option in ("--recover-gaps", "--no-recover-gaps"):
        out, page = tmp_path / option, tmp_path / f"{option}.html"
        done = fastscribe("transcribe", audio.path, FIRST, "-m", MODEL, "-o", out, option, "-v", "--report-html", page)
        assert done.returncode == 0, done.stderr
        rows = map(json.loads, (out / "transcripts.jsonl").read_text(encoding="utf-8").splitlines())
        [row] = [row for row in rows if row["audio_filepath"] == audio.path]
        report = json.loads((out / "report.json").read_text(encoding="utf-8"))
        check_schema("result", [row])
        made[option] = row, report["recovered_words"], done.stderr, page.read_text(encoding="utf-8")
    (row, num_recovered, table, page_text), (one_pass, none, other_table, other_page) = made.values()
    recovered = [segment["text"] for segment in row["segments"] if segment.get("recovered") is True]
    assert num_recovered == len(" ".join(recovered).split()) > 3 and none == 0
    assert f"{num_recovered} words recovered" in table and "recovered" not in other_table
    assert f"at first: {num_recovered} words" in page_text and "at first:" not in other_page
    kept = [segment["text"] for segment in row["segments"] if "recovered" not in segment]
    assert " ".join(kept) == one_pass["text"] and "recovered" not in json.dumps(one_pass)
    assert row["gaps"] == [] and len(one_pass["gaps"]) == 1
    other = fastscribe("transcribe", audio.path, "-m", MODEL, "-o", tmp_path / "--recover-gaps", "--no-recover-gaps")
    assert other.returncode == 2 and "--recover-gaps" in other.stderr


def test_recovery_does_not_wait_for_all_inputs(transcriber: Transcriber, tmp_path: Path, monkeypatch) -> None:
    audio = recording(tmp_path, CLIPS[0], silence(1), CLIPS[1], silence(1), CLIPS[2])
    begin_s = len(CLIPS[0]) / RATE + 1
    drop_words(transcriber, monkeypatch, begin_s, begin_s + len(CLIPS[1]) / RATE, always=True)
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
    starts = drop_words(transcriber, monkeypatch, math.inf, math.inf, always=True)
    [result] = transcriber.transcribe(audio.path)
    assert isinstance(result, Transcript)
    assert (starts, result.gaps) == ([0.0], ())


def test_ordinary_recordings_are_not_opened_again(transcriber: Transcriber, monkeypatch) -> None:
    monkeypatch.setattr("fastscribe.segmentation.gaps.find_clear_speech", lambda *_: pytest.fail("opened again"))
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

    monkeypatch.setattr("fastscribe.segmentation.gaps.find_clear_speech", vanish)
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


def test_failed_recovery_leaves_a_gap(transcriber: Transcriber, tmp_path: Path, monkeypatch) -> None:
    audio = recording(tmp_path, CLIPS[0], silence(1), CLIPS[1], silence(1), CLIPS[2])
    begin_s = len(CLIPS[0]) / RATE + 1
    drop_words(transcriber, monkeypatch, begin_s, begin_s + len(CLIPS[1]) / RATE, always=True)
    original = transcriber._engine._encode

    def encode(batch):
        if any(utterance.start > 0 for utterance in batch.utterances):
            raise RuntimeError("no")
        return original(batch)

    monkeypatch.setattr(transcriber._engine, "_encode", encode)
    [result] = transcriber.transcribe(audio.path)
    assert isinstance(result, Transcript) and result.text
    [gap] = result.gaps
    assert begin_s - 0.5 < gap.start_s < gap.end_s < begin_s + len(CLIPS[1]) / RATE + 0.5
