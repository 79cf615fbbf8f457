"""--speakers MODEL: one pass finds words and speakers, with the words of a run without speakers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import soundfile

from fastscribe import Failure, Options, Transcriber, Transcript
from fastscribe.checkpoint.reader import read_for_run
from fastscribe.errors import OptionError
from fastscribe.pipeline import recognizer
from fastscribe.pipeline.interfaces import IDLE
from fastscribe.speakers import recordings, stage
from fastscribe.speakers.readers import read_speaker_model
from fastscribe.speakers.settings import parse_streaming
from fastscribe.speakers.turns import turns_of
from fastscribe.types import Batch
from tests.cli.test_cli import rows
from tests.conftest import AUDIO, MODEL, RATE, waveform
from tests.helpers import nemotron_diarization, sortformer
from tests.helpers.forked_workers import forked_workers
from tests.helpers.processes import fastscribe, refused
from tests.speakers.test_sortformer import probabilities

if TYPE_CHECKING:
    from fastscribe.audio.sound import OpenSound

CLIPS = sorted(AUDIO.glob("[01]*.flac"))[:5]
LONG = np.concatenate([waveform(path) for path in CLIPS]).astype(np.int16)
EDGES = [AUDIO / name for name in ("e02_0p3s.flac", "e05_silence_2s.flac", "e08_stereo_44k1.flac")]


@pytest.fixture(scope="module")
def speaker_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("speakers")
    found = {name: sortformer.write_nemo(folder / f"{name}.nemo", sortformer.config(name)) for name in ("v1", "v2")}
    return found | {"nemotron": nemotron_diarization.write_folder(folder / "n", nemotron_diarization.config("cache"))}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return recordings of all kinds: the first is cut into utterances."""
    long = tmp_path_factory.mktemp("audio") / "long.wav"
    soundfile.write(long, LONG, RATE)
    return [str(long), *map(str, CLIPS[:3]), *map(str, EDGES)]


def transcribed(inputs: Sequence[Any], model: Path | None, **options: Any) -> list[Transcript | Failure]:
    devices = options.pop("devices", None)
    chosen = Options(speakers=None if model is None else str(model), max_utterance_s=8.0, threads=2, **options)
    device = {"devices": devices} if devices else {"device": "cpu"}
    with (
        forked_workers() if devices else nullcontext(),
        Transcriber.load(MODEL, dtype="fp32", options=chosen, **device) as transcriber,
    ):
        return list(transcriber.transcribe(inputs, ordered=True))


def plain(result: Transcript | Failure) -> tuple[Any, ...]:
    """Return what a run without speakers has too; sums differ in the last bits by batch."""
    assert isinstance(result, Transcript), result
    words = [(word.text, round(word.start_s, 3), round(word.end_s, 3)) for word in result.words]
    return result.text, words, replace(result.audio, given_key=None), len(result.gaps)


@pytest.fixture(scope="module")
def without_speakers(inputs: list[str]) -> list[tuple[Any, ...]]:
    return list(map(plain, transcribed(inputs, None)))


# In a process of its own, test_chosen_settings_are_those_of_a_checkpoint_that_has_them.
@pytest.mark.parametrize(("name", "frame_s"), [("v1", 0.08), ("v2", 0.08), ("nemotron", 0.01)])
def test_words_are_those_of_a_run_without_speakers_and_turns_those_of_the_model(
    name: str,
    frame_s: float,
    speaker_models: dict[str, Path],
    inputs: list[str],
    without_speakers: list[tuple[Any, ...]],
) -> None:
    """The model sees the whole recording, also where its words are found in utterances."""
    found = transcribed(inputs, speaker_models[name])
    assert list(map(plain, found)) == without_speakers
    [expected_TN] = probabilities(speaker_models[name], [LONG])
    assert turns(found)[0] == turns_of(expected_TN, frame_s, len(LONG) / RATE) and len(turns(found)[0]) > 3
    for result in found:
        assert isinstance(result, Transcript)
        for one in (*result.words, *result.segments, *result.gaps):
            assert one.speaker in (result.speakers or (None,))
        assert all({word.speaker for word in one.words} == {one.speaker} for one in result.segments)
    assert sum(isinstance(one, Transcript) and len(one.speakers) > 1 for one in found) >= 3


def test_a_long_recording_is_seen_in_windows(tmp_path: Path, inputs: list[str]) -> None:
    """A model that learnt from 6 seconds sees windows of 6 seconds; its stitched speakers are one set of names."""
    settings = sortformer.config("v1")
    model = sortformer.write_nemo(tmp_path / "short.nemo", settings, settings | {"session_len_sec": 6})
    [found] = transcribed(inputs[:1], model)
    [whole_TN] = probabilities(model, [LONG])
    [first_TN] = probabilities(model, [LONG[: 6 * RATE]])
    assert isinstance(found, Transcript)
    early = [turn for turn in found.turns if turn.end_s < 4.9]  # the next window counts from 5 s on
    assert early == [turn for turn in turns_of(first_TN, 0.08, 6.0) if turn.end_s < 4.9]
    assert found.turns != turns_of(whole_TN, 0.08, len(LONG) / RATE)
    assert set(found.speakers) <= {f"speaker {number}" for number in range(1, 5)}


def test_the_file_is_read_once(speaker_models: dict[str, Path], inputs: list[str], monkeypatch: Any) -> None:
    from fastscribe.audio import read

    read_samples = 0
    inner = read._read_channels

    def counted(sound: OpenSound, samples_SC: Any, channel: int | None) -> int:
        nonlocal read_samples
        got = inner(sound, samples_SC, channel)
        read_samples += got if sound.format != "samples" else 0
        return got

    monkeypatch.setattr(read, "_read_channels", counted)
    transcribed(inputs[:1], speaker_models["v2"])
    assert read_samples == len(LONG)


def test_a_batch_of_the_speaker_model_holds_few_samples_beside_a_long_recording(
    speaker_models: dict[str, Path], monkeypatch: Any, pushed: list[Batch]
) -> None:
    """With a cache, long and short recordings cost the same; padded to the longest, they would not fit in memory."""
    monkeypatch.setattr(stage, "_MAX_HELD_BYTES", 2 * 30 * RATE * 4)  # of two windows, 30 seconds each
    results = transcribed([(LONG, RATE), *[(LONG[: 5 * RATE], RATE)] * 8], speaker_models["v2"])
    assert all(isinstance(one, Transcript) for one in results)
    batches = [[one.duration_s for one in batch.utterances] for batch in pushed if batch.purpose == "turns"]
    assert sum(map(len, batches)) == 9
    assert all(len(batch) == 1 or len(batch) * max(batch) <= 30 for batch in batches), batches
    assert max(map(len, batches)) > 1


@pytest.mark.parametrize(("chosen", "most"), [({}, 4), ({"batch_frames": 1}, 1), ({"batch_size": 2}, 2)], ids=str)
def test_recordings_share_a_pass_of_the_speaker_model(
    chosen: dict[str, int], most: int, speaker_models: dict[str, Path], monkeypatch: Any, pushed: list[Batch]
) -> None:
    """Also where a batch for the transcription takes one recording, unless the user has chosen its size."""
    monkeypatch.setattr(recognizer, "_LARGE_CPU_BATCH_FRAMES", 100)
    results = transcribed([(LONG[: 5 * RATE], RATE)] * 4, speaker_models["v2"], **chosen)
    assert all(isinstance(one, Transcript) for one in results)
    sizes = {
        purpose: [len(batch.utterances) for batch in pushed if batch.purpose == purpose]
        for purpose in ("turns", "words")
    }
    assert sizes["turns"] == [most] * (4 // most)
    assert max(sizes["words"]) == chosen.get("batch_size", 1)


def test_a_dry_run_reads_no_recording_as_a_whole(
    speaker_models: dict[str, Path], inputs: list[str], monkeypatch: Any
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(recordings.ByModel, "hold", refuse)
    options = Options(speakers=str(speaker_models["v2"]))
    with (
        Transcriber.load(MODEL, device="cpu", dtype="fp32", options=options) as transcriber,
        closing(transcriber._new_run()) as planned,
    ):
        planned_windows = [one for one in planned.windows(inputs, None, dry=True) if one is not IDLE]
        found = [item for window in planned_windows for item in window]
        batches = list(planned.plan([utterance for item in found for utterance in item]))
    assert len(found) == len(inputs)
    assert any(one.purpose == "turns" for batch in batches for one in batch)


def test_the_command_writes_speakers_and_resumes(speaker_models: dict[str, Path], tmp_path: Path) -> None:
    out, files = tmp_path / "out", [str(path) for path in CLIPS[:2]]
    command = ["transcribe", *files, "-m", str(MODEL), "-o", str(out), "-f", "jsonl,rttm,txt", "--dtype", "fp32"]
    first = fastscribe(
        *command, "--speakers", str(speaker_models["v2"]), "--speaker-streaming", "fifo_len=5, chunk_len=40"
    )
    assert first.returncode == 0, first.stderr
    stored = rows((out / "transcripts.jsonl").read_text())
    turns = {Path(row["audio_filepath"]).name: row["turns"] for row in stored}
    for path in CLIPS[:2]:
        [rttm] = out.glob(f"{path.stem}*.rttm")
        lines = [line.split() for line in rttm.read_text().splitlines()]
        assert [(float(line[3]), line[7]) for line in lines] == [
            (turn["start"], turn["speaker"].replace(" ", "_")) for turn in turns[path.name]
        ]
    command += ["--speakers", str(speaker_models["v2"])]
    again = fastscribe(*command, "--speaker-streaming", "chunk_len=40,fifo_len=5")  # the order does not count
    assert again.returncode == 0
    assert "nothing to do" in again.stderr
    for other in ([], ["--speaker-streaming", "chunk_len=41,fifo_len=5"]):
        assert '--speaker-streaming was "chunk_len=40,fifo_len=5"' in refused(*command, *other)
    # The turns of one run are the speakers of another.
    text = fastscribe("transcribe", *files, "-m", str(MODEL), "--rttm", str(out), "--dtype", "fp32", "-q")
    given = rows(text.stdout)
    assert [[word["word"] for word in row["words"]] for row in given] == [
        [word["word"] for word in row["words"]] for row in sorted(stored, key=lambda row: row["audio_filepath"])
    ]
    assert all(word["speaker"].startswith("speaker_") for row in given for word in row["words"])


STREAMING = {"chunk_len": 40, "chunk_right_context": 7, "fifo_len": 5, "spkcache_update_period": 31, "spkcache_len": 28}


def turns(results: Sequence[Transcript | Failure]) -> list[Any]:
    return [one.turns for one in results if isinstance(one, Transcript)]


def test_chosen_settings_are_those_of_a_checkpoint_that_has_them(
    speaker_models: dict[str, Path], inputs: list[str], without_speakers: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    """NeMo's probabilities are those of stored settings (tests/speakers/test_sortformer.py)."""
    base = sortformer.config("v2")
    stated = base | {"sortformer_modules": base["sortformer_modules"] | STREAMING}
    stored = sortformer.write_nemo(tmp_path / "stored.nemo", base, stated)
    wanted = turns(transcribed(inputs[:2], stored))
    given = dict(reversed(STREAMING.items()))
    assert turns(transcribed(inputs[:2], speaker_models["v2"], speaker_streaming=given)) == wanted
    elsewhere = transcribed(inputs[:2], speaker_models["v2"], speaker_streaming=given, devices="cpu:1")
    assert turns(elsewhere) == wanted
    assert list(map(plain, elsewhere)) == without_speakers[:2]
    assert turns(transcribed(inputs[:2], speaker_models["v2"])) != wanted


def test_settings_of_another_project_have_the_same_names(speaker_models: dict[str, Path], tmp_path: Path) -> None:
    chosen = (
        ("chunk_len", "chunk_length", 24),
        ("chunk_left_context", "chunk_left_context", 2),
        ("chunk_right_context", "chunk_right_context", 3),
        ("fifo_len", "fifo_length", 6),
        ("spkcache_update_period", "speaker_cache_update_period", 9),
    )
    changed = nemotron_diarization.config("cache") | {theirs: number for _, theirs, number in chosen}
    wanted = read_speaker_model(nemotron_diarization.write_folder(tmp_path / "n", changed)).config
    names = {ours: number for ours, _, number in chosen}
    options = Options(speakers=str(speaker_models["nemotron"]), speaker_streaming=names)
    found = read_for_run(MODEL, options).others["turns"]
    assert found is not None and found.config == wanted
    assert wanted.num_seen(10**7) == found.config.num_seen(10**7)  # by which batches are planned


def test_inspect_shows_settings_as_the_option_takes_them(speaker_models: dict[str, Path]) -> None:
    shown = json.loads(fastscribe("inspect", str(speaker_models["v2"]), "--json").stdout)["speaker_streaming"]
    assert shown.startswith("chunk_len=10,chunk_left_context=1,chunk_right_context=2,fifo_len=12,")
    chosen = Options(speakers=str(speaker_models["v2"]), speaker_streaming=parse_streaming(shown))  # type: ignore[arg-type]
    found = read_for_run(MODEL, chosen).others["turns"]
    assert found is not None and found.config == read_speaker_model(speaker_models["v2"]).config
    assert "speaker_streaming" not in json.loads(fastscribe("inspect", str(speaker_models["v1"]), "--json").stdout)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"chunk": 4}, "not one of chunk_len, chunk_left_context"),
        ([("fifo_len", 3), ("fifo_len", 3)], "named twice"),
        ({"chunk_len": 0}, "'chunk_len=0': not a number of frames from 1 to 65,536"),
        ({"fifo_len": 2.5}, "'fifo_len=2.5': not a number of frames from 0"),
        ({"fifo_len": True}, "'fifo_len=True': not a number"),
        ({}, "there is no setting"),
        ({"fifo_len": "3"}, "not a number of frames from 0"),
        (["chunk_len"], "not a mapping"),
        ("chunk_len=3", "not a mapping"),
        (7, "not a mapping"),
    ],
)
def test_settings_that_are_none(given: Any, problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        Options(speakers="model.nemo", speaker_streaming=given)
    assert problem in str(caught.value)


@pytest.mark.parametrize("given", [{"chunk_len": np.int64(9), "fifo_len": 3}, (("fifo_len", 3), ("chunk_len", 9))])
def test_settings_are_kept_in_one_form(given: Any) -> None:
    assert Options(speakers="m", speaker_streaming=given).speaker_streaming == (("chunk_len", 9), ("fifo_len", 3))
    for speakers in (None, "channels"):
        with pytest.raises(OptionError, match="speakers names none"):
            Options(speakers=speakers, speaker_streaming=given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-m", "{v1}"], "a speaker model (Sortformer): it tells who speaks when"),
        (["--speakers", "{asr}"], "no speaker model (Sortformer)"),
        (["--speakers", "missing.nemo"], "missing.nemo: no such file"),
        (["--rttm", "missing.rttm"], "missing.rttm: no such file or folder"),
        (["--rttm", "https://example.org/turns.rttm"], "takes a local file, not a URL"),
        (["--rttm", ""], "--rttm is empty"),
        (["--rttm", "all.rttm", "--speakers", "{v1}"], "--rttm and --speakers exclude each other"),
        (["--speakers", "{v1}", "--speaker-names", "speaker 2"], "speaker 2 is the name of a speaker without one"),
        (["--speaker-streaming", "chunk_len=9"], "--speaker-streaming is for a speaker model: --speakers MODEL"),
        (["--speakers", "{v2}", "--speaker-streaming", "chunk_len"], "not settings such as chunk_len=340,fifo_len=40"),
        (["--speakers", "{v2}", "--speaker-streaming", "chunk_len=x"], "chunk_len=x: not a number of frames from 1"),
        (["--speakers", "{v2}", "--speaker-streaming", "fifo_len=" + "9" * 5000], "not a number of frames from 0"),
        (["--speakers", "{v1}", "--speaker-streaming", "chunk_len=9"], "v1.nemo: this model reads recordings at once"),
        (["--speakers", "{v2}", "--speaker-streaming", "spkcache_len=7"], "this model's 4 speakers need 8"),
        (
            ["--speakers", "{nemotron}", "--speaker-streaming", "chunk_len=4,chunk_right_context=4"],
            "less than its chunk_len, which is 4",
        ),
    ],
)
def test_a_mistake_is_one_line(options: list[str], message: str, speaker_models: dict[str, Path]) -> None:
    places = {**speaker_models, "asr": MODEL}
    found = fastscribe("transcribe", str(CLIPS[0]), *(one.format(**places) for one in options), "-q")
    assert found.returncode == 2
    [line] = [line for line in found.stderr.splitlines() if "no --model" not in line]
    assert message in line


def test_rttm_without_a_recording_fails_that_one(tmp_path: Path) -> None:
    turns = tmp_path / "all.rttm"
    turns.write_text(f"SPEAKER {CLIPS[0].stem} 1 0 99 <NA> <NA> Ann <NA> <NA>\n")
    with Transcriber.load(MODEL, device="cpu", options=Options(rttm=str(turns))) as transcriber:
        first, second = transcriber.transcribe([str(path) for path in CLIPS[:2]], ordered=True)
    assert isinstance(first, Transcript)
    assert (first.speakers, {word.speaker for word in first.words}) == (("Ann",), {"Ann"})
    assert isinstance(second, Failure)
    assert "has no turns of its speakers" in second.message
    assert json.dumps(second.message)
