"""Calls with a speaker on each channel: each gives what it gives by itself, and leaked words are written once."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from fastscribe import Failure, Options, Transcriber, Transcript, Word
from fastscribe.errors import AudioError
from fastscribe.pipeline import batch_layout
from fastscribe.segmentation import gap_search
from fastscribe.speakers import dialogues
from fastscribe.speakers.dialogues import speakers_of
from fastscribe.types import Batch, Gap
from tests.cli.test_cli import rows
from tests.conftest import AUDIO, MODEL, RATE, waveform
from tests.helpers.processes import fastscribe, refused

CLIPS = [waveform(path) for path in sorted(AUDIO.glob("[01]*.flac"))[:5]]
TEXTS = [row["text"] for row in map(json.loads, (AUDIO.parent / "manifest.jsonl").read_text().splitlines())]
NAMES = ("agent", "customer")
OPTIONS = Options(speakers="channels", speaker_names=NAMES, max_utterance_s=8.0, threads=2)


def placed(*clips: tuple[float, np.ndarray], length_s: float = 24.0) -> np.ndarray:
    """Return a channel with clips at their times in seconds, over digital silence."""
    samples = np.zeros(round(length_s * RATE), np.int16)
    for begin_s, clip in clips:
        samples[round(begin_s * RATE) : round(begin_s * RATE) + len(clip)] += clip.astype(np.int16)
    return samples


AGENT = placed((0, CLIPS[0]), (12, CLIPS[2]))
CUSTOMER = placed((6, CLIPS[1]), (14, CLIPS[3]))


def written(path: Path, *channels: np.ndarray) -> str:
    soundfile.write(path, np.stack(channels, axis=1), RATE)
    return str(path)


def transcribed(transcriber: Transcriber, *inputs: str, **options: Any) -> list[Transcript | Failure]:
    transcriber._options = replace(OPTIONS, **options)
    return list(transcriber.transcribe(inputs, ordered=True))


def alone(transcriber: Transcriber, path: Path, channel: np.ndarray, **options: Any) -> Transcript:
    """Return what a channel gives as a recording of its own."""
    [result] = transcribed(transcriber, written(path, channel), speakers=None, speaker_names=None, **options)
    assert isinstance(result, Transcript)
    return result


def words_of(result: Transcript | Failure, speaker: str) -> list[Word]:
    assert isinstance(result, Transcript)
    return [_plain(word) for word in result.words if word.speaker == speaker]


def _plain(word: Word) -> Word:
    return replace(word, speaker=None, confidence=round(word.confidence, 3))  # sums differ in the last bits by batch


def said(words: Sequence[Word]) -> str:
    return " ".join(word.text for word in words)


@pytest.fixture(scope="module")
def transcriber() -> Transcriber:
    return Transcriber.load(MODEL, device="cpu", dtype="fp32", options=OPTIONS)


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("call") / "call.wav", AGENT, CUSTOMER)


@pytest.mark.parametrize("max_utterance_s", [8.0, 0.0])
def test_each_channel_gives_what_it_gives_alone(
    transcriber: Transcriber, call: str, tmp_path: Path, max_utterance_s: float
) -> None:
    [result] = transcribed(transcriber, call, max_utterance_s=max_utterance_s)
    assert isinstance(result, Transcript) and result.speakers == NAMES and result.audio.channel is None
    for name, channel in zip(NAMES, (AGENT, CUSTOMER), strict=True):
        expected = alone(transcriber, tmp_path / "mono.wav", channel, max_utterance_s=max_utterance_s)
        assert words_of(result, name) == list(map(_plain, expected.words)) and expected.words
    assert {segment.speaker for segment in result.segments} == set(NAMES)


def test_the_dialogue_is_in_order_on_the_recordings_clock(
    transcriber: Transcriber, call: str, monkeypatch: pytest.MonkeyPatch, pushed: list[Batch]
) -> None:
    """The model knows the clips by heart; two overlap. Channels are planned together, and read again for shared words only."""
    monkeypatch.setattr(dialogues, "frame_energy", lambda *_: pytest.fail("read again"))
    [result] = transcribed(transcriber, call, batch_size=4)
    assert isinstance(result, Transcript)
    [batch] = pushed
    assert len(batch.utterances) == 4 and {one.audio.channel for one in batch.utterances} == {0, 1}
    progress = transcriber.progress
    assert (progress.files, progress.audio_s, progress.planned_s, progress.done_s) == (1, 24.0, 24.0, 24.0)
    assert said(words_of(result, "agent")) == f"{TEXTS[0]} {TEXTS[2]}"
    assert said(words_of(result, "customer")) == f"{TEXTS[1]} {TEXTS[3]}"
    assert [segment.speaker for segment in result.segments[:3]] == ["agent", "customer", "agent"]
    assert result.text.startswith(f"{TEXTS[0]} {TEXTS[1]} ")
    starts = [segment.start_s for segment in result.segments]
    assert starts == sorted(starts) and [5.5 <= one < 7 for one in starts[:3]] == [False, True, False]


@pytest.mark.parametrize("leak_db", [-20, -10])
def test_leaked_words_are_written_once(transcriber: Transcriber, tmp_path: Path, leak_db: float) -> None:
    factor = 10 ** (leak_db / 20)
    agent = placed((0, CLIPS[0]), (12, CLIPS[2]), (6, factor * CLIPS[1]))
    customer = placed((6, CLIPS[1]), (0, factor * CLIPS[0]))
    written(tmp_path / "mono.wav", customer)
    assert TEXTS[0] in alone(transcriber, tmp_path / "mono.wav", customer).text  # the model understands what leaks
    [result] = transcribed(transcriber, written(tmp_path / "leak.wav", agent, customer))
    assert said(words_of(result, "agent")) == f"{TEXTS[0]} {TEXTS[2]}"
    assert said(words_of(result, "customer")) == TEXTS[1]
    assert isinstance(result, Transcript) and result.text == " ".join(TEXTS[:3])


def test_a_recording_that_vanishes_before_it_is_read_again_fails(
    transcriber: Transcriber, tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(*_: object) -> None:
        raise AudioError("leak.wav", "it is gone")

    monkeypatch.setattr(dialogues, "frame_energy", vanish)
    leak = written(tmp_path / "leak.wav", placed((0, CLIPS[0])), placed((0, 0.1 * CLIPS[0])))
    failed, good = transcribed(transcriber, leak, call)
    assert isinstance(failed, Failure) and (failed.stage, failed.message) == ("load", "it is gone")
    assert isinstance(good, Transcript)


def test_copies_and_mono_have_one_speaker(transcriber: Transcriber, tmp_path: Path) -> None:
    copy, mono = written(tmp_path / "copy.wav", AGENT, AGENT), written(tmp_path / "mono.wav", AGENT)
    results = transcribed(transcriber, copy, mono)
    expected = alone(transcriber, tmp_path / "a.wav", AGENT)
    for result in results:
        assert isinstance(result, Transcript) and result.speakers == ("channel 1",)
        assert words_of(result, "channel 1") == list(map(_plain, expected.words)) and result.text == expected.text


def test_a_silent_channel_is_a_speaker_without_words(transcriber: Transcriber, tmp_path: Path) -> None:
    half = written(tmp_path / "half.wav", placed(), AGENT)
    both = written(tmp_path / "none.wav", placed(), placed())
    result, empty = transcribed(transcriber, half, both)
    assert isinstance(result, Transcript) and result.speakers == NAMES
    assert words_of(result, "agent") == [] and said(words_of(result, "customer")) == f"{TEXTS[0]} {TEXTS[2]}"
    assert isinstance(empty, Transcript) and (empty.text, empty.speakers) == ("", ("channel 1",))


def test_names_of_channels() -> None:
    assert speakers_of([0, 1, 2], None) == ("channel 1", "channel 2", "channel 3")
    assert speakers_of([0, 1, 2], ("a", "b")) == ("a", "b", "channel 3")
    assert speakers_of([0, 2], ("a", "b", "c")) == ("a", "c")  # the second channel is a copy
    assert speakers_of([0], ("a", "b")) == ("channel 1",)  # it has both
    assert speakers_of([0], ("a",)) == ("a",)


def test_more_names_than_channels_fail_a_recording(transcriber: Transcriber, call: str, tmp_path: Path) -> None:
    mono = written(tmp_path / "mono.wav", AGENT)
    failed, good = transcribed(transcriber, call, mono, speaker_names=("a", "b", "c"))
    assert isinstance(failed, Failure)
    assert (failed.stage, failed.message) == ("split", "has 2 channels, but there are 3 names of speakers")
    assert failed.may_pass  # names are no setting, so a run with fewer tries it again
    assert isinstance(good, Transcript)


def test_a_failed_channel_fails_its_recording_alone(
    transcriber: Transcriber, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_into, bad = batch_layout.read_into, written(tmp_path / "bad.wav", AGENT, CUSTOMER)

    def fails(row_S, utterance, *options):
        if utterance.audio.path == bad and utterance.audio.channel == 1:
            raise AudioError(bad, "the disk is gone")
        return read_into(row_S, utterance, *options)

    monkeypatch.setattr(batch_layout, "read_into", fails)
    for batch_size in (1, 8):
        failed, good = transcribed(transcriber, bad, call, batch_size=batch_size)
        assert isinstance(failed, Failure) and (failed.stage, failed.message) == ("load", "the disk is gone")
        assert isinstance(good, Transcript) and good.speakers == NAMES
        assert transcriber.progress.failed == 1 and transcriber.progress.done_s == 48.0


def test_gaps_of_a_channel(transcriber: Transcriber, tmp_path: Path) -> None:
    """The model writes nothing for a reversed clip among others."""
    reversed_clip = (0.75 * CLIPS[1])[::-1]
    pause = np.zeros(RATE, np.int16)
    gapped = np.concatenate([CLIPS[0], pause, reversed_clip.astype(np.int16), pause, CLIPS[2]])
    other = placed((0.5, CLIPS[3]), length_s=len(gapped) / RATE)
    expected = alone(transcriber, tmp_path / "mono.wav", gapped, max_utterance_s=40.0)
    [result] = transcribed(transcriber, written(tmp_path / "a.wav", other, gapped), max_utterance_s=40.0)
    assert isinstance(result, Transcript) and words_of(result, "customer") == list(map(_plain, expected.words))
    assert result.gaps == tuple(gap._replace(speaker="customer") for gap in expected.gaps) != ()


def test_leaked_speech_without_words_is_no_gap(
    transcriber: Transcriber, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each channel is said to have speech without words in all of its first six seconds."""
    monkeypatch.setattr(gap_search, "find_clear_speech", lambda transcript, spans, surroundings: [Gap(0.0, 5.0)])
    agent = placed((0, CLIPS[0]), (12, CLIPS[2]))
    customer = placed((0, 0.1 * CLIPS[0][::-1]), (8, CLIPS[1]))
    [result] = transcribed(transcriber, written(tmp_path / "a.wav", agent, customer))
    assert isinstance(result, Transcript)
    assert [(gap.start_s, gap.speaker) for gap in result.gaps] == [(0.0, "agent")]


@pytest.fixture
def folder(tmp_path: Path, call: str) -> Iterator[Path]:
    made = tmp_path / "in"
    made.mkdir()
    (made / "call.wav").write_bytes(Path(call).read_bytes())
    written(made / "copy.wav", AGENT, AGENT)
    written(made / "mono.wav", AGENT)
    return made


def test_the_command_line_and_resume(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = ("transcribe", folder, "-m", MODEL, "-o", out, "--max-utterance-s", "8")
    speakers = ("--speakers", "channels", "--speaker-names", "agent, customer")
    done = fastscribe(*given, *speakers, "-f", "jsonl,txt,rttm")
    assert done.returncode == 0, done.stderr
    assert "1 recording has one channel, so it has one speaker" in done.stderr
    assert "1 recording has the same sound in all channels, so it has one speaker" in done.stderr
    found = {Path(row["audio_filepath"]).name: row for row in rows((out / "transcripts.jsonl").read_text())}
    assert found["call.wav"]["speaker_channels"] == {"agent": 0, "customer": 1}
    assert found["copy.wav"]["speaker_channels"] == {"channel 1": 0}
    assert found["call.wav"]["speakers"] == list(NAMES) and found["mono.wav"]["speakers"] == ["channel 1"]
    assert {word["speaker"] for word in found["call.wav"]["words"]} == set(NAMES)
    lines = (out / "call.txt").read_text().split("\n\n")
    assert [line.strip() for line in lines[:2]] == [f"agent: {TEXTS[0]}", f"customer: {TEXTS[1]}"]
    end = f"{found['call.wav']['segments'][0]['end']:.3f}"
    rttm = (out / "call.rttm").read_text().splitlines()
    assert rttm[0] == f"SPEAKER call.wav 1 0.000 {end} <NA> <NA> agent <NA> <NA>" and len(rttm) > 3
    again = fastscribe(*given, *speakers, "-f", "jsonl,srt")
    assert again.returncode == 0 and "all 3 inputs are done: there is nothing to do" in again.stderr
    assert "agent: At Rice Stadium" in (out / "call.srt").read_text()
    assert "--speaker" in refused(*given)


def test_other_names_need_no_decoding(folder: Path, tmp_path: Path) -> None:
    """Files get them in a later run or export, and later files too, until others are given. Rows keep those of their run."""
    out, names = tmp_path / "out", tmp_path / "names.txt"
    names.write_text("customer\tEva\nin/call.wav\tagent\tKarl\n")
    given = ("transcribe", folder, "-m", MODEL, "-o", out, "--max-utterance-s", "8", "--speakers", "channels")

    def speakers(folder: Path, name: str, format: str) -> list[str]:
        """Return who speaks in a recording, by its text."""
        (path,) = folder.rglob(f"{name}.{format}")
        return sorted(set(re.findall(r"^(?:\[.*\] )?\**(\w+(?: [12])?)\**: ", path.read_text(), re.MULTILINE)))

    def export(format: str, *more: Any) -> tuple[Any, ...]:
        return "export", out, "-f", format, *more

    elsewhere, joined = tmp_path / "elsewhere", tmp_path / "joined"
    other = f"{out}: {{0}}: files with other names of speakers: fastscribe export {out} -f {{0}} makes them anew"
    inherited = f"{elsewhere}: its files get the names of speakers that {out} was given"
    for command, expected, lines in (
        ((*given, "--speaker-names", "agent,customer", "-f", "txt"), ["agent", "customer"], []),
        ((*given, "--speaker-names", "Anna,Berta", "-f", "txt"), ["Anna", "Berta"], []),
        ((*given, "-f", "txt,md"), ["Anna", "Berta"], []),
        (export("srt"), ["Anna", "Berta"], []),
        (export("jsonl", "-o", elsewhere), [], [inherited]),
        (("export", elsewhere, "-f", "md"), ["Anna", "Berta"], []),
        (
            ("export", out, elsewhere, "-f", "md", "-o", joined),
            ["agent", "customer"],
            [f"{out}: the names of speakers that it was given are left out, as several results are joined"],
        ),
        (export("txt", "--speaker-names", names), ["Eva", "Karl"], [other.format("srt,md")]),
        ((*given, "--speaker-names", names, "-f", "txt"), ["Eva", "Karl"], [other.format("srt,md")]),
        (export("txt,md"), ["Eva", "Karl"], [other.format("srt")]),
        (
            export("txt,srt", "--speaker-names", "none"),
            ["agent", "customer"],
            [
                other.format("md"),
                "--speaker-names none: speakers are called as in the rows: agent, channel 1, customer",
            ],
        ),
        (export("txt,md"), ["agent", "customer"], []),
    ):
        done = fastscribe(*command)
        assert done.returncode == 0, done.stderr
        said = [
            one.removeprefix("fastscribe: ") for one in done.stderr.splitlines() if re.search("names? |names$", one)
        ]
        assert [one for one in said if "made files" not in one] == lines, command
        place = next(Path(one) for one in (joined, elsewhere, out) if one in command)
        formats = str(command[command.index("-f") + 1]).split(",")
        for format in (one for one in formats if one != "jsonl" and place != joined):
            assert [speakers(place, name, format) for name in ("call", "copy", "mono")] == [expected, [], []], command
    printed = fastscribe("export", out / "transcripts.jsonl", "-f", "txt").stdout
    assert "\tagent: " in printed and "Karl" not in printed
    shutil.copy(folder / "call.wav", folder / "new.wav")  # a new recording gets the names of the folder
    assert fastscribe(*export("txt", "--speaker-names", "Anna,Berta")).returncode == 0
    assert fastscribe(*given, "-f", "txt").returncode == 0
    assert speakers(out, "new", "txt") == ["Anna", "Berta"]
    assert "\tAnna: " in fastscribe("export", out / "transcripts.jsonl", "-f", "txt").stdout
    (folder / "new.wav").unlink()
    stored = rows((out / "transcripts.jsonl").read_text())
    found = {Path(row["audio_filepath"]).name: row["speakers"] for row in stored}
    assert len(stored) == 4 and found["call.wav"] == list(NAMES) and found["new.wav"] == ["channel 1", "channel 2"]
    # Names of one recording stay until it gets others, or none, and so do those for all.
    for named, expected in (
        ("call.wav\tagent\tKarl", ["Berta", "Karl"]),
        ("new.wav\tchannel 1\tOtto", ["Berta", "Karl"]),
        ("customer: Eva", ["Eva", "Karl"]),
        ("in/call.wav\tcustomer\tIda", ["Ida", "agent"]),
    ):
        names.write_text(f"{named}\n")
        assert fastscribe(*export("txt", "--speaker-names", names)).returncode == 0
        assert speakers(out, "call", "txt") == expected
    assert "; their txt had other names of speakers" in fastscribe(*given, "-f", "txt", "--speaker-names", "A,B").stderr


def test_formats_of_a_folder_are_named_where_none_is_given(folder: Path, tmp_path: Path) -> None:
    """Names that are too many fail a recording until a run has fewer."""
    out, call, mono = tmp_path / "out", folder / "call.wav", folder / "mono.wav"
    given = ("-m", MODEL, "-o", out, "--speakers", "channels", "--speaker-names")
    failed = fastscribe("transcribe", call, *given, "Anna,Berta,Carl", "-f", "srt,txt")
    assert failed.returncode == 1 and "there are 3 names of speakers" in failed.stderr
    done = fastscribe("transcribe", call, *given, "Anna,Berta", "-f", "srt,txt")
    assert done.returncode == 0 and (out / "call.txt").exists() and "earlier" not in done.stderr
    error = refused("export", out, "--speaker-names", "Eva,Karl")
    assert "nothing to do: give --format; the folder has srt, txt: -f srt,txt" in error
    rows_alone = fastscribe("transcribe", call, mono, *given, "Anna,Berta", "-f", "jsonl")
    assert rows_alone.returncode == 0 and not (out / "mono.txt").exists() and "the formats" not in rows_alone.stderr
    line = f"{out}: the formats are those of earlier results: srt, txt (-f jsonl: rows alone)\n"
    assert line in fastscribe("transcribe", call, mono, *given, "Anna,Berta", "--dry-run").stderr
    assert not (out / "mono.txt").exists()
    shutil.copy(mono, new := tmp_path / "new.wav")
    assert line in fastscribe("transcribe", call, mono, new, *given, "Anna,Berta").stderr
    assert {path.name for path in out.glob("*.txt")} == {"call.txt", "mono.txt", "new.txt"}
    assert line not in fastscribe("transcribe", call, mono, new, *given, "Anna,Berta").stderr  # there is nothing to do


def test_names_of_nobody_are_said(folder: Path, tmp_path: Path) -> None:
    """All results of a folder count, those of earlier runs too. The line leaves out names that have a speaker."""
    out, names = tmp_path / "out", tmp_path / "names.txt"
    names.write_text("channel 2\tEva\nChannel 1\tKarl\nmono.wav\tchannel 2\tIda\nelse.wav\tchannel 1\tOtto\n")
    given = ("transcribe", folder, "-m", MODEL, "-o", out, "--max-utterance-s", "8", "--speakers", "channels")
    start = "--speaker-names: no speaker is found for"
    there = "the labels in the results are channel 1, channel 2"
    of_map = f"{start} Channel 1, mono.wav: channel 2, else.wav: channel 1; {there}"
    of_list = f"{start} Cleo; {there}"
    export = ("export", out, "-f", "txt", "--speaker-names")
    for command, line in (
        ((*given, "-f", "txt", "--speaker-names", names), of_map),
        ((*given, "-f", "txt", "--speaker-names", names), of_map),
        ((*export, names), of_map),
        ((*export, "Anna,Berta"), None),
        ((*export, "Anna,Berta,Cleo"), of_list),
        ((*export, "Anna,Berta,Cleo", "-q", "-o", tmp_path / "elsewhere"), of_list),
        (("export", out / "transcripts.jsonl", "-f", "jsonl", "--speaker-names", names), of_map),
    ):
        done = fastscribe(*command)
        assert done.returncode == 0, done.stderr
        said = [one for one in done.stderr.splitlines() if "--speaker-names" in one]
        assert said == ([f"fastscribe: {line}"] if line else []), command
    (folder / "broken.wav").write_bytes(b"RIFF")  # a recording that fails may have the missing speaker
    for _ in range(2):
        done = fastscribe(*given, "-f", "txt", "--speaker-names", names)
        assert done.returncode and "no speaker is found" not in done.stderr
    (folder / "broken.wav").unlink()
    row = {"id": "a", "audio_filepath": "a.wav", "text": "", "duration": 1.0, "words": [], "segments": []}
    (out / "plain.jsonl").write_text(json.dumps(row) + "\n")
    done = fastscribe("export", out / "plain.jsonl", "-f", "txt", "--speaker-names", "Anna,Berta")
    assert f"{start} Anna, Berta; no result has speakers" in done.stderr and done.returncode == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--speaker-names", "a,b"), "--speaker-names needs --speakers"),
        (("--speakers", "channels", "--channel", "0"), "--channel and --speakers exclude each other"),
        (("--speakers", "channels", "--speaker-names", "a,a"), "--speaker-names a,a: names a twice"),
        (("--speakers", "channels", "--speaker-names", "a,"), "a name is empty"),
        (("--speakers", "channels", "--speaker-names", "channel 1=Host"), "in the order of the speakers, without ="),
        (
            ("--speakers", "channels", "--speaker-names", "channel 1: A, channel 2: B"),
            "a file with lines LABEL<TAB>NAME",
        ),
        (("--speakers", "channels", "--speaker-names", "channel 2"), "is the name of a channel without one"),
        (("--speakers", "channels", "--speaker-names", __file__), "test_dialogues.py: line 3: not LABEL<TAB>NAME or"),
        (("--speakers", "voices"), "voices: no such file or folder"),
    ],
    ids=["names-alone", "channel", "twice", "empty", "by label", "by label, colons", "default", "no map", "other"],
)
def test_options_that_do_not_fit(options: tuple[str, ...], problem: str, call: str) -> None:
    assert problem in refused("transcribe", call, *options)
