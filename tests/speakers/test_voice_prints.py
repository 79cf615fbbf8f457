"""--voices MODEL: prints of speakers are those of the model on their stretches, whoever says who speaks when."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from fastscribe import Failure, Options, Transcriber, Transcript
from fastscribe.errors import CheckpointError, UsageError
from fastscribe.results.formats.writers import to_jsonl
from fastscribe.results.stored import NotAResult, stored_voices, to_result
from fastscribe.speakers import voice_prints
from fastscribe.speakers.side_model import VoicePrinter
from fastscribe.speakers.voice_prints import VoicePrints, alone, choose_stretches, turns_of_words
from fastscribe.types import AudioInfo, Batch, Turn
from tests.conftest import AUDIO, MODEL, RATE, waveform
from tests.helpers import sortformer, voices
from tests.helpers.processes import fastscribe, refused
from tests.speakers.test_voice_model import vectors

CLIPS = [waveform(path) for path in sorted(AUDIO.glob("[01]*.flac"))[:4]]
ROUNDING = 1e-3  # rows have 16-bit floats


@pytest.fixture(scope="module")
def voice_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return voices.write_nemo(tmp_path_factory.mktemp("voices") / "titanet.nemo", voices.config("titanet"))


def transcribed(inputs: Sequence[Any], model: Path, **options: Any) -> list[Transcript | Failure]:
    chosen = Options(voices=str(model), threads=2, **options)
    with Transcriber.load(MODEL, "cpu", "fp32", chosen) as transcriber:
        return list(transcriber.transcribe(inputs, ordered=True))


def expected_print(model: Path, samples: np.ndarray, spans: Sequence[tuple[float, float]]) -> np.ndarray:
    """Return the print of a speaker's stretches, each by itself, which begin at frames of 20 ms."""
    total = np.zeros(24)
    for begin_s, end_s in choose_stretches(spans):
        stretch = samples[round(begin_s * RATE) // 320 * 320 : round(end_s * RATE)]
        [vector] = vectors(model, [stretch])
        total += vector / np.linalg.norm(vector) * len(stretch) / RATE
    return np.asarray(total / np.linalg.norm(total))


def write_turns(path: Path, name: str, lengths: Sequence[int], speakers: Sequence[str]) -> None:
    ends = np.cumsum(lengths) / RATE
    path.write_text(
        "".join(
            f"SPEAKER {name} 1 {end - length / RATE:.3f} {length / RATE:.3f} <NA> <NA> {speaker} <NA> <NA>\n"
            for end, length, speaker in zip(ends, lengths, speakers, strict=True)
        )
    )


def test_prints_by_turns(voice_model: Path, tmp_path: Path) -> None:
    turns = tmp_path / "turns"
    turns.mkdir()
    files = []
    for number, clips in enumerate([(0, 1, 0), (2, 3)]):
        samples = np.concatenate([CLIPS[at] for at in clips])
        files.append(str(tmp_path / f"{number}.wav"))
        soundfile.write(files[-1], samples, RATE)
        lengths, speakers = [len(CLIPS[at]) for at in clips], [f"voice{at}" for at in clips]
        write_turns(turns / f"{number}.rttm", str(number), lengths, speakers)
    found = transcribed(files, voice_model, rttm=str(turns))
    for file, result in zip(files, found, strict=True):
        assert isinstance(result, Transcript), result
        samples, _ = soundfile.read(file, dtype="int16")
        assert [one.speaker for one in result.voices] == list(result.speakers)
        for voice in result.voices:
            spans = alone(result.turns)[voice.speaker]
            assert voice.speech_s == pytest.approx(sum(end_s - begin_s for begin_s, end_s in spans))
            assert (voice.start_s, voice.end_s) in spans
            assert voice.embedding_E is not None
            np.testing.assert_allclose(
                voice.embedding_E, expected_print(voice_model, samples, spans), atol=ROUNDING / 10
            )
        [stored] = [to_result(json.loads(to_jsonl(result)))]
        assert isinstance(stored, Transcript)
        assert to_jsonl(stored) == to_jsonl(result)
        for voice, again in zip(result.voices, stored.voices, strict=True):
            np.testing.assert_allclose(voice.embedding_E, again.embedding_E, atol=ROUNDING)


def test_prints_by_channel_are_of_the_channel(voice_model: Path, tmp_path: Path) -> None:
    size = sum(map(len, CLIPS[:2]))
    samples_SC = np.zeros((size, 2), np.int16)
    samples_SC[: len(CLIPS[0]), 0], samples_SC[len(CLIPS[0]) :, 1] = CLIPS[0], CLIPS[1]
    samples_SC[:, 0] += np.random.RandomState(0).randint(-40, 40, size).astype(np.int16)  # is not in the other channel
    path = tmp_path / "call.wav"
    soundfile.write(path, samples_SC, RATE)
    [found] = transcribed([str(path)], voice_model, speakers="channels", speaker_names=("Ann", "Bob"))
    assert isinstance(found, Transcript)
    assert [one.speaker for one in found.voices] == ["Ann", "Bob"]
    spans = alone(turns_of_words(found))
    for channel, voice in enumerate(found.voices):
        assert voice.embedding_E is not None
        expected = expected_print(voice_model, samples_SC[:, channel], spans[voice.speaker])
        np.testing.assert_allclose(voice.embedding_E, expected, atol=ROUNDING / 10)


def test_prints_by_a_speaker_model_in_full_batches(
    voice_model: Path, tmp_path: Path, monkeypatch: Any, pushed: list[Batch]
) -> None:
    """The stretches of many recordings are one batch; too little speech makes no print."""
    speakers = sortformer.write_nemo(tmp_path / "v1.nemo", sortformer.config("v1"))
    monkeypatch.setattr(voice_prints, "MIN_STRETCH_S", 0.2)  # random weights make short turns
    monkeypatch.setattr(voice_prints, "MIN_SPEECH_S", 0.5)
    long = np.concatenate(CLIPS)
    inputs = [(long, RATE), (long[::-1].copy(), RATE), (CLIPS[0][:8000], RATE), (np.zeros(RATE, np.int16), RATE)]
    found = transcribed(inputs, voice_model, speakers=str(speakers))
    assert any(len({one.audio.index for one in batch.utterances}) > 1 for batch in pushed if batch.purpose == "voices")
    for samples, result in zip(inputs, found, strict=True):
        assert isinstance(result, Transcript), result
        assert len(result.voices) == len(result.speakers)
        spans = alone(result.turns)
        for voice in result.voices:
            has_speech = bool(choose_stretches(spans.get(voice.speaker, [])))
            assert (voice.embedding_E is not None) == has_speech
            if has_speech:
                expected = expected_print(voice_model, samples[0], spans[voice.speaker])
                np.testing.assert_allclose(voice.embedding_E, expected, atol=ROUNDING / 10)
    assert any(voice.embedding_E is not None for voice in found[0].voices)  # type: ignore[union-attr]


def test_long_recordings_are_not_kept_for_a_full_batch() -> None:
    config: Any = SimpleNamespace(frame_s=0.5)
    prints = VoicePrints(config, None)
    for index in range(3):
        audio = AudioInfo("a", "a", RATE, 1, 3600 * RATE, index=index)
        transcript = Transcript(audio, "", (), (), speakers=("a",), turns=(Turn(0.0, 5.0, "a"),))
        assert prints.begin(transcript, audio) is None
        is_enough = index == 2
        assert bool(prints.take(200.0, 2.5 * 3600)) == is_enough
    assert not prints.take()


def test_a_voice_that_cannot_be_heard_costs_its_print_alone(
    voice_model: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    read = VoicePrinter.read

    def broken(printer: VoicePrinter, packed: Any, frames: Any) -> Any:
        packed[0, 0, 0] = np.nan  # of the longest stretch
        return read(printer, packed, frames)

    monkeypatch.setattr(VoicePrinter, "read", broken)
    files = [str(tmp_path / f"{number}.wav") for number in range(2)]
    (tmp_path / "turns.rttm").write_text("")
    for number, file in enumerate(files):
        soundfile.write(file, CLIPS[number][: (5 - number) * RATE], RATE)
        with (tmp_path / "turns.rttm").open("a") as lines:
            for begin_s in (0.0, 2.0):
                speaker = f"{begin_s:.0f}"
                lines.write(f"SPEAKER {number} 1 {begin_s} {3.2 - number} <NA> <NA> {speaker} <NA> <NA>\n")
    monkeypatch.setattr(voice_prints, "MIN_SPEECH_S", 1.0)
    options = Options(voices=str(voice_model), rttm=str(tmp_path / "turns.rttm"), threads=1)
    transcriber = Transcriber.load(MODEL, "cpu", "fp32", options)
    first, second = transcriber.transcribe(files, ordered=True)
    assert isinstance(first, Transcript) and isinstance(second, Transcript) and first.words
    assert sum(one.embedding_E is None for one in first.voices) == 1  # of the longest stretch
    assert all(one.embedding_E is not None for one in second.voices)
    [line] = transcriber.progress.lines
    assert line.startswith(f"--voices: 1 speaker has no print, because a stretch could not be heard: {files[0]}, ")
    assert line.endswith("the voice model's output holds NaN or infinite numbers")


def one_speaker(folder: Path, voice_model: Path) -> tuple[Path, Transcriber]:
    """Return a recording, and what transcribes it with a print of its one speaker."""
    file, turns = folder / "a.wav", folder / "turns.rttm"
    soundfile.write(file, CLIPS[0], RATE)
    turns.write_text("SPEAKER a 1 0 4 <NA> <NA> A <NA> <NA>\n")
    options = Options(voices=str(voice_model), rttm=str(turns), threads=1)
    return file, Transcriber.load(MODEL, "cpu", "fp32", options)


def test_voices_that_run_out_of_memory_leave_the_budget_of_words(
    voice_model: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    encode, failed = VoicePrinter.encode, []

    def scarce(printer: VoicePrinter, features: Any) -> Any:
        if not failed:
            failed.append(features)
            raise torch.OutOfMemoryError("no")
        return encode(printer, features)

    monkeypatch.setattr(VoicePrinter, "encode", scarce)
    file, transcriber = one_speaker(tmp_path, voice_model)
    frames = transcriber._budget().frames
    [found] = transcriber.transcribe([str(file)])
    assert isinstance(found, Transcript) and failed and transcriber._budget().frames == frames
    assert isinstance(found.voices, tuple)


def test_a_recording_that_is_gone_when_its_voices_are_heard_keeps_its_words(
    voice_model: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    file, transcriber = one_speaker(tmp_path, voice_model)
    chosen = voice_prints.choose_stretches

    def gone(spans: Any) -> Any:
        file.unlink(missing_ok=True)
        return chosen(spans)

    monkeypatch.setattr(voice_prints, "choose_stretches", gone)
    monkeypatch.setattr("fastscribe.pipeline.run.close_held", lambda: None)
    [found] = transcriber.transcribe([str(file)])
    assert isinstance(found, Transcript) and found.words and found.voices[0].embedding_E is None
    assert len(transcriber.progress.lines) == 1


def test_the_command_finds_persons_and_keeps_names(voice_model: Path, tmp_path: Path) -> None:
    turns, out = tmp_path / "turns.rttm", tmp_path / "out"
    files = [tmp_path / f"{number}.wav" for number in range(3)]
    write = turns.open("w")
    for number, file in enumerate(files):
        samples = CLIPS[number // 2][: 4 * RATE]  # the first two are one voice
        soundfile.write(file, samples, RATE)
        write.write(f"SPEAKER {number} 1 0 {len(samples) / RATE} <NA> <NA> A <NA> <NA>\n")
    write.close()
    command = ["transcribe", "-m", str(MODEL), "--dtype", "fp32", "--rttm", str(turns), "-o", str(out)]
    command += ["--voices", str(voice_model)]
    first = fastscribe(*command, *map(str, files[:2]))
    assert first.returncode == 0, first.stderr
    assert "1 person (0 named) of 2 speakers in 2 recordings" in first.stderr
    stored = json.loads((out / "speakers.json").read_text())
    stored["persons"][0]["name"] = "Ann"
    stored["threshold"] = 0.99999
    (out / "speakers.json").write_text(json.dumps(stored))
    again = fastscribe(*command, *map(str, files))
    assert again.returncode == 0, again.stderr
    assert "2 persons (1 named) of 3 speakers in 3 recordings" in again.stderr
    ann, other = json.loads((out / "speakers.json").read_text())["persons"]
    assert (ann["name"], other["name"], other["id"]) == ("Ann", None, "person 2")
    assert [one["recording"] for one in other["speakers"]] == [str(files[2])]
    assert "--voices" in refused(*command[:-2], str(files[0]))
    (out / "speakers.json").write_text("mine")
    kept = fastscribe(*command, *map(str, files))
    assert kept.returncode == 1
    assert "no persons were found" in kept.stderr
    assert (out / "speakers.json").read_text() == "mine"


def test_a_damaged_stored_print_is_no_result() -> None:
    voice = {"speaker": "a", "speech": 4.0, "start": 0.0, "end": 4.0}
    assert stored_voices({"voices": [voice]})[0].embedding_E is None
    for damaged in ("AAA", "", "AAAA////", "AAAA", 7):
        with pytest.raises(NotAResult, match="not a voice"):
            stored_voices({"voices": [voice | {"embedding": damaged}]})


def test_voices_need_speakers_and_a_voice_model(voice_model: Path) -> None:
    with pytest.raises(UsageError, match="nothing says who speaks"):
        Options(voices="titanet.nemo")
    with pytest.raises(UsageError, match="speakers finds them too: leave one of the two out"):
        Options(speakers="model.nemo", rttm="all.rttm")
    with pytest.raises(CheckpointError, match="no voice model"):
        transcribed([], MODEL, speakers="channels")
    with pytest.raises(CheckpointError, match="it is for --voices, and --speakers needs one"):
        transcribed([], voice_model, speakers=str(voice_model))
