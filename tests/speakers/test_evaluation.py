"""Scores of who says what: references of every format, and a case that is counted by hand."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest

from fastscribe.errors import ManifestError, UsageError
from fastscribe.speakers.references import Reference, SpeakerReferences
from fastscribe.types import AudioInfo, Turn
from tests.helpers.processes import fastscribe

AUDIO = AudioInfo("calls/a.wav", "calls/a.wav", 1000, 1, 10_000)
STM = ";; by hand\na 1 A 0 2 <o,f0> one two\na 1 B 2 4.5 three\na 1 B 5 6 ignore_time_segment_in_scoring\na 1 A 6 8\n"
SEGLST = [
    {"session_id": "a", "speaker": "B", "start_time": "2", "end_time": 4.5, "words": "three"},
    {"session_id": "a", "speaker": "A", "start_time": 0, "end_time": 2, "words": "one two"},
    {"session_id": "a", "speaker": "A", "start_time": 6, "end_time": 8, "words": ""},
]
ROW = {
    "audio_filepath": "calls/a.wav",
    "offset": 0,
    "segments": [
        {
            "speaker": one["speaker"],
            "start": float(str(one["start_time"])),
            "end": one["end_time"],
            "text": one["words"],
        }
        for one in SEGLST
    ],
}
RTTM = "SPEAKER a 1 0 2 <NA> <NA> A <NA> <NA>\nSPEAKER a 1 6 2 <NA> <NA> A <NA> <NA>\nSPEAKER a 1 2 2.5 <NA> <NA> B <NA> <NA>\n"
TURNS = (Turn(0.0, 2.0, "A"), Turn(2.0, 4.5, "B"), Turn(6.0, 8.0, "A"))
FILES = {"a.stm": STM, "a.json": json.dumps(SEGLST), "a.jsonl": json.dumps(ROW), "a.rttm": RTTM}
scored = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("meeteval", "pyannote")), reason="the extra eval-speakers is not installed"
)


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", FILES)
def test_every_format_has_the_same_reference(name: str, tmp_path: Path) -> None:
    written(tmp_path, f"calls/{name}", FILES[name])
    words = None if name.endswith("rttm") else {"A": "one two", "B": "three"}
    for path in (tmp_path / "calls" / name, tmp_path):
        references = SpeakerReferences([str(path)])
        found = references.of(AUDIO)
        assert found is not None and found.turns == TURNS and references.has_words == (words is not None)
        assert found.texts is words or (
            found.texts is not None and {k: v.strip() for k, v in found.texts.items()} == words
        )
        assert references.unused() == [] and references.of(AudioInfo("b.wav", "b.wav", 1000, 1, 10_000)) is None


def test_words_of_one_file_and_turns_of_another(tmp_path: Path) -> None:
    stm, rttm = (
        written(tmp_path, "x.stm", STM + "b 1 C 0 1 four\n"),
        written(tmp_path, "x.rttm", RTTM.replace("2.5", "3")),
    )
    references = SpeakerReferences([stm, rttm])
    found = references.of(AUDIO)
    assert found is not None and found.turns[1] == Turn(2.0, 5.0, "B") and found.texts is not None
    assert found.texts["B"] == "three" and references.unused() == ["b"]


def test_a_part_has_the_segments_whose_middle_is_in_it(tmp_path: Path) -> None:
    references = SpeakerReferences([written(tmp_path, "a.stm", STM)])
    part = AudioInfo(
        "calls/a.wav", "calls/a.wav@3000", 1000, 1, 4000
    )  # 3 to 7 s: the middle of three is at 3.25, of "" at 7
    expected = Reference((Turn(0.0, 1.5, "B"), Turn(3.0, 4.0, "A")), {"B": "three"})
    assert references.of(part, 3.0, 4.0) == expected
    # A part that failed has its own references alone; a segment that goes on after the recording's end keeps its words.
    failed = AudioInfo("calls/a.wav", "calls/a.wav@3000", 1, 1, 0)
    assert references.of(failed, 3.0, 4.0) == expected
    short = references.of(AudioInfo("a.wav", "a.wav", 1000, 1, 3000))
    assert short is not None and short.texts is not None and short.texts["B"].strip() == "three"
    assert max(turn.end_s for turn in short.turns) == 3.0


def test_rows_of_manifests_are_parts(tmp_path: Path) -> None:
    from fastscribe.speakers.scores import evaluate_speakers

    references = SpeakerReferences([written(tmp_path, "a.stm", STM)])
    error = {"stage": "load", "type": "AudioError", "message": "broken"}
    rows = [{"audio_filepath": "a.wav", "offset": 3.0, "duration": 4.0, "error": error}, result("a.wav", duration=3.0)]
    out = written(tmp_path, "out.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    asked = list[tuple[float, float | None]]()

    class Asked:
        def of(self, audio: AudioInfo, offset_s: float, part_s: float | None) -> Reference | None:
            asked.append((offset_s, part_s))
            return None if part_s is None else references.of(audio, offset_s, part_s)

    list(evaluate_speakers([out], cast("SpeakerReferences", Asked()), str, 0.25, count_failed=False))
    assert asked == [(3.0, 4.0), (0.0, None)]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.stm", "a 1 A x 2 one\n", "line 1 is not RECORDING CHANNEL SPEAKER START END"),
        ("a.stm", "a 1 A 2 1 one\n", "line 1 is not RECORDING CHANNEL SPEAKER START END"),
        ("a.json", "{}", "is not SegLST: a list of objects with session_id"),
        ("a.json", '[{"session_id": "a"}]', "is not SegLST"),
        (
            "a.json",
            '[{"session_id": "a", "speaker": "A", "start_time": 0, "end_time": 1, "words": 3}]',
            "is not SegLST",
        ),
        ("a.jsonl", '{"audio_filepath": "a.wav"}\n', "line 1 has no audio_filepath, and segments with speaker"),
        ("a.jsonl", '{"audio_filepath": "a", "segments": [{"text": "", "start": 0, "end": 1}]}\n', "line 1 has no"),
        ("a.rttm", "SPEAKER a 1 x\n", "line 1 is not SPEAKER RECORDING"),
        ("a.stm", ";; nothing\n", "the files have no speakers"),
        ("a.csv", "", "the name ends in none of .rttm"),
        ("d/a.csv", "", "file in this folder"),
    ],
)
def test_other_references_are_refused(name: str, text: str, problem: str, tmp_path: Path) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(UsageError, match="--speaker-references") as error:
        SpeakerReferences([str(tmp_path / "d") if name.startswith("d") else path])
    assert problem in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(UsageError, match="no such file or folder"):
        SpeakerReferences([str(tmp_path / "missing.stm")])


def test_files_of_two_formats_in_a_folder_are_refused(tmp_path: Path) -> None:
    for name in ("a.stm", "a.rttm"):
        written(tmp_path, name, FILES[name])
    with pytest.raises(UsageError, match=r"several formats \(\.rttm, \.stm\)"):
        SpeakerReferences([str(tmp_path)])


def result(path: str, *segments: tuple[str, float, float, str], **fields: Any) -> dict[str, Any]:
    """A row: segments of a speaker, with begin, end and text."""
    rows, words = [], []
    for speaker, start, end, text in segments:
        timed = {"start": start, "end": end, "confidence": 1.0, "speaker": speaker}
        rows.append({"text": text, **timed})
        words += [{"word": word, **timed} for word in text.split()]
    names = {"speakers": sorted({name for name, *_ in segments})} if segments else {}
    found = {
        "audio_filepath": path,
        "duration": 10.0,
        "text": "",
        **names,
        "segments": rows,
        "words": words,
        "gaps": [],
    }
    return {**found, **fields}


@scored
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_case_by_hand() -> None:
    from fastscribe.evaluation.scores import Edits
    from fastscribe.speakers.scores import cp_word_edits, diarization_edits

    # Paired A-y, B-x: "two" is said by the wrong speaker (deleted and inserted), "four" is a substitution.
    assert cp_word_edits({"A": "one two", "B": "three"}, {"x": "two four", "y": "one"}) == Edits(3, 1, 1, 1)
    assert cp_word_edits({"A": "one two"}, {}) == Edits(2, 0, 0, 2)
    assert cp_word_edits({}, {"x": "one"}) == Edits(0, 0, 1, 0)
    # x is A. It ends 1 s late, in B's turn (wrong speaker); y ends 0.5 s after B (false alarm); A's last second is missed.
    found = [Turn(0.0, 3.0, "x"), Turn(3.0, 5.0, "y"), Turn(6.0, 7.0, "x")]
    assert diarization_edits(TURNS, found, 10.0, 0.0) == Edits(6500, 1000, 500, 1000)
    # The collar leaves out 0.25 s on both sides of 0, 2, 4.5, 6 and 8.
    assert diarization_edits(TURNS, found, 10.0, 0.25) == Edits(5000, 750, 250, 750)
    again = [*TURNS, Turn(1.0, 2.0, "A")]
    assert diarization_edits(again, TURNS, 10.0, 0.0) == Edits(6500, 0, 0, 0)
    assert diarization_edits([], [], 0.0, 0.25) == Edits()


@scored
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scores_of_results(tmp_path: Path) -> None:
    from fastscribe.evaluation.scores import normalizer
    from fastscribe.speakers.error_report import to_object, to_table
    from fastscribe.speakers.scores import SpeakerEvaluation, evaluate_speakers

    rows = [
        result("a.wav", ("x", 0, 2, "One, two."), ("y", 2, 4.5, "tree"), ("x", 6, 8, "")),
        {"audio_filepath": "b.wav", "error": {"stage": "load", "type": "AudioError", "message": "broken"}},
        result("c.wav", ("x", 0, 2, "one")),
        result("a.wav", text="", words=[]),
        {"audio_filepath": "a.wav", "text": "no result"},
    ]
    del rows[2]["speakers"]
    stm = written(tmp_path, "r.stm", STM + "b 1 C 0 1 four five\nc 1 C 0 1 four\n")
    out = written(tmp_path, "out.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def scores(count_failed: bool) -> tuple[list[ManifestError], SpeakerEvaluation]:
        *problems, found = evaluate_speakers([out], SpeakerReferences([stm]), normalizer("none"), 0.0, count_failed)
        assert isinstance(found, SpeakerEvaluation)
        return [one for one in problems if isinstance(one, ManifestError)], found

    problems, found = scores(True)
    assert ["no speakers: transcribe with" in str(one) for one in problems] == [True, False]
    document = to_object(found)
    assert (document["recordings"], document["failed"]) == (3, 1)
    # a: "One," "two." "tree" instead of "one" "two" "three"; b failed: 2 words, 1 s; a again, silent: 3 words and 6.5 s missed.
    assert document["words"] == {"reference_words": 8, "errors": 8, "substitutions": 3, "insertions": 0, "deletions": 5}
    assert document["speech"] == {"reference_s": 14.0, "missed_s": 7.5, "false_alarm_s": 0.0, "wrong_speaker_s": 0.0}
    assert (document["cp_wer"], document["cp_wer_standard_error"]) == (1.0, 0.0)
    assert document["der"] == round(7.5 / 14, 6) and document["der_standard_error"] > 0
    assert [one["recording"] for one in document["by_recording"]] == ["a.wav", "b.wav", "a.wav"]
    assert [(one["speakers"], one["reference_speakers"]) for one in document["by_recording"]] == [
        (2, 2),
        (0, 1),
        (0, 2),
    ]
    lines = to_table(found).splitlines()
    assert lines[1].split()[:3] == ["all", "8", "100.00"] and lines[3].split()[:3] == ["b.wav", "(failed)", "0/1"]
    left_out = scores(False)[1]
    assert (left_out.num_failed, left_out.words.words.units, len(left_out.recordings)) == (1, 6, 2)


@scored
def test_the_command(tmp_path: Path) -> None:
    out = written(
        tmp_path, "out.jsonl", json.dumps(result("a.wav", ("x", 0, 2, "one two"), ("y", 2, 4.5, "three"))) + "\n"
    )
    stm = written(tmp_path, "r.stm", STM + "b 1 C 0 1 four\n")
    done = fastscribe("evaluate", out, "--speaker-references", stm, "--json", "--collar", "0")
    document = json.loads(done.stdout)
    assert done.returncode == 1 and "1 recording of the references has no result" in done.stderr and "b" in done.stderr
    assert (document["cp_wer"], document["der"], document["collar_s"]) == (0.0, round(2 / 6.5, 6), 0.0)
    table = fastscribe("evaluate", out, "--speaker-references", written(tmp_path, "a.rttm", RTTM))
    assert (
        table.returncode == 0 and "cpWER" not in table.stdout and "collar 0.25 s" in table.stdout and not table.stderr
    )
    other = fastscribe("evaluate", out, "--speaker-references", written(tmp_path, "c.stm", "c 1 C 0 1 x\n"))
    assert other.returncode == 2 and "no reference has the speakers of a.wav" in other.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--collar", "1"), "--collar is for the speakers of --speaker-references"),
        (
            ("--speaker-references", "x.stm", "--group-by", "a"),
            "--group-by and --speaker-references exclude each other",
        ),
        (("--speaker-references", "x.stm", "--against", "b"), "--against and --speaker-references exclude each other"),
    ],
)
def test_options_that_do_not_go_together(options: tuple[str, ...], problem: str, tmp_path: Path) -> None:
    done = fastscribe("evaluate", written(tmp_path, "out.jsonl", "{}\n"), *options)
    assert done.returncode == 2 and problem in done.stderr


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastscribe.evaluation import scores

    monkeypatch.setattr(scores, "find_spec", lambda name: None if name == "pyannote" else object())
    with pytest.raises(UsageError, match=r"needs pyannote\.metrics: install fastscribe with its extra eval-speakers"):
        scores.check_modules(("meeteval", "pyannote.metrics"), "--speaker-references", "eval-speakers")
