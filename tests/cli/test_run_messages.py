"""Lines about what a run left out."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fastscribe.audio.formats import NOT_OPENED, UNKNOWN_CONTENT
from fastscribe.cli.run_messages import counts_of, say_listing, say_summary, sound_lines, stopped_hint
from fastscribe.config import Options
from fastscribe.pipeline.stats import Progress
from fastscribe.types import Gap
from tests.helpers.report_samples import transcript, utterance


def test_quiet_hides_files_that_are_surely_no_audio(capsys: pytest.CaptureFixture[str]) -> None:
    left_out = {".jpg": 3, f".xyz{UNKNOWN_CONTENT}": 2, f"no extension{NOT_OPENED}": 1}
    maybe = ".xyz (unknown content) 2, no extension (not opened) 1"
    for quiet in (True, False):  # the numbers are the same
        say_listing(left_out, 0, quiet=quiet)
        assert capsys.readouterr().err == f"fastscribe: 6 files left out: .jpg 3, {maybe}\n"
    say_listing({".jpg": 3}, 0, quiet=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("out", "results: out"),
        ("memory://a/b", "results: memory://a/b, in the memory of this process, which ends now"),
    ],
)
def test_a_summary_says_where_results_are(where: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    stats: Any = SimpleNamespace(files=1, failed=0, failed_before=0, skipped=0, audio_s=1.0, wall_s=1.0, load_s=1.0)
    stats.rtfx, stats.usd_per_1000_audio_hours = 1.0, None
    job: Any = SimpleNamespace(output=SimpleNamespace(is_stdout=False, where=where))
    say_summary(job, stats)
    assert capsys.readouterr().err.splitlines()[-1] == f"fastscribe: {said}"


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ({"is_stdout": True}, "; with --output-dir the same command goes on where it stopped"),
        ({"is_stdout": False, "overwrite": False}, " and kept, and the same command goes on from there"),
        ({"is_stdout": False, "overwrite": True}, " and kept, and without --overwrite the command goes on from there"),
    ],
)
def test_a_stopped_run_says_how_it_goes_on(output: dict[str, bool], said: str) -> None:
    job: Any = SimpleNamespace(output=SimpleNamespace(**output), options=Options())
    folder = None if output["is_stdout"] else output_with(num_durable=12, num_done=0)
    begun = Progress(files=12, skipped=1000, planned_files=20)
    assert stopped_hint(job, begun, folder, 4000) == f"1,012 of 4,000 files are done{said}"
    assert stopped_hint(job, begun, folder, 4000, is_about=True) == f"1,012 of about 4,000 files are done{said}"
    assert stopped_hint(job, Progress(files=12, planned_files=20), folder, None).startswith("12 files are done")
    hint = "; --window 1 finishes each long recording before the next"
    empty = None if folder is None else output_with(num_durable=0, num_done=0)
    assert (
        stopped_hint(job, Progress(done_s=900.0, planned_files=7), empty, 7).endswith(hint) is not output["is_stdout"]
    )
    for progress, place in ((Progress(files=1, done_s=900.0, planned_files=7), folder), (Progress(done_s=9.0), empty)):
        assert hint not in stopped_hint(job, progress, place, 7)
    assert hint not in stopped_hint(job, Progress(done_s=900.0, planned_files=1), empty, 1)
    nothing = stopped_hint(job, Progress(planned_files=7), empty, 7)
    assert nothing == f"0 of 7 files are done{said if folder is None else ''}"
    assert stopped_hint(job, Progress(planned_files=7), empty, None).startswith("no file is done yet")
    job.options = Options(window=1)
    assert hint not in stopped_hint(job, Progress(done_s=900.0, planned_files=7), empty, 7)


def output_with(num_durable: int, num_done: int) -> Any:
    journal = SimpleNamespace(is_live=np.ones(77, bool))
    return SimpleNamespace(num_durable=num_durable, ledger=SimpleNamespace(num_done=num_done), journal=journal)


def test_a_stopped_run_counts_what_is_durable_and_what_earlier_runs_did() -> None:
    """On a full disk fewer results are durable than were counted. Earlier ones count as soon as the ledger knows them."""
    progress = Progress(files=49, failed=2, planned_files=60)
    assert counts_of(progress, output_with(41, 77)) == {"files": 41, "failed": 2, "skipped": 77}
    assert counts_of(progress, None) == {"files": 49, "failed": 2, "skipped": 0}
    job: Any = SimpleNamespace(output=SimpleNamespace(overwrite=False))
    for num_done in (0, 20):  # the inputs are still being looked at
        hint = stopped_hint(job, Progress(), output_with(0, num_done), 300)
        assert hint == "77 results of earlier runs stay, and the same command goes on from there"
    assert stopped_hint(job, Progress(), output_with(0, 77), 300).startswith("77 of 300 files are done and kept")


def test_recordings_without_words_are_named_up_to_a_few() -> None:
    progress, said = Progress(), []
    for index in range(5):
        progress.count(replace(transcript(utterance(index, 9.0, f"{index}.mp3")), text="" if index else "x"))
        said.append(list(sound_lines(progress, Options(), "transcribe", False)))
    assert said[:3] == [[], ["1 recording has no words: 1.mp3"], ["2 recordings have no words: 1.mp3, 2.mp3"]]
    assert said[4] == ["4 recordings have no words: 1.mp3, 2.mp3, 3.mp3 and 1 more"]


def test_recordings_with_a_voice_on_each_channel_are_counted() -> None:
    progress = Progress()
    for number, alone_s in enumerate(((), (30.0, 5.9), (30.0, 9.0), (9.0, 30.0), (30.0, 30.0, 30.0))):
        found = transcript(utterance(0, 60.0, f"{number}.mp3"))
        progress.count(replace(found, audio=replace(found.audio, alone_s=alone_s)))
    silent = transcript(utterance(1, 60.0))
    progress.count(replace(silent, text="", audio=replace(silent.audio, alone_s=(30.0, 30.0))))  # music, perhaps
    silence, line = sound_lines(progress, Options(), "transcribe", False)
    assert (
        line == "2 recordings have a voice on each of two channels: 2.mp3, 3.mp3; --speakers channels tells who speaks"
    )
    assert list(sound_lines(progress, Options(speakers="channels"), "transcribe", False)) == [silence]
    assert list(sound_lines(progress, Options(), "transcribe", True)) == [line]
    assert list(sound_lines(progress, Options(), "align", True)) == []


def test_speech_beside_the_texts_is_told_of_align_alone() -> None:
    progress = Progress()
    for gaps in ((), (Gap(1.0, 2.5), Gap(3.0, 4.5)), (Gap(0.0, 7.0),)):
        progress.count(replace(transcript(utterance(0, 9.0)), gaps=gaps))
    assert list(sound_lines(progress, Options(), "transcribe", False)) == []
    [line] = sound_lines(progress, Options(), "align", True)
    assert line == "10 s of speech in 2 recordings are not in the text: gaps in JSON says where"


def test_an_empty_transcript_on_stdout_speaks_for_itself() -> None:
    progress = Progress(wordless=1, first_wordless=["a.wav"])
    assert list(sound_lines(progress, Options(), "transcribe", True)) == []
